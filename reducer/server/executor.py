"""Carries out what the core asks for, in order: send, fold, finish, free, discard, close, and tell.

Kernels run inline: they release the GIL, but a lane has one thread, and a chunk of 64 KiB folds
in less time than a hand-over to another thread takes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

from reducer import log
from reducer.core import events
from reducer.core.buffer import Buffer
from reducer.kernels import PART_SHIFT, KernelSet
from reducer.server.buffers import BufferPool, PooledBuffer
from reducer.server.protocol import Connection
from reducer.server.timeline import Timeline
from reducer.wire.codes import ITEM_SIZES
from reducer.wire.header import NO_RANK

logger = logging.getLogger("reducer.lane")

WARNING_INTERVAL: Final = 0.1  # seconds

Feed = Callable[[Any], None]


class Executor:
    """One per lane. ``feed`` gives an event back to the core and runs what that returns."""

    def __init__(
        self,
        kernels: KernelSet,
        pool: BufferPool,
        connections: Mapping[int, Connection],
        slow_reader_bytes: int,
        feed: Feed,
    ) -> None:
        self._kernels = kernels
        self._pool = pool
        self._connections = connections
        self._slow_reader_bytes = slow_reader_bytes
        self._feed = feed
        self.slow_readers = 0
        self.fold_seconds = 0.0
        self.timeline: Timeline | None = None
        self._warnings = log.RateLimit(WARNING_INTERVAL)

    def run(self, outputs: list[events.Output]) -> None:
        """Execute in order; a Finish reports back before the next output is executed."""
        for output in outputs:
            if isinstance(output, events.Free):
                self._free(output)
            elif isinstance(output, events.Send):
                self._send(output)
            elif isinstance(output, events.Fold):
                self._fold(output)
            elif isinstance(output, events.Finish):
                self._finish(output)
            elif isinstance(output, events.Discard):
                self._discard(output)
            elif isinstance(output, events.Close):
                self._close(output)
            elif isinstance(output, events.Traced):
                if self.timeline is not None:
                    self.timeline.add(output)
            else:
                self._log(output)

    def _send(self, send: events.Send) -> None:
        parts: list[bytes | memoryview] = [send.frame]
        length = len(send.frame)
        if send.buffer is not None and send.length:
            parts.append(_ours(send.buffer).share(send.length))
            length += send.length
        limit = self._slow_reader_bytes
        for session in send.sessions:
            connection = self._connections.get(session)
            if connection is None:
                continue
            if connection.send(parts, length) > limit and connection.unsent() > limit:
                self.drop_slow_reader(connection, f"{connection.unsent()} bytes are unsent")

    def drop_slow_reader(self, connection: Connection, what: str) -> None:
        """Disconnect one worker that does not read; the others never wait for it."""
        if connection.abort(f"slow reader: {what}"):
            self.slow_readers += 1
            logger.warning("session %d is a slow reader: %s", connection.session, what)

    def _fold(self, fold: events.Fold) -> None:
        # An earlier Fold of the same list may have set it.
        acc = fold.chunk.acc
        first = acc is None or acc is fold.parts[0]
        if acc is None:
            acc = self._pool.take(fold.count * self._kernels.acc_itemsize(fold.op, fold.dtype))
            fold.chunk.acc = acc
        started = time.perf_counter()
        seen = self._kernels.fold(
            fold.op, fold.dtype, fold.count, acc.view, _views(fold.parts), first
        )
        self.fold_seconds += time.perf_counter() - started
        note(fold, seen)

    def _finish(self, finish: events.Finish) -> None:
        acc = finish.chunk.acc
        out = finish.out.view
        started = time.perf_counter()
        seen = self._kernels.finish(
            finish.op,
            finish.dtype,
            finish.count,
            finish.world,
            None if acc is None else acc.view,
            _views(finish.parts),
            out,
        )
        self.fold_seconds += time.perf_counter() - started
        note(finish, seen)
        crc = self._kernels.crc32c(out[: finish.count * ITEM_SIZES[finish.dtype]])
        self._feed(events.Reduced(finish.chunk, crc))

    def _free(self, free: events.Free) -> None:
        self._pool.give_back(_ours(free.buffer))

    def _discard(self, discard: events.Discard) -> None:
        self._pool.forget(_ours(discard.buffer))

    def _close(self, close: events.Close) -> None:
        connection = self._connections.get(close.session)
        if connection is None:
            return
        if close.at_once:
            connection.abort(close.reason)
        else:
            connection.close(close.reason)

    def _log(self, line: events.Log) -> None:
        if line.level != logging.WARNING:
            logger.log(line.level, "%s", line.text, extra={"about": line.about})
            return
        # Strangers can cause warnings: they must not fill a disk.
        held = self._warnings.admit(time.monotonic())
        if held is not None:
            more = f" ({held} more lines were held back)" if held else ""
            logger.warning("%s%s", line.text, more, extra={"about": line.about})


def note(output: events.Fold | events.Finish, seen: int) -> None:
    """Tell the chunk what the kernel has returned for the parts of `output`."""
    part = seen >> PART_SHIFT
    culprit = output.ranks[part - 1] if part else NO_RANK
    output.chunk.note(seen & (1 << PART_SHIFT) - 1, culprit)


def _ours(buffer: Buffer) -> PooledBuffer:
    """What the core hands back is what it was given."""
    return cast(PooledBuffer, buffer)


def _views(buffers: Iterable[Buffer]) -> list[memoryview]:
    return [buffer.view for buffer in buffers]
