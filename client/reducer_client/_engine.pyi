"""The native part of reducer_client: a worker of a job, with its thread and sockets.

PROTOCOL.md defines the numbers of collectives, ops, dtypes and error codes. A payload is any
C-contiguous buffer of exactly the size in bytes that the call needs.
"""

from collections.abc import Sequence
from typing import TypeAlias

from typing_extensions import Buffer

_Failure: TypeAlias = tuple[int, str, int, str, str, int]
_ChunkTable: TypeAlias = list[tuple[int, int]]

class EngineError(Exception):
    """``args`` is (code, message, rank, reason, key, round); -1 or "" means that there is none."""

    args: _Failure

class Operation:
    """One submitted round. Only ``submit`` makes operations."""

    @property
    def done(self) -> bool: ...
    @property
    def error(self) -> _Failure | None:
        """The fields of an EngineError if the operation has failed, else None."""
    @property
    def arrived(self) -> int:
        """Elements from the start of the result that have arrived, as of the last `part`."""
    @property
    def flags(self) -> int:
        """The flags OVERFLOW, NAN and NONFINITE of the result; 0 until the operation is done."""
    @property
    def culprit(self) -> tuple[int, int] | None:
        """(rank, chunk): the lowest rank that contributed NaN or Inf, and the first such chunk."""
    @property
    def sets(self) -> list[tuple[int, int]]:
        """(elements, epoch) in the order of the elements: whose contributions they hold.

        Empty until the operation is done, and in a run that is not elastic.
        """
    @property
    def key(self) -> str: ...
    @property
    def round(self) -> int: ...

class Engine:
    """One worker of one job: sockets, their threads, many operations at once."""

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
        io_threads: int = 0,
        weights: Sequence[int] = (),
        hosted: Sequence[Sequence[int]] = (),
        hosted_key: bytes = b"",
        min_reducers: int = 1,
        grace: float = 5.0,
        elastic: bool = False,
        incarnation: bytes = b"",
    ) -> None:
        """Open no connection yet.

        `key` is the job's key of 32 bytes; b"" means none. The engine zeroes its copy at the end.
        The last `len(hosted)` addresses are of hosted reducers, each with the ranks on its machine,
        ascending. They use `hosted_key`; all others use `key` or `tls`.
        With `elastic`, a lost rank does not end the run (`wait_lost`). `incarnation` names this
        start of the process by 16 bytes; b"" means random ones.
        `tls` names the PEM files of the certificate, its private key and the CA. `timeline` is the
        folder for a trace file of the rounds; "" means none.

        Raises ValueError if PROTOCOL.md does not allow an option or the trace file cannot be made,
        and EngineError if `tls` is given and the machine has no OpenSSL.
        """
    def connect(self, timeout: float) -> bool:
        """Whether every lane has welcomed this rank, after `timeout` seconds at the latest.

        If not, call again. Raises EngineError.
        """
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
        filled: int | None = None,
        part: int = 0,
        slices: Buffer | None = None,
        slice: int = 0,
        gate: Buffer | None = None,
    ) -> Operation:
        """Submit one round.

        `source` is copied before the call returns. If `source` is `target`, the engine may instead
        read it until the operation is done. The engine writes to `target` until then. With `wide`,
        source and target are float32 and `dtype` is the 16-bit type or the blocks on the wire. With
        `notify`, `next_event` returns the operation when it is done.

        For blocks: `residual`, float32 with as many elements as `source`, is added to the source,
        and holds what the blocks lack of the sum when the call returns; if the round fails, a part
        of it may have changed. `stochastic` rounds at random, the same bits each time.

        For an all-reduce in place: with `filled`, only the first elements are there yet, and `fill`
        announces the others. With `part` and `notify`, `next_event` also returns the operation
        whenever that many more elements of the result have arrived.

        `slices`, `slice` and `gate` are those of `DeviceWords`: 4 aligned bytes each, and a number.
        `source` is then read until the operation is done.

        Raises ValueError or BufferError for bad arguments, and EngineError when the group has
        ended.
        """
    def fill(self, operation: Operation, elements: int) -> None:
        """The array of an operation with `filled` holds this many of its elements."""
    def wait(self, operation: Operation, timeout: float | None = None) -> bool:
        """Return True as soon as the operation is done, False after `timeout` seconds.

        Signal handlers run during the wait. One of the threads that wait may do the engine's I/O.
        """
    def next_event(self, timeout: float) -> tuple[Operation, bool] | None:
        """What has happened next to an operation that was submitted with `notify`.

        (operation, True) when the operation is done; (operation, False) when a part of its result
        has arrived. None after `timeout` seconds, or when the engine has ended.
        """
    def take_reports(self) -> list[str]: ...
    def wait_lost(self, timeout: float) -> list[tuple[int, str, str]]:
        """(rank, "lost" or "left", message) of the ranks of an elastic run that are lost.

        Waits up to `timeout` seconds for the first.
        """
    def view_without(self, ranks: Sequence[int], epoch: int) -> bytes:
        """The view without these ranks too, for the registry to decide on; all streams move."""
    def install(self, view: bytes) -> None:
        """Go on in a view that the registry has decided. Raises EngineError if it does not fit.

        If this rank is not in it, the group has failed.
        """
    def view_bytes(self) -> bytes:
        """The present view, as `install` takes it."""
    def promise(self, epoch: int) -> None:
        """Take no view of an epoch below this one but the present view, wherever it comes from."""
    def lose(self, rank: int, message: str) -> None:
        """End the run here, because another rank is lost. Every call raises PeerLostError."""
    @property
    def view(self) -> list[tuple[int, int]]:
        """(epoch, rank) of each rank that is out, in order."""
    def stats(self, timeout: float) -> list[dict[str, object]]:
        """The STATS map of every lane, with "reducer", "slot" and "lane" added.

        Raises EngineError if a lane does not answer in time or the group has failed.
        """
    def close(self, timeout: float) -> None:
        """Wait until all results are stable, leave and end the thread. Abort after `timeout`."""
    def abort(self, timed_out: str = "") -> None:
        """Fail all open operations and end the thread. All ranks learn the reason `timed_out`."""
    def counters(self) -> dict[str, int]: ...
    @property
    def error(self) -> _Failure | None:
        """The fields of an EngineError if the group has failed, else None."""
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
        """How many of `connections` are Unix sockets."""
    @property
    def forked(self) -> bool:
        """Whether this process was forked from the process that made the engine."""
