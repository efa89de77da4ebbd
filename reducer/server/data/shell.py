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
from reducer.server.data.buffers import BufferPool
from reducer.server.data.connection import Connection, Owner, clock
from reducer.server.data.executor import Executor, ShellCounters, ours
from reducer.server.data.leftovers import Leftovers
from reducer.server.data.silent import Silent
from reducer.server.data.turns import Turns
from reducer.wire.codes import CONTRIBUTION, MessageKind
from reducer.wire.decoder import Frame
from reducer.wire.errors import BadFrameError, ReductionError
from reducer.wire.header import Header

logger = logging.getLogger("reducer.lane")

# Connections that get a tick's frames before the loop serves others: a call of the system each.
# Answers may wait with them; what takes its job's turn goes on with the other answers.
FLUSHED_AT_ONCE: Final = 64
# Connections that are ended before the loop serves others, and those whose loss is handled: 10 to
# 40 us each, and what waits for them is let go of. They are fewer where that takes a job's part of
# the pass. All ranks of a run may end together, or of a host.
ENDED_AT_ONCE: Final = 32
# 100 us each. The first frames of so few are read before they count as silent.
NEWCOMERS_AT_ONCE: Final = 4
# A write of less is not timed, as that would cost a part of it: it takes so many seconds of a turn.
TIMED_BYTES: Final = 4_096
WRITE_SECONDS: Final = 0.000_005
# What the kernel did not take at once libuv writes as soon as the kernel does, and times nothing:
# so many seconds for each byte, 80 us for 256 KiB.
LATER_BYTE_SECONDS: Final = 3e-10


class LaneShell(Owner):
    """Feeds the events of a lane's connections to the core, and carries out the core's outputs."""

    def __init__(
        self,
        lane: Lane,
        kernels: KernelSet,
        pool: BufferPool,
        slow_reader_seconds: float,
    ) -> None:
        super().__init__(kernels.crc32c, Turns())
        self.connections: dict[int, Connection] = {}
        self.counters = ShellCounters()
        self.leftovers = Leftovers()
        self._lane = lane
        self._pool = pool
        self._slow_reader_seconds = slow_reader_seconds
        self._next_session = 1
        self._silent = Silent()
        self._unflushed: list[Connection] = []
        self._unflushed_later: list[Connection] = []
        self._ending: list[Connection] = []
        self._losing: list[Connection] = []
        self._next_flush: asyncio.Handle | None = None
        self._ticks = False
        self._failure: Exception | None = None  # of the end of a run: the lane cannot go on
        self.executor = Executor(kernels, pool, self.connections, self.counters)

    def connection(self, permit: Permit | None = None) -> Connection:
        """A protocol object for a socket that the main process has passed on.

        ``permit``: what its worker has proven that it may join; None: anything.
        """
        session = self._next_session
        self._next_session += 1
        return Connection(self, session, permit)

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
                    connection.note_deaf(f"{held:,} bytes wait for it, over its {room:,}")
            except Exception as error:
                self.failed(connection, error)

    @property
    def newcomers_at_once(self) -> int:
        """Sockets to take before the loop serves others: fewer where their HELLOs wait."""
        return 1 if self._silent.are_many else NEWCOMERS_AT_ONCE

    def opened(self, connection: Connection) -> None:
        self.counters.accepted += 1
        oldest = self._silent.in_the_way()
        if oldest is not None:
            self.counters.silent_dropped += 1
            dropped = self.connections[oldest]
            self._silent.remove(oldest, dropped.permit)
            dropped.abort("no HELLO came, and others wait for the place")
        self.connections[connection.session] = connection
        self._silent.add(connection.session, connection.permit)
        self.feed(events.Opened(connection.session, connection.permit))

    def place(self, connection: Connection, header: Header) -> events.Contributed | None:
        """A contribution with the buffer that it is to be read into; None: nowhere."""
        if header.kind != CONTRIBUTION:
            raise BadFrameError("a worker sent a RESULT; only a lane does")
        unread = 0 if connection.unread <= connection.slack else connection.held()
        admission = self._lane.admit(connection.session, header, unread)
        if admission is None:
            return None
        buffer = self._pool.take(header.length)
        return events.Contributed(connection.session, header, buffer, admission)

    def admit_long(self, connection: Connection, header: Header) -> None:
        """Whether memory may be taken for a long control frame."""
        self._lane.admit_long(connection.session, header, connection.held())

    def contributed(
        self,
        connection: Connection,
        header: Header,
        arrived: events.Contributed | None,
        now: float,
    ) -> None:
        """A contribution has arrived; `arrived` is None if its bytes were thrown away."""
        if arrived is None:
            arrived = events.Contributed(connection.session, header, None)
        self._feed(arrived, now)

    def control(self, connection: Connection, frame: Frame, now: float) -> None:
        session, kind = connection.session, frame.header.kind
        if kind == MessageKind.STATS and not connection.may_ask():
            return
        self._feed(events.ControlReceived(session, frame.header, frame.payload), now)
        if kind == MessageKind.STATS:
            connection.answered()
        elif kind == MessageKind.HELLO:
            self._named(connection, self._lane.job_named_by(session))

    def _named(self, connection: Connection, job: str) -> None:
        """A HELLO has come. Of a job that cannot be named it is as good as none: see Silent."""
        session = connection.session
        if job and self._silent.remove(session, connection.permit) and session in self.connections:
            connection.name(job)

    def world_size_of(self, connection: Connection) -> int:
        """How many ranks the connection's run has; 0 where it is in none."""
        return self._lane.world_size_of(connection.session)

    def catch_up(self, connection: Connection) -> None:
        """Do the next part of what its run is behind with, if there is any."""
        if self._lane.behind(connection.session):
            self.feed(events.CatchUp(connection.session))
            connection.go_on_soon()

    def flush_soon(self, connection: Connection) -> None:
        """Once the loop has read all that has come: one call of it for all connections.

        What a tick sends, often the same to thousands, lets the answers to others go first.
        """
        if self._ticks and connection.can_wait:
            return  # it is there: a tick may send it many frames
        connection.can_wait = self._ticks
        (self._unflushed_later if self._ticks else self._unflushed).append(connection)
        self._flush_on()

    def _flush_on(self) -> None:
        """Let the loop come to the next flush; the tick asks too, should this have failed."""
        if self._next_flush is not None:
            return
        waiting = self._unflushed or self._unflushed_later or self._ending or self._losing
        if waiting or self.leftovers.are_due:
            self._next_flush = asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._next_flush = None
        self.turns.served_all()
        self._flush_answers()
        if self._unflushed_later:
            self._flush_some_later()
        if self._ending:
            self._end_some(self._ending, Connection.end)
        if self._losing:
            self._end_some(self._losing, Connection.lose)
        if self.leftovers.are_due:
            self._throw_away_some()
        self._flush_on()

    def _flush_answers(self) -> None:
        """Send as many answers of each job as its turn allows; then the loop serves others."""
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
            self._unflushed += meanwhile  # whoever is flushed already has nothing left
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
        """A run of thousands of workers ends a part at a time."""
        self._ending.append(connection)
        self._flush_on()

    def lose_soon(self, connection: Connection) -> None:
        """The ranks of a host may all be lost at once."""
        self._losing.append(connection)
        self._flush_on()

    def throw_away_soon(self, connection: Connection) -> None:
        """All ranks of a run may end together, and send on."""
        self.leftovers.add(connection)
        self._flush_on()

    def thrown_away(self) -> None:
        self.leftovers.have_read()

    def _throw_away_some(self) -> None:
        for connection in self.leftovers.take():
            try:
                connection.read_on()
            except Exception as error:
                connection.abort("it cannot be read")
                self._note_bug(connection, error)

    def _end_some(self, waiting: list[Connection], end: Callable[[Connection], None]) -> None:
        """The first of those that wait for their `end`, until a job's part of the pass is over."""
        until = clock() + self.turns.seconds
        ended = 0
        for connection in waiting[:ENDED_AT_ONCE]:
            try:
                end(connection)
            except Exception as error:
                connection.abort("it cannot be ended")
                self._note_bug(connection, error)
            ended += 1
            if clock() >= until:
                break
        del waiting[:ended]  # some may have asked for another turn

    def may_write(self, connection: Connection) -> bool:
        """Whether the connection's job has time left for a write in this pass of the loop."""
        return connection.turn.written < self.turns.seconds

    def flush(self, connection: Connection) -> None:
        """Frames to one connection; one that does not take them ends alone, and its rank is back.

        Nothing more may be written there, as a frame may be cut.
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
            connection.abort("it cannot be written")
            self._note_bug(connection, error)

    def _timed_flush(self, connection: Connection) -> float:
        """The seconds that it takes of its job's turn, now and later."""
        before = connection.backlog if connection.is_full else 0
        started = clock()
        connection.flush()
        seconds = clock() - started
        if connection.is_full:
            seconds += max(0, connection.backlog - before) * LATER_BYTE_SECONDS
        return seconds

    def broken(self, connection: Connection, error: ReductionError) -> None:
        """The peer broke the rules: its session ends, the others go on."""
        self.counters.protocol_errors += 1
        if isinstance(error, UnreadError):
            connection.note_deaf(str(error))
        self._end(connection, error)

    def failed(self, connection: Connection, error: Exception) -> None:
        """A bug of ours showed in this session: its run ends, the others go on."""
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

    def lost(self, connection: Connection, reason: str) -> None:
        session, run = connection.session, 0
        try:
            self._silent.remove(session, connection.permit)
            self.connections.pop(session, None)
            run = self._lane.run_of(session)
            self.turns.leave(connection.turn, connection)
            self.feed(events.Lost(session, reason))
        except Exception as error:
            self._end_run(connection, run, error)
            self._lose_again(session, reason)

    def _lose_again(self, session: int, reason: str) -> None:
        """Tell the core again of a session's end.

        The core keeps the memory of a run until it knows that all its sessions have ended."""
        try:
            self.feed(events.Lost(session, reason))
        except Exception as error:
            self._failure = error

    def _end_run(self, connection: Connection, run: int, error: Exception) -> None:
        """What the core should know of a session it does not: the run cannot go on."""
        self._note_bug(connection, error)
        try:
            self.feed(events.Failed(run, (), error))
        except Exception as again:
            self._failure = again

    def release(self, arriving: events.Contributed) -> None:
        """Its end does not come."""
        if arriving.buffer is not None:
            self._pool.give_back(ours(arriving.buffer))

    def tick(self) -> None:
        """Every 50 ms: the core's timers, readers that are stuck, buffers sent meanwhile.

        Raises what has kept a run from being ended: somebody would wait for ever in it.
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
        if self._next_flush is not None:  # a callback that has failed would be the last
            self._next_flush.cancel()
            self._next_flush = None
        self._flush_on()
        self.turns.go_on()
        self._pool.tick(now)

    def _watch(self, connection: Connection, now: float) -> None:
        """Tell the core which sessions sent bytes, and cut off the sessions that do not read."""
        if connection.bytes_in != connection.bytes_noted:
            connection.bytes_noted = connection.bytes_in
            self._lane.heard(connection.session, now)
        if connection.is_full and not connection.backlog:  # the loop lacked memory to say so
            connection.resume_writing()
        stuck = connection.stuck_for(now)
        if stuck > self._slow_reader_seconds:
            connection.note_deaf(f"nothing was read for {stuck:.1f} s")

    def _note_bug(self, connection: Connection, error: Exception) -> None:
        self.counters.internal_errors += 1
        try:  # noqa: SIM105  # suppress() takes memory, which may be what has ended
            logger.error("a bug of ours, session %d ends", connection.session, exc_info=error)
        except Exception:
            pass
