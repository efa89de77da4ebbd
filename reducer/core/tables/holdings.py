"""The tables of one job and run on this lane."""

from __future__ import annotations

from reducer.core.limits.budget import LEAST_FRAMES
from reducer.core.surface.events import Close, Free, Log, Output
from reducer.core.tables import frames
from reducer.core.tables.context import Context
from reducer.core.tables.reads import Reads
from reducer.core.tables.spec import Spec
from reducer.core.tables.stepping import Stepping
from reducer.core.tables.table import Table, reserve_of, reserve_of_contributor
from reducer.core.tables.updates import Updates
from reducer.core.tables.workers import READER, Seat, Worker, Workers
from reducer.wire.codes import ErrorCode
from reducer.wire.errors import ProtocolError
from reducer.wire.table_messages import Notice, TableCall

MAX_TABLES = 1_024  # of a job and run


class Holdings:
    """`by_key`: the tables by the id of their names."""

    def __init__(self, context: Context, job: str, run_id: str) -> None:
        self.job = job
        self.run_id = run_id
        self.workers = Workers()
        self.by_key: dict[int, Table] = {}
        self.seats: set[int] = set()  # connections, readers too
        self.dropped: set[int] = set()  # ids; frames about them are ignored
        self._context = context
        self.reads = Reads(context)
        self.updates = Updates(context, self.reads)
        self.stepping = Stepping(context, self.reads, job)

    # --- connections ----------------------------------------------------------------------------

    def enter(self, seat: Seat, out: list[Output]) -> None:
        """Take in a connection. Raises JoinError, or QuotaError if there is no memory for it."""
        self._context.budget.take(self.job, room_of(seat.credit), "a connection for tables")
        self.seats.add(seat.session)
        if seat.worker == READER:
            return
        worker, replaced, is_new = self.workers.enter(seat)
        if replaced is not None:
            out.append(Close(0, replaced.session, f"{seat} has connected again", at_once=True))
        if is_new:
            for table in self.by_key.values():
                for shard in table.shards.values():
                    shard.marks.pop(worker.number, None)

    def leave(self, seat: Seat, now: float, out: list[Output]) -> None:
        """The connection has ended."""
        self._context.budget.give(self.job, room_of(seat.credit))
        self.seats.discard(seat.session)
        self.workers.leave(seat, now)
        for table in self.by_key.values():
            self.reads.forget(table, seat)

    def put_out(self, worker: Worker, out: list[Output]) -> None:
        """The worker takes part in clocks and steps no more, until it connects again."""
        worker.is_in = False
        for table in self.by_key.values():
            if table.clocks is not None and table.clocks.leave(worker.number):
                self.look(table, out)
            if table.steps is not None:
                self.stepping.leave(table, worker.number, out)

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

    def describe(self, seat: Seat, call: TableCall, out: list[Output]) -> tuple[Table, int]:
        """A worker describes a table, which is made if it is new. Returns the worker's clock."""
        spec = Spec(call, seat.worker)
        table = self.by_key.get(spec.key)
        if table is None:
            table = self._make(spec, out)
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
        return table, 0 if table.clocks is None else table.clocks.seat(seat.worker)

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
        text = (
            f"job {self.job!r}: table {table.name!r}, {len(spec.numbers)} shards and "
            f"{need:,} bytes here"
        )
        out.append(Log(0, 20, text, {"job": self.job}))
        return table

    def _take_contributor(self, table: Table, worker: int) -> None:
        if worker in table.contributors:
            return
        need = reserve_of_contributor(table.spec)
        what = f"the contributions of worker {worker} to table {table.name!r}"
        self._context.budget.take(self.job, need, what)
        table.contributors.add(worker)
        table.reserved += need

    def drop(self, table: Table, out: list[Output]) -> None:
        """The table's memory is given back."""
        del self.by_key[table.key]
        self.dropped.add(table.key)
        text = f"table {table.name!r} was dropped"
        news = Notice("evicted", code=int(ErrorCode.STATE_LOST), message=text, name=table.name)
        out.append(frames.notice(news, tuple(self.seats), self._context.crc))
        buffers = table.buffers()
        if buffers:
            out.append(Free(0, tuple(buffers)))
        self._context.budget.give(self.job, table.reserved)


def room_of(credit: int) -> int:
    """The bytes that a connection reserves: its pushes or pulls, and control frames."""
    return credit + 2 * LEAST_FRAMES
