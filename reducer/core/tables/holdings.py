"""A partition and its workers. This lane leads the partition, or is its backup."""

from __future__ import annotations

import logging
from typing import Final

from reducer.core.limits.budget import LEAST_FRAMES
from reducer.core.surface.events import Close, Log, Output
from reducer.core.tables.chain import Durable
from reducer.core.tables.context import Context
from reducer.core.tables.link import Link
from reducer.core.tables.partition import Partition
from reducer.core.tables.place import Place
from reducer.core.tables.replica import Replica
from reducer.core.tables.spec import Spec
from reducer.core.tables.stepping import NO_WORKER
from reducer.core.tables.table import Table, reserve_of_contributor
from reducer.core.tables.workers import READER, Seat, Worker
from reducer.wire.errors import ProtocolError
from reducer.wire.table_messages import TableCall

# Seconds that workers have to find the new leading lane, beyond those for a lost connection.
GRACE: Final = 1.5


class Holdings(Partition):
    """`replica` exists while this lane is a backup. `link`: the link to the place of the log.

    A link refers to its holdings, and a lane with tables looks for no reference cycles. So `end` is
    called before the holdings are forgotten.
    """

    def __init__(
        self, context: Context, job: str, run_id: str, partition: int, partitions: int
    ) -> None:
        super().__init__(context, job, run_id, partition, partitions)
        self.replica: Replica | None = None
        self.link: Link | None = None

    def end(self, now: float, out: list[Output]) -> None:
        """This object does not have the partition any more."""
        self.replica = None  # a link to the replica carries nothing any more
        link, self.link = self.link, None
        if link is not None:
            link.reset(now, out)

    # --- terms ----------------------------------------------------------------------------------

    def lead(
        self, term: int, backup: Place | None, is_filling: bool, now: float, out: list[Output]
    ) -> None:
        """A worker brings a newer term, in which this lane is the primary."""
        is_promoted = self.replica is not None
        if is_promoted:
            self._promote(term, now, out)
        if self.chain.begin_term(term, backup, is_filling, now, out):
            if self.link is None:
                self.link = Link(self.context, self)
            self.link.reset(now, out)
        for table in self.by_key.values():
            if table.clocks is not None:
                table.clocks.lead()
            if table.owner is not None:
                table.owner.begin_term(term)
                if is_promoted:
                    table.owner.lead([worker.number for worker in self.workers.all()])

    def _promote(self, term: int, now: float, out: list[Output]) -> None:
        """The backup becomes the primary. Its workers connect, or are taken out in time."""
        replica, self.replica = self.replica, None
        assert replica is not None
        if replica.session:
            out.append(Close(0, replica.session, "this lane leads now", at_once=True))
        for worker in self.workers.all():
            worker.gone_at = now + GRACE
        text = f"job {self.job!r} partition {self.partition}: leads from term {term} on"
        out.append(Log(0, logging.WARNING, text, {"job": self.job}))

    # --- connections ----------------------------------------------------------------------------

    def enter(self, seat: Seat, now: float, out: list[Output]) -> None:
        """Take in a connection. Raises JoinError, or QuotaError if there is no memory for it."""
        self.context.budget.take(self.job, room_of(seat.credit), "a connection for tables")
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

    def leave(self, seat: Seat, now: float, out: list[Output]) -> None:
        """The connection has ended."""
        self.context.budget.give(self.job, room_of(seat.credit))
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
            table = self.make(spec, out)
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

    def _take_contributor(self, table: Table, worker: int) -> None:
        if worker in table.contributors:
            return
        need = reserve_of_contributor(table.spec)
        what = f"the contributions of worker {worker} to table {table.name!r}"
        self.context.budget.take(self.job, need, what)
        table.contributors.add(worker)
        table.reserved += need

    def advance(self, table: Table, worker: int, clock: int, now: float, out: list[Output]) -> None:
        """A worker has ended a clock. The clock counts when the backup has it."""
        call = TableCall("clock", name=table.name, clock=clock)
        self.chain.call(call, worker, _Clocked(self, table, worker, clock), now, out)


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
