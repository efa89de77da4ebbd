"""The control messages about tables (PROTOCOL.md, section 17)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

import msgpack  # type: ignore[import-untyped]  # ships no stubs

from reducer.wire import checks
from reducer.wire.checks import wire
from reducer.wire.codes import (
    MAX_FIELDS_BYTES,
    MAX_JOB_BYTES,
    MAX_LANES,
    MAX_PARTITIONS,
    MAX_RUN_ID_BYTES,
    MAX_SHARD,
    MAX_TABLE_ELEMENTS,
    MAX_TABLE_NAME_BYTES,
    MAX_TENSORS_BYTES,
    MAX_WEIGHT,
    PROTOCOL_MINOR,
    SCALARS_BYTES,
    SHARD_ALIGNMENT,
)
from reducer.wire.errors import BadFrameError

DIGEST_BYTES: Final = 32
MAX_TERM: Final = (1 << 15) - 1  # the generations of a term's steps have the other 16 bits
MAX_ADDRESS_BYTES: Final = 300  # the longest host name, and a port
MODES: Final = ("async", "ssp", "step")
LATE: Final = ("drop", "carry")
CALLS: Final = (
    "open", "table", "clock", "rate", "list", "drop", "enter", "set", "folded", "commit", "follow",
)  # fmt: skip
NEWS: Final = ("set", "late", "folded", "commit", "evicted", "filled", "alone")


def _one_of(*words: str) -> checks.Check:
    def check(name: str, value: Any) -> str:
        if type(value) is not str or value not in words:
            raise BadFrameError(f"{name} must be one of {', '.join(words)}, got {value!r:.40}")
        return value

    return check


def _shard(name: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_SHARD or value % SHARD_ALIGNMENT:
        raise BadFrameError(
            f"{name} must be a multiple of {SHARD_ALIGNMENT} up to {MAX_SHARD}, got {value!r:.40}"
        )
    return value


def _digest(name: str, value: Any) -> bytes:
    if type(value) is not bytes or len(value) not in (0, DIGEST_BYTES):
        raise BadFrameError(f"{name} must be 0 or {DIGEST_BYTES} bytes, got {value!r:.40}")
    return value


def _rate(name: str, value: Any) -> float:
    """A learning rate that float32 can hold; -1: none is given."""
    number = float(value) if type(value) in (int, float) else -2.0
    if number == -1.0:
        return number
    try:
        if number >= 0.0 and struct.pack("<f", number) != struct.pack("<f", float("inf")):
            return number
    except OverflowError:
        pass
    raise BadFrameError(f"{name} must be a learning rate of float32 from 0 on, got {value!r:.40}")


def unpack_fields(packed: bytes) -> dict[str, Any] | None:
    """The map in a field of bytes, such as an optimizer's; None if it is no map of texts."""
    try:
        fields = msgpack.unpackb(packed, max_map_len=64, strict_map_key=True)
    except (ValueError, msgpack.UnpackException):
        return None
    if type(fields) is not dict or any(type(name) is not str for name in fields):
        return None
    return fields


_GENERATION: Final = checks.integer(0, (1 << 32) - 1)
_PARTITION: Final = checks.integer(0, MAX_PARTITIONS - 1)
_PARTITIONS: Final = checks.integer(0, MAX_PARTITIONS)
_ELEMENTS: Final = checks.integer(0, MAX_TABLE_ELEMENTS)
_NAME: Final = checks.text(MAX_TABLE_NAME_BYTES)
_WEIGHT: Final = checks.integer(1, MAX_WEIGHT)
_BOUND: Final = checks.integer(-1, (1 << 31) - 1)
_WORKERS: Final = checks.integer(0, 8_192)
_TERM: Final = checks.integer(0, MAX_TERM)


@dataclass(frozen=True, slots=True)
class TableCall:
    """A worker's call about a table. Each call uses some of the fields; section 17 says which."""

    call: str = wire(_one_of(*CALLS))
    job: str = wire(checks.text(MAX_JOB_BYTES), default="")
    run_id: str = wire(checks.text(MAX_RUN_ID_BYTES), default="")
    worker: int = wire(checks.RANK_OR_NONE, default=-1)
    incarnation: bytes = wire(checks.octets(checks.INCARNATION_BYTES), default=b"")
    silence_ms: int = wire(checks.MILLISECONDS, default=0)
    minor: int = wire(checks.integer(0, 255), default=PROTOCOL_MINOR)
    name: str = wire(_NAME, default="")
    count: int = wire(_ELEMENTS, default=0)
    shard: int = wire(_shard, default=0)
    partitions: int = wire(_PARTITIONS, default=0)
    partition: int = wire(_PARTITION, default=0)
    optimizer: bytes = wire(checks.octets(MAX_FIELDS_BYTES), default=b"")
    mode: str = wire(_one_of(*MODES), default="async")
    bound: int = wire(_BOUND, default=-1)
    workers: int = wire(_WORKERS, default=0)
    quorum: int = wire(_WORKERS, default=0)
    late: str = wire(_one_of(*LATE), default="drop")
    digest: bytes = wire(_digest, default=b"")
    tensors: bytes = wire(checks.octets(MAX_TENSORS_BYTES), default=b"")
    rate: float = wire(_rate, default=-1.0)
    number: int = wire(checks.COUNT, default=0)
    clock: int = wire(checks.COUNT, default=0)
    step: int = wire(checks.COUNT, default=0)
    generation: int = wire(_GENERATION, default=0)
    weight: int = wire(_WEIGHT, default=1)
    members: tuple[int, ...] = wire(checks.ranks(8_192), default=())
    weights: tuple[int, ...] = wire(checks.integers(1, MAX_WEIGHT), default=())
    term: int = wire(_TERM, default=0)
    reducer: bytes = wire(checks.octets(checks.INCARNATION_BYTES), default=b"")
    backup: str = wire(checks.text(MAX_ADDRESS_BYTES), default="")
    backup_lane: int = wire(checks.integer(0, MAX_LANES - 1), default=0)
    backup_reducer: bytes = wire(checks.octets(checks.INCARNATION_BYTES), default=b"")
    filling: bool = wire(checks.boolean, default=False)
    scalars: bytes = wire(checks.octets(SCALARS_BYTES), default=b"")


@dataclass(frozen=True, slots=True)
class Notice:
    """A lane's answer to a TableCall, with the call's number, or news, with number 0."""

    call: str = wire(_one_of(*CALLS, *NEWS))
    code: int = wire(checks.integer(0, 255), default=0)
    message: str = wire(checks.text(checks.MAX_TEXT_BYTES), default="")
    more: bool = wire(checks.boolean, default=False)
    lanes: int = wire(checks.integer(0, MAX_LANES), default=0)
    lane: int = wire(checks.integer(0, MAX_LANES - 1), default=0)
    incarnation: bytes = wire(checks.octets(checks.INCARNATION_BYTES), default=b"")
    credit: int = wire(checks.COUNT, default=0)
    minor: int = wire(checks.integer(0, 255), default=PROTOCOL_MINOR)
    missing: bool = wire(checks.boolean, default=False)
    ready: bool = wire(checks.boolean, default=False)
    version: int = wire(checks.COUNT, default=0)
    name: str = wire(_NAME, default="")
    count: int = wire(_ELEMENTS, default=0)
    shard: int = wire(_shard, default=0)
    partitions: int = wire(_PARTITIONS, default=0)
    partition: int = wire(_PARTITION, default=0)
    optimizer: bytes = wire(checks.octets(MAX_FIELDS_BYTES), default=b"")
    mode: str = wire(_one_of(*MODES), default="async")
    bound: int = wire(_BOUND, default=-1)
    workers: int = wire(_WORKERS, default=0)
    quorum: int = wire(_WORKERS, default=0)
    late: str = wire(_one_of(*LATE), default="drop")
    tensors: bytes = wire(checks.octets(MAX_TENSORS_BYTES), default=b"")
    size: int = wire(checks.COUNT, default=0)
    rate: float = wire(_rate, default=-1.0)
    clock: int = wire(checks.COUNT, default=0)
    step: int = wire(checks.COUNT, default=0)
    generation: int = wire(_GENERATION, default=0)
    members: tuple[int, ...] = wire(checks.ranks(8_192), default=())
    weights: tuple[int, ...] = wire(checks.integers(1, MAX_WEIGHT), default=())
    term: int = wire(_TERM, default=0)
    backup_reducer: bytes = wire(checks.octets(checks.INCARNATION_BYTES), default=b"")
