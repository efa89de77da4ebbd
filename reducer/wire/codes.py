"""The numbers of the wire protocol: append-only, never reused (PROTOCOL.md, sections 3 and 5)."""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Final

PROTOCOL_MAJOR: Final = 1
PROTOCOL_MINOR: Final = 5

# Limits and their reasons: PROTOCOL.md, section 10.
MAX_CONTROL_BYTES: Final = 65_536
MAX_EARLY_BYTES: Final = 4_096  # per control frame before WELCOME; a HELLO has at most 2,000
MAX_CONTROL_DEPTH: Final = 8
MAX_CONTROL_ITEMS: Final = 4_096
MAX_CONTROL_VALUES: Final = 1_024
MAX_CONTROL_NAMES: Final = 64
MAX_LIST_VALUES: Final = 16_384
MAX_CHUNK_BYTES: Final = 4 << 20
MAX_CHUNKS: Final = 1 << 24
MAX_WORLD_SIZE: Final = 8_192
MAX_KEY_BYTES: Final = 512
MAX_JOB_BYTES: Final = 128
MAX_RUN_ID_BYTES: Final = 128
MAX_CHUNK_TABLE_ROWS: Final = 16
MAX_HEARTBEAT_ENTRIES: Final = 4_096
MAX_REDUCERS: Final = 4_096
MAX_WEIGHTED: Final = 512  # reducers of a job whose weights differ
MAX_WEIGHTS: Final = 4_096  # sum of the weights
MAX_LANES: Final = 1_024
MAX_LOSSES: Final = 256  # ranks that one run may lose and go on
MAX_RECORD_NAME_BYTES: Final = 256
MAX_HOLDER_BYTES: Final = 128
MAX_DOCUMENT_BYTES: Final = 48 << 10  # fits in a control frame with everything beside it
MAX_LEASE_BYTES: Final = 4 << 10
MAX_TABLE_NAME_BYTES: Final = 256
MAX_TENSORS_BYTES: Final = 48 << 10  # fits in a control frame with everything beside it
MAX_FIELDS_BYTES: Final = 1 << 10  # an optimizer's fields
MAX_SHARD: Final = MAX_CHUNK_BYTES // 4  # elements, each of 4 bytes
SHARD_ALIGNMENT: Final = 16  # elements: 64 bytes
MAX_PARTITIONS: Final = 65_536
MAX_TABLE_ELEMENTS: Final = 1 << 40
SCALARS_BYTES: Final = 24  # behind a gradient: six float32
MAX_WEIGHT: Final = 1 << 20  # of one contribution to a step


class MessageKind(IntEnum):
    HELLO = 1
    PENDING = 2
    WELCOME = 3
    ERROR = 4
    GOAWAY = 5
    BYE = 6
    KEY = 7
    STATS = 8
    STALL = 9
    REFUSED = 10
    CONTRIBUTION = 16
    RESULT = 17
    GRANT = 18
    ABANDON = 19
    HEARTBEAT = 20
    DESCRIBE = 21
    ROUTE = 22
    SUSPECT = 23
    ABSENT = 24
    REGISTRY = 25
    RECORD = 26
    TABLE = 27
    NOTICE = 28
    PUSH = 29
    PULL = 30
    VALUE = 31
    RECEIPT = 32
    LOG = 33
    LOGGED = 34


class DType(IntEnum):
    FLOAT32 = 1
    FLOAT64 = 2
    FLOAT16 = 3
    BFLOAT16 = 4
    INT8 = 5
    UINT8 = 6
    INT32 = 7
    UINT32 = 8
    INT64 = 9
    UINT64 = 10
    FLOAT8_E4M3FN = 11
    FLOAT8_E5M2 = 12
    # Blocks of float32, quantised; the result is in the same dtype, or in bfloat16. Since minor 5.
    INT8_BLOCKS = 13
    FLOAT8_E4M3FN_BLOCKS = 14
    E3M0_BLOCKS = 15
    INT8_BLOCKS_TO_BFLOAT16 = 16
    FLOAT8_E4M3FN_BLOCKS_TO_BFLOAT16 = 17
    E3M0_BLOCKS_TO_BFLOAT16 = 18


# Elements in one block of a dtype in BLOCKS; the last block of a chunk may have fewer.
BLOCK_ELEMENTS: Final = 256
TO_BFLOAT16: Final = frozenset(
    (
        DType.INT8_BLOCKS_TO_BFLOAT16,
        DType.FLOAT8_E4M3FN_BLOCKS_TO_BFLOAT16,
        DType.E3M0_BLOCKS_TO_BFLOAT16,
    )
)
BLOCKS: Final = frozenset(
    (DType.INT8_BLOCKS, DType.FLOAT8_E4M3FN_BLOCKS, DType.E3M0_BLOCKS, *TO_BFLOAT16)
)
BLOCKS_MINOR: Final = 5  # the minor version that brought them


# Bytes of an element, of every dtype but BLOCKS (sizes.py).
ITEM_SIZES: dict[int, int] = {
    DType.FLOAT32: 4,
    DType.FLOAT64: 8,
    DType.FLOAT16: 2,
    DType.BFLOAT16: 2,
    DType.INT8: 1,
    DType.UINT8: 1,
    DType.INT32: 4,
    DType.UINT32: 4,
    DType.INT64: 8,
    DType.UINT64: 8,
    DType.FLOAT8_E4M3FN: 1,
    DType.FLOAT8_E5M2: 1,
}


# NumPy lacks these floats: an array holds their bits, or has a dtype of ml_dtypes.
NOT_IN_NUMPY: Final = (DType.BFLOAT16, DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2)
FLOATS: Final = frozenset((DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, *NOT_IN_NUMPY))


class ReduceOp(IntEnum):
    NONE = 0
    SUM = 1
    MEAN = 2
    MIN = 3
    MAX = 4
    PROD = 5
    COPY = 6
    BAND = 7
    BOR = 8
    BXOR = 9


# Bitwise reductions, for integers only; since protocol minor 1.
BITWISE: Final = frozenset((ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR))


class Collective(IntEnum):
    ALL_REDUCE = 1
    BROADCAST = 2
    ALL_GATHER = 3
    REDUCE_SCATTER = 4
    BARRIER = 5


# Plain integers for comparisons on the data path: enumeration members cost calls to look up and to
# compare.
CONTRIBUTION: Final = int(MessageKind.CONTRIBUTION)
RESULT: Final = int(MessageKind.RESULT)
HEARTBEAT: Final = int(MessageKind.HEARTBEAT)
PUSH: Final = int(MessageKind.PUSH)
VALUE: Final = int(MessageKind.VALUE)
LOG: Final = int(MessageKind.LOG)
CHUNK_KINDS: Final = (CONTRIBUTION, RESULT, PUSH, VALUE, LOG)  # their payloads are read in place
COPY: Final = int(ReduceOp.COPY)
ALL_REDUCE: Final = int(Collective.ALL_REDUCE)
BROADCAST: Final = int(Collective.BROADCAST)
ALL_GATHER: Final = int(Collective.ALL_GATHER)
REDUCE_SCATTER: Final = int(Collective.REDUCE_SCATTER)
BARRIER: Final = int(Collective.BARRIER)


class Flag(IntFlag):
    WIDE = 1
    OVERFLOW = 2
    NAN = 4
    HELD = 8
    NONFINITE = 16
    VALUES = 32
    ALL = 64
    EXACT = 128


HELD: Final = int(Flag.HELD)  # on the data path


class ErrorCode(IntEnum):
    PROTOCOL = 1
    VERSION = 2
    AUTHENTICATION = 3
    JOIN = 4
    MISMATCH = 5
    PEER_LOST = 6
    QUOTA = 7
    INTEGRITY = 8
    UNAVAILABLE = 9
    TIMEOUT = 10
    NUMERIC = 11
    INTERNAL = 12
    CORRUPTED = 13
    STATE_LOST = 14
    STALE_BASE = 15
    EVICTED = 16


class Entry(IntEnum):
    """What a LOG frame is about (PROTOCOL.md, section 18)."""

    CALL = 1  # a map: a call that changes the tables
    VALUES = 2  # an array of a shard
    UPDATE = 3  # a gradient, with the scalars of its step behind it
    OUTCOME = 4  # of a push that changed nothing, or of an earlier one
    MEAN = 5  # of a step's set


class Outcome(IntEnum):
    """What became of a push to a shard (PROTOCOL.md, section 17)."""

    APPLIED = 1
    DROPPED = 2
    REFUSED = 3
    HELD = 4  # a contribution to a step: its outcome follows
