"""Parts of the engine for tests and bench/scale; only an editable install has this module.

PROTOCOL.md defines the numbers of collectives, ops, dtypes and error codes. A payload is any
C-contiguous buffer of exactly the size in bytes that the call needs.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

from typing_extensions import Buffer

from reducer_client._engine import Operation

_Failure: TypeAlias = tuple[int, str, int, str, str, int]
_ChunkTable: TypeAlias = list[tuple[int, int]]

class State:
    """The engine's protocol state without sockets, thread or clock; the caller moves the bytes.

    The bytes do not include the prefaces, which the socket loop sends and reads.
    """

    def __init__(
        self,
        *,
        reducers: int,
        job: str,
        run_id: str = "",
        rank: int,
        world_size: int,
        chunk_table: _ChunkTable,
        connect_timeout: float = 60.0,
        silence: float = 1.0,
        reducer_wait: float = 30.0,
        leave_wait: float = 10.0,
        incarnation: bytes | None = None,
        digest_every: int = 0,
        worker_silence: float = 5.0,
        weights: Sequence[int] = (),
        hosted: Sequence[Sequence[int]] = (),
        min_reducers: int = 1,
        elastic: bool = False,
    ) -> None: ...
    def wanted(self) -> list[tuple[int, int]]:
        """(reducer, lane) of each connection to open now. Each connection is returned once."""
    def opened(self, reducer: int, lane: int, now: float) -> None: ...
    def incoming(self, reducer: int, lane: int, data: bytes, now: float) -> None: ...
    def outgoing(self, reducer: int, lane: int, limit: int, now: float) -> bytes: ...
    def closed(self, reducer: int, lane: int, reason: str, now: float) -> None: ...
    def unreachable(self, reducer: int, lane: int, reason: str, now: float) -> None:
        """Report that a wanted connection could not be opened; `wanted` returns it again."""
    def to_drop(self) -> list[tuple[int, int]]:
        """(reducer, lane) of each connection to close now. The caller must then call `closed`."""
    def tick(self, now: float) -> None: ...
    def leave(self, now: float) -> None: ...
    def submit(
        self,
        collective: int,
        op: int,
        dtype: int,
        wide: bool,
        key: str,
        root: int,
        count: int,
        source: Buffer | None,
        target: Buffer | None,
        notify: bool = False,
        priority: int = 0,
        residual: Buffer | None = None,
        stochastic: bool = False,
    ) -> Operation: ...
    def view_without(self, ranks: Sequence[int], epoch: int) -> bytes: ...
    def install(self, view: bytes, now: float) -> None: ...
    def promise(self, epoch: int) -> None: ...
    @property
    def view(self) -> list[tuple[int, int]]: ...
    @property
    def lost(self) -> list[tuple[int, str, str]]: ...
    def take_reports(self) -> list[str]: ...
    def counters(self) -> dict[str, int]: ...
    @property
    def route(self) -> dict[str, Any]:
        """The fields "route" (int) and "since", "live" and "lanes" (lists indexed by slot)."""
    @property
    def suspected(self) -> set[int]:
        """The live slots that this worker cannot reach."""
    @property
    def joined(self) -> bool: ...
    @property
    def left(self) -> bool:
        """Whether this worker has left, so that BYE is being sent."""
    @property
    def run_id(self) -> str: ...
    @property
    def error(self) -> _Failure | None: ...

class Handshake:
    """The worker's side of the handshake of mode psk on one connection, without the socket."""

    def __init__(self, master: bytes, job: str, lane: int, nonce: bytes) -> None: ...
    @property
    def opening(self) -> bytes: ...
    @property
    def wanted(self) -> int:
        """Maximum number of bytes to read now."""
    def received(self, data: bytes) -> bytes:
        """Take bytes of the reducer's answer; return our proof when the answer is complete.

        Raises EngineError if the answer does not prove that the reducer has the key.
        """

def hmac_sha256(key: bytes, data: bytes) -> bytes: ...
def sha256(data: bytes) -> bytes: ...
def key_id(name: str) -> int: ...
def msgpack_encode(value: object) -> bytes: ...
def msgpack_decode(data: bytes) -> object:
    """Decode a control map. Raises ValueError for anything else."""

def plan(
    collective: int,
    dtype: int,
    count: int,
    world: int,
    rank: int,
    chunk_table: _ChunkTable,
    key: str,
    lanes_by_slot: list[int],
    root: int = 0,
    live: list[int] = ...,
) -> list[tuple[int, int, int, int, int, bool, bool]]:
    """Per chunk (slot, lane, vector, first element in the vector, elements, sends, receives)."""

def narrow(dtype: int, source: Buffer, target: Buffer) -> None: ...
def widen(dtype: int, source: Buffer, target: Buffer) -> None: ...
