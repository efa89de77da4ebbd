"""The native part of reducer_client: the protocol state of a worker and its socket loop.

Numbers of collectives, ops, dtypes and error codes are those of PROTOCOL.md. Arrays are any
C-contiguous buffers; their sizes in bytes must be exact.
"""

from typing import Any, TypeAlias

from typing_extensions import Buffer

_Failure: TypeAlias = tuple[int, str, int, str, str, int]
_ChunkTable: TypeAlias = list[tuple[int, int]]

class EngineError(Exception):
    """args = (code, message, rank, reason, key, round); -1 and "" where there is none."""

    args: _Failure

class Operation:
    """One submitted round. Never made by hand."""

    @property
    def done(self) -> bool: ...
    @property
    def error(self) -> _Failure | None:
        """The fields of an EngineError once it has failed."""
    @property
    def flags(self) -> int:
        """OVERFLOW, NAN and NONFINITE of the result; 0 until it is done."""
    @property
    def culprit(self) -> tuple[int, int] | None:
        """The lowest rank that contributed NaN or Inf, and its first chunk with one."""
    @property
    def key(self) -> str: ...
    @property
    def round(self) -> int: ...

class Engine:
    """One worker of one job: sockets, one thread, many operations at once."""

    def __init__(
        self,
        *,
        addresses: list[str],
        job: str,
        run_id: str,
        rank: int,
        world_size: int,
        chunk_table: _ChunkTable,
        connect_timeout: float,
        silence: float,
        reducer_wait: float,
        congestion: str = "",
        source: str = "",
        local_sockets: bool = True,
        key: bytes = b"",
        tls: tuple[str, str, str] | None = None,
        digest_every: int = 0,
        timeline: str = "",
        worker_silence: float = 5.0,
    ) -> None:
        """Opens no connection. Raises ValueError for options outside PROTOCOL.md.

        `key`: of the job, 32 bytes, or none; zeroed at the end. `tls`: PEM files with certificate,
        key and CA; EngineError where the machine has no OpenSSL. `timeline`: a folder for a file
        with what becomes of each round, or none; ValueError where it cannot be made.
        """
    def connect(self) -> None:
        """Returns when every lane has welcomed this rank; raises EngineError."""
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
    ) -> Operation:
        """Copies `source` before it returns; `target` is written until the operation is done.

        `wide`: source and target are float32, `dtype` the 16-bit type that travels. Raises
        ValueError, BufferError, or EngineError when the group cannot take it.
        """
    def wait(self, operation: Operation, timeout: float | None = None) -> bool:
        """True as soon as it is done, False after `timeout` seconds. Signal handlers run.

        One waiting thread at a time does the engine's I/O meanwhile.
        """
    def next_finished(self, timeout: float) -> Operation | None:
        """The next operation submitted with notify that is done; None on timeout or at the end."""
    def take_reports(self) -> list[str]: ...
    def stats(self, timeout: float) -> list[dict[str, object]]:
        """STATS of every lane, each with its "reducer", "slot" and "lane"."""
    def close(self, timeout: float) -> None:
        """Waits until everything is stable, leaves, and ends the thread; aborts on timeout."""
    def abort(self, timed_out: str = "") -> None:
        """Fails what is open and ends the thread; with a reason all ranks are told of it."""
    def counters(self) -> dict[str, int]: ...
    @property
    def run_id(self) -> str: ...
    @property
    def bytes_sent(self) -> int: ...
    @property
    def bytes_received(self) -> int: ...
    @property
    def connections(self) -> int: ...
    @property
    def local_connections(self) -> int:
        """Those of `connections` that are Unix sockets."""
    @property
    def forked(self) -> bool:
        """Whether this process is a child forked from the one that made the engine."""

class State:
    """The same protocol state without sockets, thread or clock; bytes are moved by the caller.

    Prefaces are not part of the bytes: they belong to the socket loop.
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
    ) -> None: ...
    def wanted(self) -> list[tuple[int, int]]:
        """(reducer, lane) of connections to open now; each is named once."""
    def opened(self, reducer: int, lane: int, now: float) -> None: ...
    def incoming(self, reducer: int, lane: int, data: bytes, now: float) -> None: ...
    def outgoing(self, reducer: int, lane: int, limit: int, now: float) -> bytes: ...
    def closed(self, reducer: int, lane: int, reason: str, now: float) -> None: ...
    def unreachable(self, reducer: int, lane: int, reason: str, now: float) -> None:
        """The attempt to open a wanted connection has failed; it is wanted again."""
    def to_drop(self) -> list[tuple[int, int]]:
        """Connections to close now; closed() must follow."""
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
    ) -> Operation: ...
    def take_reports(self) -> list[str]: ...
    def counters(self) -> dict[str, int]: ...
    @property
    def route(self) -> dict[str, Any]:
        """route: int; since, live, lanes: lists by slot."""
    @property
    def suspected(self) -> list[int]:
        """Live slots that this worker cannot reach."""
    @property
    def joined(self) -> bool: ...
    @property
    def left(self) -> bool:
        """Whether BYE is on its way."""
    @property
    def run_id(self) -> str: ...
    @property
    def error(self) -> _Failure | None: ...

class Handshake:
    """The worker's side of mode psk for one connection, without its socket."""

    def __init__(self, master: bytes, job: str, lane: int, nonce: bytes) -> None: ...
    @property
    def opening(self) -> bytes: ...
    @property
    def wanted(self) -> int:
        """The most bytes to read now."""
    def received(self, data: bytes) -> bytes:
        """The proof, once the answer is whole; raises EngineError for one that proves nothing."""

def hmac_sha256(key: bytes, data: bytes) -> bytes: ...
def sha256(data: bytes) -> bytes: ...
def key_id(name: str) -> int: ...
def crc32c(data: Buffer, value: int = 0, portable: bool = False) -> int: ...
def msgpack_encode(value: object) -> bytes: ...
def msgpack_decode(data: bytes) -> object:
    """Raises ValueError for what is no control map of ours."""

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
    """Of every chunk: slot, lane, part, first element in the part, elements, sends, receives."""

def narrow(dtype: int, source: Buffer, target: Buffer) -> None: ...
def widen(dtype: int, source: Buffer, target: Buffer) -> None: ...
