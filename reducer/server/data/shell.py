"""The I/O shell around the core of one lane: connections in, events to the core, outputs out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from reducer.core.lane import Lane
from reducer.core.runs.flow import UnreadError
from reducer.core.surface import events
from reducer.core.surface.permit import Permit
from reducer.kernels import KernelSet
from reducer.server.data.before_hello import BeforeHello
from reducer.server.data.buffers import BufferPool
from reducer.server.data.connection import Connection, Owner, clock
from reducer.server.data.executor import Executor, ShellCounters, ours
from reducer.server.data.leftovers import Leftovers
from reducer.server.data.turns import Turns
from reducer.wire.codes import CONTRIBUTION, LOG, PUSH, MessageKind
from reducer.wire.decoder import Frame
from reducer.wire.errors import BadFrameError, ReductionError
from reducer.wire.header import Header

logger = logging.getLogger("reducer.lane")

# Connections that get a tick's frames before the loop serves others: each needs a system call.
# Answers in the same connection may wait with these frames; answers that do not fit in the job's
# turn join the other answers.
FLUSHED_AT_ONCE: Final = 64
# The most connections that are ended, or whose end is handled, before the loop serves others. Each
# takes 10 to 40 us, with its waiting frames. There are fewer if the job's part of the pass is over.
# All ranks of a run or of a host may end together.
ENDED_AT_ONCE: Final = 32
# New connections before the loop serves others: 100 us each. Few, so that their first frames are
# read before another connection needs their place.
NEWCOMERS_AT_ONCE: Final = 4
# A smaller write is not timed, because timing takes a part of the time itself. It counts as
# WRITE_SECONDS of the turn.
TIMED_BYTES: Final = 4_096
_CHUNKS: Final = (CONTRIBUTION, PUSH, LOG)
WRITE_SECONDS: Final = 0.000_005
# libuv writes the bytes that the kernel did not take as soon as the kernel takes them, untimed.
# Each of them counts as this many seconds: 80 us for 256 KiB.
LATER_BYTE_SECONDS: Final = 3e-10


class LaneShell(Owner):
    """Feeds the events of a lane's connections to the core, and carries out the core's outputs."""

    def __init__(
        self,
        lane: Lane,
        kernels: KernelSet,
        pool: BufferPool,
        slow_reader_timeout: float,
    ) -> None:
        super().__init__(kernels.crc32c, Turns())
        self.connections: dict[int, Connection] = {}
        self.counters = ShellCounters()
        self.leftovers = Leftovers()
        self._lane = lane
        self._pool = pool
        self._slow_reader_timeout = slow_reader_timeout
        self._next_session = 1
        self._before_hello = BeforeHello()
        self._unflushed: list[Connection] = []
        self._unflushed_later: list[Connection] = []
        self._ending: list[Connection] = []
        self._disconnected: list[Connection] = []
        self._next_flush: asyncio.Handle | None = None
        self._ticks = False
        self._failure: Exception | None = None  # while a run was ended: the lane cannot continue
        self.executor = Executor(kernels, pool, self.connections, self.counters)

    def connection(self, permit: Permit | None = None) -> Connection:
        """A protocol object for a socket that the main process has passed on.

        ``permit``: what the worker has proven that it may join; None: any job.
        """
        session = self._next_session
        self._next_session += 1
        return Connection(self, session, permit)

    def link(self, dial: events.Dial) -> Connection:
        """A protocol object for a connection that this lane has opened, and whose peer has proven
        itself. Dialed is fed when its transport is made.
        """
        session = self._next_session
        self._next_session += 1
        return Connection(self, session, None, dial.link, dial.job)

    def feed(self, event: Any) -> None:
        """Feed an event to the core and carry out the outputs."""
        self._feed(event, clock())

    def _feed(self, event: Any, now: float) -> None:
        outputs = self._lane.handle(event, now)
        if outputs:
            self.carry_out(outputs)

    def carry_out(self, outputs: list[events.Output]) -> None:
        """Carry out the outputs in order. Then feed the core the result of each, one by one."""
        effects = self.executor.run(outputs)
        while effects:
            outputs = self._lane.handle(effects.pop(0), clock())
            if outputs:
                effects = self.executor.run(outputs) + effects
        if self.executor.crowded:
            self._look_at_crowded()

    def _look_at_crowded(self) -> None:
        """Cut off the sessions that have more unread bytes than the limit allows."""
        crowded, self.executor.crowded = self.executor.crowded, []
        for connection in crowded:
            try:
                connection.slack, room = self._lane.unread_room(connection.session)
                held = connection.held()
                if held > room:
                    connection.note_slow_reader(
                        f"{held:,} bytes wait for the worker, above its limit of {room:,}"
                    )
            except Exception as error:
                self.failed(connection, error)

    @property
    def newcomers_at_once(self) -> int:
        """How many sockets to take before the loop serves others; one if HELLOs already wait."""
        return 1 if self._before_hello.are_many else NEWCOMERS_AT_ONCE

    def opened(self, connection: Connection) -> None:
        if connection.link:
            self.connections[connection.session] = connection
            self.feed(events.Dialed(connection.link, connection.session))
            return
        self.counters.accepted += 1
        oldest = self._before_hello.to_displace()
        if oldest is not None:
            self.counters.dropped_before_hello += 1
            dropped = self.connections[oldest]
            self._before_hello.remove(oldest, dropped.permit)
            dropped.abort("no HELLO came, and another connection needs the place")
        self.connections[connection.session] = connection
        self._before_hello.add(connection.session, connection.permit)
        self.feed(events.Opened(connection.session, connection.permit))

    def place(self, connection: Connection, header: Header) -> events.Contributed | None:
        """A contribution, with the buffer that it is to be read into; None: discard its payload."""
        if header.kind not in _CHUNKS:
            raise BadFrameError(f"a worker sent {MessageKind(header.kind).name}; only a lane does")
        unread = 0 if connection.unread <= connection.slack else connection.held()
        admission = self._lane.admit(connection.session, header, unread)
        if admission is None:
            return None
        buffer = self._pool.take(header.length)
        return events.Contributed(connection.session, header, buffer, admission)

    def admit_long(self, connection: Connection, header: Header) -> None:
        """Raises if no memory may be taken for a long control frame."""
        self._lane.admit_long(connection.session, header, connection.held())

    def contributed(
        self,
        connection: Connection,
        header: Header,
        arrived: events.Contributed | None,
        now: float,
    ) -> None:
        """A contribution has arrived; `arrived` is None if its payload is empty or discarded."""
        if arrived is None:
            arrived = events.Contributed(connection.session, header, None)
        self._feed(arrived, now)

    def control(self, connection: Connection, frame: Frame, now: float) -> None:
        session, kind = connection.session, frame.header.kind
        if kind == MessageKind.STATS and not connection.may_ask():
            return
        self._feed(events.ControlReceived(session, frame.header, frame.payload), now)
        if kind == MessageKind.STATS:
            connection.note_stats_answer()
        elif kind in (MessageKind.HELLO, MessageKind.REGISTRY, MessageKind.TABLE):
            self._named(connection, self._lane.job_named_by(session))

    def _named(self, connection: Connection, job: str) -> None:
        """A HELLO has come, or a call of the registry. If it named no job or was refused, the
        session keeps its place among those before their HELLO.
        """
        session = connection.session
        if not job or not self._before_hello.remove(session, connection.permit):
            return
        if session in self.connections:
            connection.set_job(job)

    def world_size_of(self, connection: Connection) -> int:
        """How many ranks the connection's run has; 0 if it is in no run."""
        return self._lane.world_size_of(connection.session)

    def catch_up(self, connection: Connection) -> None:
        """Do the next part of the work that the connection's run is behind with, if any."""
        if self._lane.behind(connection.session):
            self.feed(events.CatchUp(connection.session))
            connection.go_on_soon()

    def flush_soon(self, connection: Connection) -> None:
        """Flush after the loop has read everything that has come, in one call for all connections.

        Frames of a tick, often the same for thousands of connections, wait until answers were sent.
        """
        if self._ticks and connection.can_wait:
            return  # the connection is queued already
        connection.can_wait = self._ticks
        (self._unflushed_later if self._ticks else self._unflushed).append(connection)
        self._flush_on()

    def _flush_on(self) -> None:
        """Schedule the next flush. The tick calls this too, in case scheduling has failed."""
        if self._next_flush is not None:
            return
        waiting = self._unflushed or self._unflushed_later or self._ending or self._disconnected
        if waiting or self.leftovers.are_due:
            self._next_flush = asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._next_flush = None
        self.turns.end_pass()
        self._flush_answers()
        if self._unflushed_later:
            self._flush_some_later()
        if self._ending:
            self._end_some(self._ending, Connection.end)
        if self._disconnected:
            self._end_some(self._disconnected, Connection.clean_up)
        if self.leftovers.are_due:
            self._discard_some()
        self._flush_on()

    def _flush_answers(self) -> None:
        """Send as many answers of each job as its turn allows; the rest follows in later passes."""
        waiting = self._unflushed
        try:
            self._unflushed = []
            for connection in waiting:
                if self.may_write(connection):
                    self.flush(connection)
                else:
                    self._unflushed.append(connection)
        except Exception:
            meanwhile, self._unflushed = self._unflushed, waiting
            self._unflushed += meanwhile  # connections that were flushed have nothing left
            raise
        finally:
            for connection in waiting:
                connection.turn.written = 0.0

    def _flush_some_later(self) -> None:
        for connection in self._unflushed_later[:FLUSHED_AT_ONCE]:
            connection.can_wait = False
            if self.may_write(connection):
                self.flush(connection)
            else:
                self._unflushed.append(connection)
        del self._unflushed_later[:FLUSHED_AT_ONCE]

    def end_soon(self, connection: Connection) -> None:
        """Call `Connection.end` in a later pass: a run of thousands of workers ends in parts."""
        self._ending.append(connection)
        self._flush_on()

    def clean_up_soon(self, connection: Connection) -> None:
        """Call `Connection.clean_up` in a later pass: a whole host may disconnect at once."""
        self._disconnected.append(connection)
        self._flush_on()

    def discard_soon(self, connection: Connection) -> None:
        """Discard in a later pass: all ranks of a run may end together and keep sending."""
        self.leftovers.add(connection)
        self._flush_on()

    def discarded(self) -> None:
        self.leftovers.count_read()

    def _discard_some(self) -> None:
        for connection in self.leftovers.take():
            try:
                connection.resume_reading()
            except Exception as error:
                connection.abort("reading from it failed")
                self._note_bug(connection, error)

    def _end_some(self, waiting: list[Connection], end: Callable[[Connection], None]) -> None:
        """Call `end` for the first waiting connections, until a job's part of the pass is over."""
        until = clock() + self.turns.seconds
        ended = 0
        for connection in waiting[:ENDED_AT_ONCE]:
            try:
                end(connection)
            except Exception as error:
                connection.abort("ending it failed")
                self._note_bug(connection, error)
            ended += 1
            if clock() >= until:
                break
        del waiting[:ended]  # `end` may have queued connections again

    def may_write(self, connection: Connection) -> bool:
        """Whether the connection's job has time left for a write in this pass of the loop."""
        return connection.turn.written < self.turns.seconds

    def flush(self, connection: Connection) -> None:
        """Send frames on one connection. If this fails, only this connection ends.

        Nothing more may be written on it, because a frame may be cut. Its rank reconnects.
        """
        try:
            seconds = WRITE_SECONDS
            if connection.waiting < TIMED_BYTES:
                connection.flush()
            else:
                seconds = self._timed_flush(connection)
            connection.turn.written += seconds
            connection.spend(seconds)
        except Exception as error:
            connection.abort("writing to it failed")
            self._note_bug(connection, error)

    def _timed_flush(self, connection: Connection) -> float:
        """Flush, and return how many seconds of the job's turn this takes, now and later."""
        before = connection.backlog if connection.is_full else 0
        started = clock()
        connection.flush()
        seconds = clock() - started
        if connection.is_full:
            seconds += max(0, connection.backlog - before) * LATER_BYTE_SECONDS
        return seconds

    def broken(self, connection: Connection, error: ReductionError) -> None:
        """The peer broke the protocol: its session ends; other sessions continue."""
        self.counters.protocol_errors += 1
        if isinstance(error, UnreadError):
            connection.note_slow_reader(str(error))
        self._end(connection, error)

    def failed(self, connection: Connection, error: Exception) -> None:
        """An internal error concerns this session: its run ends; other runs continue."""
        self._end(connection, error)

    def _end(self, connection: Connection, error: Exception) -> None:
        run = self._lane.run_of(connection.session)
        try:
            self.feed(events.Broken(connection.session, error))
        except Exception as again:
            self._end_run(connection, run, again)
        if not connection.is_closing():  # the decoder must not be used any more
            connection.abort("internal error")

    def drop_slow_reader(self, connection: Connection, why: str) -> None:
        self.executor.drop_slow_reader(connection, why)

    def disconnected(self, connection: Connection, reason: str) -> None:
        session, run = connection.session, 0
        try:
            self._before_hello.remove(session, connection.permit)
            self.connections.pop(session, None)
            run = self._lane.run_of(session)
            self.turns.leave(connection.turn, connection)
            self.feed(events.Disconnected(session, reason))
        except Exception as error:
            self._end_run(connection, run, error)
            self._report_disconnect_again(session, reason)

    def _report_disconnect_again(self, session: int, reason: str) -> None:
        """Tell the core again that a session has ended.

        The core keeps the memory of a run until it knows that all sessions of the run have ended.
        """
        try:
            self.feed(events.Disconnected(session, reason))
        except Exception as error:
            self._failure = error

    def _end_run(self, connection: Connection, run: int, error: Exception) -> None:
        """The core may not know what has happened to a session: end the session's run."""
        self._note_bug(connection, error)
        try:
            self.feed(events.Failed(run, (), error))
        except Exception as again:
            self._failure = again

    def release(self, arriving: events.Contributed) -> None:
        """The contribution will not be complete: take its buffer back."""
        if arriving.buffer is not None:
            self._pool.give_back(ours(arriving.buffer))

    def tick(self) -> None:
        """Every 50 ms: the core's timers, stuck readers, buffers that were sent.

        Raises the error that has kept a run from being ended: its ranks would wait forever.
        """
        if self._failure is not None:
            raise self._failure
        now = clock()
        self.leftovers.tick()
        for connection in list(self.connections.values()):
            try:
                self._watch(connection, now)
            except Exception as error:
                self.failed(connection, error)
        self._ticks = True
        try:
            self.feed(events.Tick())
        finally:
            self._ticks = False
        if self._next_flush is not None:  # the callback may have failed
            self._next_flush.cancel()
            self._next_flush = None
        self._flush_on()
        self.turns.go_on()
        self._pool.tick(now, self._lane.room_for_chunks)

    def _watch(self, connection: Connection, now: float) -> None:
        """Tell the core that the session has sent bytes; cut off a worker that does not read."""
        if connection.bytes_in != connection.bytes_noted:
            connection.bytes_noted = connection.bytes_in
            self._lane.heard(connection.session, now)
        if connection.is_full and not connection.backlog:  # the loop lost `resume_writing`
            connection.resume_writing()
        stuck = connection.stuck_for(now)
        if stuck > self._slow_reader_timeout:
            connection.note_slow_reader(f"nothing was read for {stuck:.1f} s")

    def _note_bug(self, connection: Connection, error: Exception) -> None:
        self.counters.internal_errors += 1
        try:  # noqa: SIM105  # suppress() takes memory, which may be what has ended
            logger.error("internal error, session %d ends", connection.session, exc_info=error)
        except Exception:
            pass
