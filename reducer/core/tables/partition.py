"""The tables of one partition on this lane, which leads the partition or is its backup."""

from __future__ import annotations

import logging
from typing import Final

from reducer.core.surface.control_frames import control_frame
from reducer.core.surface.events import Close, Free, Log, Output, Send
from reducer.core.tables import frames
from reducer.core.tables.chain import Chain
from reducer.core.tables.context import Context
from reducer.core.tables.reads import Reads
from reducer.core.tables.spec import Spec
from reducer.core.tables.stepping import Stepping
from reducer.core.tables.table import Table, reserve_of
from reducer.core.tables.updates import Updates
from reducer.core.tables.workers import Workers
from reducer.wire import messages
from reducer.wire.codes import ErrorCode
from reducer.wire.errors import ProtocolError
from reducer.wire.table_messages import Notice, TableCall

MAX_TABLES: Final = 1_024  # of a job and run


class Partition:
    """`by_key`: the tables by the id of their names. `seats`: connections, readers' too."""

    def __init__(
        self, context: Context, job: str, run_id: str, partition: int, partitions: int
    ) -> None:
        self.job = job
        self.run_id = run_id
        self.partition = partition
        self.partitions = partitions
        self.workers = Workers()
        self.by_key: dict[int, Table] = {}
        self.seats: set[int] = set()
        self.dropped: set[int] = set()  # ids; frames about them are ignored
        self.is_retired = False
        self.chain = Chain(context.crc)
        self.context = context
        self.reads = Reads()
        self.updates = Updates(context, self.reads, self.chain)
        self.stepping = Stepping(context, self.reads, self.chain, job)

    def find(self, name: str) -> Table:
        for table in self.by_key.values():
            if table.name == name:
                return table
        known = ", ".join(sorted(table.name for table in self.by_key.values())) or "none"
        raise ProtocolError(f"job {self.job!r} has no table {name!r} here; its tables: {known}")

    def restore(self, call: TableCall, worker: int, out: list[Output]) -> None:
        """The primary has this table."""
        spec = Spec(call, worker)
        if spec.key not in self.by_key:
            self.make(spec, out)

    def make(self, spec: Spec, out: list[Output]) -> Table:
        if len(self.by_key) >= MAX_TABLES:
            raise ProtocolError(f"job {self.job!r} has {MAX_TABLES:,} tables here, the limit")
        if not spec.numbers:
            raise ProtocolError(
                f"table {spec.call.name!r} has no shard on this lane (partition "
                f"{spec.call.partition} of {spec.call.partitions}): the lane takes no part in it"
            )
        need = reserve_of(spec)
        self.context.budget.take(self.job, need, f"table {spec.call.name!r}")
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

    def drop(self, table: Table, out: list[Output]) -> None:
        """The table's memory is given back."""
        self._remove(table, out)
        self.dropped.add(table.key)
        text = f"table {table.name!r} was dropped"
        news = Notice("evicted", code=int(ErrorCode.STATE_LOST), message=text, name=table.name)
        if self.seats:
            out.append(frames.notice(news, tuple(self.seats), self.context.crc))

    def _remove(self, table: Table, out: list[Output]) -> None:
        del self.by_key[table.key]
        buffers = table.buffers()
        if buffers:
            out.append(Free(0, tuple(buffers)))
        self.context.budget.give(self.job, table.reserved)

    def retire(self, reason: str, out: list[Output]) -> None:
        """Another lane leads: end all connections, and forget the tables."""
        self.is_retired = True
        self.chain.drop(out)
        self.forget_tables(out)
        error = messages.Error(int(ErrorCode.EVICTED), reason[:1_000])
        if self.seats:
            frame = control_frame(error, self.context.crc)
            out.append(Send(0, tuple(self.seats), frame, None, 0))
            out += [Close(0, session, reason) for session in self.seats]

    def forget_tables(self, out: list[Output]) -> None:
        for table in list(self.by_key.values()):
            self._remove(table, out)

    def tell(self, news: Notice, out: list[Output]) -> None:
        sessions = self.workers.sessions()
        if sessions:
            out.append(frames.notice(news, sessions, self.context.crc))

    def seal(self, number: int, incarnation: bytes) -> None:
        """The worker has started again: forget the marks of its earlier starts."""
        self.workers.learn(number, incarnation)
        for table in self.by_key.values():
            for shard in table.shards.values():
                shard.marks.pop(number, None)
