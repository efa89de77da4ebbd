"""Carries out the core's outputs in order: sends, folds, finishes, frees, closes, logs.

The results are events for the core, which the shell hands in. An output that raises becomes such an
event too, and the outputs after it are still carried out: they may belong to other runs.

Kernels run inline: they release the GIL, but a lane's loop has one thread, and a chunk of 64 KiB
folds in less time than a hand-over to another thread takes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final, cast

from reducer.core.surface import events
from reducer.core.surface.buffer import Buffer
from reducer.kernels import PART_SHIFT, KernelSet
from reducer.server.data.buffers import SMALLEST, BufferPool, PooledBuffer
from reducer.server.data.connection import Connection
from reducer.server.data.log_shares import LogShares
from reducer.server.data.outbox import Piece
from reducer.server.data.table_kernels import TableKernels
from reducer.server.data.timeline import Timeline
from reducer.wire.header import NO_RANK, pack_header
from reducer.wire.sizes import result_bytes

logger = logging.getLogger("reducer.lane")

_STACK_SIZE: Final = 2_048  # about, in characters
_FLAGS: Final = (1 << PART_SHIFT) - 1
_OF_TABLES: Final = (events.Inspect, events.Fill, events.Apply, events.Copy, events.Average)


@dataclass
class ShellCounters:
    """Numbers that the shell counts, under their names in `LaneNumbers`."""

    accepted: int = 0
    internal_errors: int = 0
    protocol_errors: int = 0
    dropped_before_hello: int = 0
    held_log_lines: int = 0


class Executor:
    """One per lane. ``crowded``: connections with more bytes waiting than their `slack`.

    ``store``: begins to write the documents of the registry; None if there is no registry.
    ``dial``: begins to connect to another reducer; None in a lane without sockets.
    """

    def __init__(
        self,
        kernels: KernelSet,
        pool: BufferPool,
        connections: Mapping[int, Connection],
        counters: ShellCounters,
    ) -> None:
        self._kernels = kernels
        self._pool = pool
        self._connections = connections
        self._counters = counters
        self.crowded: list[Connection] = []
        self.slow_readers = 0
        self.fold_seconds = 0.0
        self.timeline: Timeline | None = None
        self.store: Callable[[events.Store], None] | None = None
        self.dial: Callable[[events.Dial], None] | None = None
        self._log_shares = LogShares()
        self.tables = TableKernels(kernels, pool.take, self._give_back, self._prepare_change)

    def run(self, outputs: list[events.Output]) -> list[events.Effect]:
        """Carry out the outputs in order. Returns the events for the core."""
        came: list[events.Effect] = []
        for output in outputs:
            try:
                if isinstance(output, events.Free):
                    self._free(output)
                elif isinstance(output, events.Send):
                    self._send(output)
                elif isinstance(output, events.SendValue):
                    self._send_value(output)
                elif isinstance(output, events.Fold):
                    came.append(self._fold(output))
                elif isinstance(output, events.Finish):
                    came.append(self._finish(output))
                elif isinstance(output, _OF_TABLES):
                    came.append(self.tables.run(output))
                else:
                    self._others(output)
            except Exception as error:
                failed = failure_of(output, error)
                if failed is not None:
                    came.append(failed)
        return came

    def _others(
        self,
        output: (
            events.Close | events.Behind | events.Store | events.Dial | events.Traced | events.Log
        ),
    ) -> None:
        """Carry out outputs that are off the path of chunks."""
        if isinstance(output, events.Close):
            self._close(output)
        elif isinstance(output, events.Log):
            self._log(output)
        elif isinstance(output, events.Behind):
            connection = self._connections.get(output.session)
            if connection is not None:
                connection.go_on_soon()
        elif isinstance(output, events.Store):
            assert self.store is not None
            self.store(output)
        elif isinstance(output, events.Dial):
            assert self.dial is not None
            self.dial(output)
        elif self.timeline is not None:
            self.timeline.add(output)

    def _send(self, send: events.Send) -> None:
        pieces: list[Piece] = [send.frame]
        length = len(send.frame)
        if send.buffer is not None and send.length:
            pieces = _with_payload(send.frame, ours(send.buffer), send.length)
            length += send.length
        if send.tail:
            pieces.append(send.tail)
            length += len(send.tail)
        for session in send.sessions:
            connection = self._connections.get(session)
            if connection is None:
                continue
            if connection.send(pieces, length) > connection.slack:
                self.crowded.append(connection)

    def _send_value(self, value: events.SendValue) -> None:
        connection = self._connections.get(value.session)
        if connection is None:
            return
        header, crc32c, buffer = value.header, self._kernels.crc32c, ours(value.buffer)
        if buffer.summed != header.length:  # else it was sent to another worker, and is unchanged
            buffer.crc = crc32c(buffer.view[: header.length])
            buffer.summed = header.length
        header.payload_crc = buffer.crc
        frame = pack_header(header, crc32c)
        pieces = _with_payload(frame, buffer, header.length)
        if connection.send(pieces, len(frame) + header.length) > connection.slack:
            self.crowded.append(connection)

    def drop_slow_reader(self, connection: Connection, why: str) -> None:
        """Disconnect a worker that does not read. The other workers never wait for it."""
        if connection.abort(why):
            self.slow_readers += 1
            text = f"session {connection.session} is a {why}"
            self._log(events.Log(0, logging.WARNING, text, {"job": connection.turn.job}))

    def _fold(self, fold: events.Fold) -> events.Folded:
        if fold.acc is not None:
            seen = self._fold_into(fold, fold.acc, fold.acc is fold.parts[0])
            return folded(fold, None, seen)
        taken = self._pool.take(
            fold.sum.count * self._kernels.acc_itemsize(fold.sum.op, fold.sum.dtype)
        )
        try:
            return folded(fold, taken, self._fold_into(fold, taken, True))
        except Exception:
            self._pool.give_back(taken)
            raise

    def _fold_into(self, fold: events.Fold, acc: Buffer, first: bool) -> int:
        started = perf_counter()
        seen = self._kernels.fold(
            fold.sum.op, fold.sum.dtype, fold.sum.count, acc.view, _views(fold.parts), first
        )
        self.fold_seconds += perf_counter() - started
        return seen

    def _finish(self, finish: events.Finish) -> events.Reduced:
        size = result_bytes(finish.sum.dtype, finish.sum.count)
        if finish.out is not None:
            return self._finish_into(finish, None, finish.out.view, size)
        taken = self._pool.take(size)
        try:
            return self._finish_into(finish, taken, taken.view, size)
        except Exception:
            self._pool.give_back(taken)
            raise

    def _finish_into(
        self, finish: events.Finish, taken: Buffer | None, out: memoryview, size: int
    ) -> events.Reduced:
        acc = finish.acc
        started = perf_counter()
        seen = self._kernels.finish(
            finish.sum.op,
            finish.sum.dtype,
            finish.sum.count,
            finish.sum.world,
            None if acc is None else acc.view,
            _views(finish.parts),
            out,
        )
        self.fold_seconds += perf_counter() - started
        return reduced(finish, taken, self._kernels.crc32c(out[:size]), seen)

    def _give_back(self, buffer: Buffer) -> None:
        self._pool.give_back(ours(buffer))

    def _prepare_change(self, buffer: Buffer) -> None:
        self._pool.prepare_change(ours(buffer))

    def _free(self, free: events.Free) -> None:
        failure: Exception | None = None
        for buffer in free.buffers:
            try:
                self._pool.give_back(ours(buffer))
            except Exception as error:
                failure = error
        if failure is not None:
            raise failure

    def _close(self, close: events.Close) -> None:
        connection = self._connections.get(close.session)
        if connection is None:
            return
        if close.at_once:
            connection.cut_off_soon(close.reason)
        else:
            connection.close(close.reason)

    def _log(self, line: events.Log) -> None:
        if line.error is not None:
            self._counters.internal_errors += 1
        if not logger.isEnabledFor(line.level):
            return
        more = ""
        if line.level > logging.DEBUG:  # DEBUG lines are not limited
            size = len(line.text) + (_STACK_SIZE if line.error is not None else 0)
            held = self._log_shares.admit(line.about, size, time.monotonic())
            if held is None:
                self._counters.held_log_lines += 1
                return
            more = f" ({held:,} more lines were held back)" if held else ""
        about = {"about": line.about}
        logger.log(line.level, "%s%s", line.text, more, extra=about, exc_info=line.error)


def folded(fold: events.Fold, taken: Buffer | None, seen: int) -> events.Folded:
    """The event for a Fold for which the kernel has returned `seen`."""
    culprit = _culprit(fold.ranks, seen)
    return events.Folded(fold.run, fold.work, taken, seen & _FLAGS, culprit)


def reduced(finish: events.Finish, taken: Buffer | None, crc: int, seen: int) -> events.Reduced:
    """The event for a Finish for which the kernel has returned `seen`."""
    culprit = _culprit(finish.ranks, seen)
    return events.Reduced(finish.run, finish.work, taken, crc, seen & _FLAGS, culprit)


def _culprit(ranks: Sequence[int], seen: int) -> int:
    part = seen >> PART_SHIFT
    return ranks[part - 1] if part else NO_RANK


def failure_of(output: events.Output, error: Exception) -> events.Effect | None:
    """The event for an output that raised; None for the log line of an internal error."""
    if isinstance(output, _OF_TABLES):
        return events.WorkFailed(output.work, error)
    sessions: Sequence[int] = ()
    if isinstance(output, events.SendValue):
        return events.Failed(0, (output.session,), error)
    if isinstance(output, events.Send):
        sessions = output.sessions
    elif isinstance(output, events.Close) and not output.at_once:
        sessions = (output.session,)
    elif isinstance(output, events.Store):
        return events.Stored(f"{type(error).__name__}: {error}")
    elif isinstance(output, events.Dial):
        return events.DialFailed(output.link, f"{output.address}: {type(error).__name__}: {error}")
    elif isinstance(output, events.Log) and output.error is not None:
        return None
    return events.Failed(output.run, sessions, error)


def _with_payload(frame: bytes, buffer: PooledBuffer, length: int) -> list[Piece]:
    """The frame with its payload. A small payload is copied: unread, it would keep its whole
    buffer.
    """
    if length < SMALLEST:
        return [b"".join((frame, buffer.view[:length]))]
    return [frame, buffer.share(length)]


def ours(buffer: Buffer) -> PooledBuffer:
    """Cast a buffer that the core hands back to the shell's own class."""
    return cast(PooledBuffer, buffer)


def _views(buffers: Iterable[Buffer]) -> list[memoryview]:
    return [buffer.view for buffer in buffers]
