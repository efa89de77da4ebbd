"""One partition of the tables of a job and run on this lane: as the primary, or as a backup."""

from __future__ import annotations

import logging
from typing import Final

from reducer.core.limits.budget import LEAST_FRAMES
from reducer.core.surface.control_frames import control_frame
from reducer.core.surface.events import Close, Free, Log, Output, Send
from reducer.core.tables import frames
from reducer.core.tables.chain import Chain, Durable
from reducer.core.tables.context import Context
from reducer.core.tables.link import Link
from reducer.core.tables.place import Place
from reducer.core.tables.reads import Reads
from reducer.core.tables.replica import Replica
from reducer.core.tables.spec import Spec
from reducer.core.tables.stepping import NO_WORKER, Stepping
from reducer.core.tables.table import Table, reserve_of, reserve_of_contributor
from reducer.core.tables.updates import Updates
from reducer.core.tables.workers import READER, Seat, Worker, Workers
from reducer.wire import messages
from reducer.wire.codes import ErrorCode
from reducer.wire.errors import ProtocolError
from reducer.wire.table_messages import Notice, TableCall

MAX_TABLES: Final = 1_024  # of a job and run
# Seconds that workers have, beyond those of a lost connection, to find a lane that leads now.
GRACE: Final = 1.5


class Holdings:
    """`by_key`: the tables by the id of their names. `replica`: while this lane is a backup."""

    def __init__(
        self, context: Context, job: str, run_id: str, partition: int, partitions: int
    ) -> None:
        self.job = job
        self.run_id = run_id
        self.partition = partition
        self.partitions = partitions
        self.workers = Workers()
        self.by_key: dict[int, Table] = {}
        self.seats: set[int] = set()  # connections, readers too
        self.dropped: set[int] = set()  # ids; frames about them are ignored
        self.chain = Chain(context.crc)
        self.replica: Replica | None = None
        self.is_retired = False
        self._context = context
        self.link = Link(context, self)
        self.reads = Reads(context)
        self.updates = Updates(context, self.reads, self.chain)
        self.stepping = Stepping(context, self.reads, self.chain)

    # --- terms ----------------------------------------------------------------------------------

    def lead(
        self, term: int, backup: Place | None, is_filling: bool, now: float, out: list[Output]
    ) -> None:
        """A worker brings a newer term, in which this lane is the primary."""
        if self.replica is not None:
            self._promote(term, now, out)
        if self.chain.begin_term(term, backup, is_filling, now, out):
            self.link.reset(now, out)
        for table in self.by_key.values():
            if table.owner is not None:
                table.owner.begin_term(term)

    def _promote(self, term: int, now: float, out: list[Output]) -> None:
        """The backup becomes the primary. Its workers connect, or are put out in time."""
        replica, self.replica = self.replica, None
        assert replica is not None
        if replica.session:
            out.append(Close(0, replica.session, "this lane leads now", at_once=True))
        for worker in self.workers.all():
            worker.gone_at = now + GRACE
        text = f"job {self.job!r} partition {self.partition}: leads from term {term} on"
        out.append(Log(0, logging.WARNING, text, {"job": self.job}))

    def retire(self, reason: str, out: list[Output]) -> None:
        """Another lane leads: end all connections, and forget the tables."""
        self.is_retired = True
        self.chain.drop(out)
        self.forget_tables(out)
        error = messages.Error(int(ErrorCode.EVICTED), reason[:1_000])
        if self.seats:
            frame = control_frame(error, self._context.crc)
            out.append(Send(0, tuple(self.seats), frame, None, 0))
            out += [Close(0, session, reason) for session in self.seats]

    def forget_tables(self, out: list[Output]) -> None:
        for table in list(self.by_key.values()):
            self._remove(table, out)

    def tell(self, news: Notice, out: list[Output]) -> None:
        sessions = self.workers.sessions()
        if sessions:
            out.append(frames.notice(news, sessions, self._context.crc))

    # --- connections ----------------------------------------------------------------------------

    def enter(self, seat: Seat, now: float, out: list[Output]) -> None:
        """Take in a connection. Raises JoinError, or QuotaError if there is no memory for it."""
        self._context.budget.take(self.job, room_of(seat.credit), "a connection for tables")
        self.seats.add(seat.session)
        if seat.worker == READER:
            return
        worker, replaced, is_new = self.workers.enter(seat)
        if replaced is not None:
            out.append(Close(0, replaced.session, f"{seat} has connected again", at_once=True))
        if is_new:
            self.seal(worker.number, worker.incarnation)
            call = TableCall("open", worker=worker.number, incarnation=worker.incarnation)
            self.chain.call(call, worker.number, None, now, out)

    def seal(self, number: int, incarnation: bytes) -> None:
        """The updates of the worker's earlier starts are over."""
        self.workers.learn(number, incarnation)
        for table in self.by_key.values():
            for shard in table.shards.values():
                shard.marks.pop(number, None)

    def leave(self, seat: Seat, now: float, out: list[Output]) -> None:
        """The connection has ended."""
        self._context.budget.give(self.job, room_of(seat.credit))
        self.seats.discard(seat.session)
        self.workers.leave(seat, now)
        for table in self.by_key.values():
            self.reads.forget(table, seat)

    def put_out(self, worker: Worker, now: float, out: list[Output]) -> None:
        """The worker takes part in clocks and steps no more, until it connects again."""
        worker.is_in = False
        for table in self.by_key.values():
            if table.clocks is not None and table.clocks.leave(worker.number):
                self.look(table, out)
            if table.steps is not None:
                self.stepping.leave(table, worker.number, now, out)

    def look(self, table: Table, out: list[Output]) -> None:
        """The least clock has risen."""
        for shard in table.shards.values():
            self.reads.look(table, shard, out)

    # --- tables ---------------------------------------------------------------------------------

    def find(self, name: str) -> Table:
        for table in self.by_key.values():
            if table.name == name:
                return table
        known = ", ".join(sorted(table.name for table in self.by_key.values())) or "none"
        raise ProtocolError(f"job {self.job!r} has no table {name!r} here; its tables: {known}")

    def describe(
        self, seat: Seat, call: TableCall, now: float, out: list[Output]
    ) -> tuple[Table, int]:
        """A worker describes a table, which is made if it is new. Returns the worker's clock."""
        spec = Spec(call, seat.worker)
        if (call.partition, call.partitions) != (self.partition, self.partitions):
            raise ProtocolError(
                f"{seat} describes table {call.name!r} for partition {call.partition} of "
                f"{call.partitions} on a connection for {self.partition} of {self.partitions}"
            )
        table = self.by_key.get(spec.key)
        if table is None:
            table = self._make(spec, out)
            self.chain.call(call, seat.worker, None, now, out)
        elif table.name != call.name:
            raise ProtocolError(
                f"tables {table.name!r} and {call.name!r} have the same id: rename one of them"
            )
        else:
            table.spec.compare(call, seat.worker)
            if call.digest and not table.spec.call.digest:
                table.spec = spec  # the first worker that brings values
        if seat.worker == READER:
            return table, 0
        if table.steps is not None:
            self._take_contributor(table, seat.worker)
        if table.owner is not None:
            table.owner.join(seat.worker)
        if table.clocks is None:
            return table, 0
        clock = table.clocks.seat(seat.worker)
        seated = TableCall("clock", name=table.name, clock=clock)
        self.chain.call(seated, seat.worker, None, now, out)
        return table, clock

    def restore(self, call: TableCall, worker: int, out: list[Output]) -> None:
        """The primary has this table."""
        spec = Spec(call, worker)
        if spec.key not in self.by_key:
            self._make(spec, out)

    def _make(self, spec: Spec, out: list[Output]) -> Table:
        if len(self.by_key) >= MAX_TABLES:
            raise ProtocolError(f"job {self.job!r} has {MAX_TABLES:,} tables here, the limit")
        if not spec.numbers:
            raise ProtocolError(
                f"table {spec.call.name!r} has no shard on this lane (partition "
                f"{spec.call.partition} of {spec.call.partitions}): the lane takes no part in it"
            )
        need = reserve_of(spec)
        self._context.budget.take(self.job, need, f"table {spec.call.name!r}")
        table = self.by_key[spec.key] = Table(spec, self.workers)
        self.dropped.discard(spec.key)
        if table.owner is not None:
            table.owner.begin_term(self.chain.term)
        text = (
            f"job {self.job!r}: table {table.name!r}, {len(spec.numbers)} shards and "
            f"{need:,} bytes here"
        )
        out.append(Log(0, logging.INFO, text, {"job": self.job}))
        return table

    def _take_contributor(self, table: Table, worker: int) -> None:
        if worker in table.contributors:
            return
        need = reserve_of_contributor(table.spec)
        what = f"the contributions of worker {worker} to table {table.name!r}"
        self._context.budget.take(self.job, need, what)
        table.contributors.add(worker)
        table.reserved += need

    def advance(self, table: Table, worker: int, clock: int, now: float, out: list[Output]) -> None:
        """A worker has ended a clock: it counts when the backup knows."""
        call = TableCall("clock", name=table.name, clock=clock)
        self.chain.call(call, worker, _Clocked(self, table, worker, clock), now, out)

    def drop(self, table: Table, out: list[Output]) -> None:
        """The table's memory is given back."""
        self._remove(table, out)
        self.dropped.add(table.key)
        text = f"table {table.name!r} was dropped"
        news = Notice("evicted", code=int(ErrorCode.STATE_LOST), message=text, name=table.name)
        if self.seats:
            out.append(frames.notice(news, tuple(self.seats), self._context.crc))

    def _remove(self, table: Table, out: list[Output]) -> None:
        del self.by_key[table.key]
        buffers = table.buffers()
        if buffers:
            out.append(Free(0, tuple(buffers)))
        self._context.budget.give(self.job, table.reserved)


class _Clocked(Durable):
    def __init__(self, holdings: Holdings, table: Table, worker: int, clock: int) -> None:
        self._holdings = holdings
        self._table = table
        self._worker = worker
        self._clock = clock

    def durable(self, now: float, out: list[Output]) -> None:
        clocks = self._table.clocks
        if clocks is not None and clocks.advance(self._worker, self._clock):
            self._holdings.look(self._table, out)


def room_of(credit: int) -> int:
    """The bytes that a connection reserves: its pushes or pulls, and control frames."""
    return credit + 2 * LEAST_FRAMES


assert NO_WORKER == READER
