"""Copies a partition to a spare while the partition goes on.

Law: a shard is copied at one moment with its marks, and later changes of the shard come behind the
copy in the log. A shard whose step is committed and not applied is copied after the step.
"""

from __future__ import annotations

import logging
from typing import Final

from reducer.core.surface.buffer import Buffer
from reducer.core.surface.events import Copied, Copy, Free, Log, Output, TableEffect
from reducer.core.tables.chain import Durable
from reducer.core.tables.context import Context
from reducer.core.tables.owner import StepSet
from reducer.core.tables.partition import Partition
from reducer.core.tables.shard import Shard
from reducer.core.tables.stepping import NO_WORKER, commit_call, set_call
from reducer.core.tables.table import Table
from reducer.core.tables.works import Sequel
from reducer.wire.codes import Entry
from reducer.wire.header import NO_RANK, Header
from reducer.wire.table_messages import TableCall

# Bytes of a partition in flight to its spare: enough for 80 Gbit/s at 0.1 ms of round trip, and few
# beside the pushes of workers, which a kill has interrupted. (Two cores, 64 MiB table, 50 kills:
# median from a kill to the next receipt 236 ms, and 310 ms with 8 MiB.)
WINDOW: Final = 1 << 20


class Refill:
    """`is_over`: the spare has everything."""

    def __init__(self, context: Context, partition: Partition) -> None:
        self._context = context
        self._partition = partition
        self._chain = partition.chain
        self._waiting: list[tuple[Table, Shard]] = []
        self._on_the_way = 0
        self.is_over = False

    def begin(self, now: float, out: list[Output]) -> None:
        """The spare is linked: send the descriptions of the tables, then the shards."""
        partition, chain = self._partition, self._chain
        tables = list(partition.by_key.values())
        self._waiting = [
            (table, shard)
            for table in reversed(tables)
            for shard in table.shards.values()
            if shard.is_ready
        ]
        chain.unshipped = {(table.key, shard.number) for table, shard in self._waiting}
        for worker in partition.workers.all():
            call = TableCall("open", worker=worker.number, incarnation=worker.incarnation)
            chain.call(call, worker.number, None, now, out)
        for table in tables:
            self._describe(table, now, out)
        self.go_on(now, out)

    def _describe(self, table: Table, now: float, out: list[Output]) -> None:
        chain, name = self._chain, table.name
        chain.call(table.spec.call, table.spec.worker, None, now, out)
        if table.rate_number and table.rate is not None:
            call = TableCall("rate", name=name, rate=table.rate, number=table.rate_number)
            chain.call(call, NO_WORKER, None, now, out)
        clocks = table.clocks
        if clocks is not None:
            for worker, clock in clocks.rows():
                chain.call(TableCall("clock", name=name, clock=clock), worker, None, now, out)
            awaited = max(0, clocks.awaited)
            call = TableCall("clock", name=name, clock=clocks.least, number=awaited)
            chain.call(call, NO_WORKER, None, now, out)
        for committed in _last_sets(table):
            chain.call(commit_call(table, committed, ()), NO_WORKER, None, now, out)
        if table.steps is not None and table.steps.chosen is not None:
            rate = table.steps.learning_rate
            if table.steps.chosen.step > table.committed:
                call = set_call(table, table.steps.chosen, rate)
                chain.call(call, NO_WORKER, None, now, out)

    def go_on(self, now: float, out: list[Output]) -> None:
        """Copy the next shards, as many as the window allows."""
        later = []
        while self._waiting and self._on_the_way < WINDOW:
            table, shard = self._waiting.pop()
            if table.key not in self._partition.by_key:
                self._chain.unshipped.discard((table.key, shard.number))
            elif table.steps is not None and shard.version != table.committed:
                later.append((table, shard))
            else:
                self._copy(table, shard, out)
        self._waiting += later
        self.is_over = not self._waiting and not self._on_the_way and not self._chain.unshipped

    def _copy(self, table: Table, shard: Shard, out: list[Output]) -> None:
        sources = shard.arrays()
        mean = None if table.steps is None else table.steps.means.get(shard.number)
        if mean is not None:
            sources.append(mean)
        self._on_the_way += shard.size * len(sources)
        ship = _Ship(self, table, shard, len(sources))
        for source in sources:
            out.append(Copy(self._context.works.begin(ship), source, shard.size))

    def ship(
        self,
        table: Table,
        shard: Shard,
        copies: list[tuple[Buffer, int]],
        now: float,
        out: list[Output],
    ) -> None:
        """All copies of the shard are made, at one moment: log them, and its marks."""
        chain = self._chain
        chain.unshipped.discard((table.key, shard.number))
        arrays = len(shard.arrays())
        order = [*range(1, arrays), 0, *range(arrays, len(copies))]  # the parameters come last
        for place in order:
            buffer, crc = copies[place]
            entry = Header(
                0, flags=int(Entry.VALUES), root=place, chunk=shard.number, key=table.key,
                count=shard.version, length=shard.size, payload_crc=crc,
            )  # fmt: skip
            if place >= arrays and table.steps is not None and table.steps.chosen is not None:
                chosen = table.steps.chosen
                entry = Header(
                    0, flags=int(Entry.MEAN), chunk=shard.number, key=table.key,
                    round=chosen.step, epoch=chosen.generation, length=shard.size,
                    payload_crc=crc,
                )  # fmt: skip
            then = _Shipped(self, buffer, shard.size)
            if chain.is_logging:
                chain.data(entry, buffer, (), then, now, out)
            else:
                then.durable(now, out)
        for worker, mark in shard.marks.items():
            self._mark(table, shard, worker, mark.last, (0, 0, 0), now, out)
            for seq, answer in mark.rows():
                self._mark(table, shard, worker, seq, answer, now, out)

    def _mark(
        self,
        table: Table,
        shard: Shard,
        worker: int,
        seq: int,
        answer: tuple[int, int, int],
        now: float,
        out: list[Output],
    ) -> None:
        outcome, version, staleness = answer
        entry = Header(
            0, flags=int(Entry.OUTCOME), op=outcome, rank=worker & NO_RANK, epoch=staleness,
            chunk=shard.number, key=table.key, round=seq, count=version,
        )  # fmt: skip
        self._chain.data(entry, None, (), None, now, out)

    def shipped(self, size: int, now: float, out: list[Output]) -> None:
        self._on_the_way -= size
        self.go_on(now, out)

    def failed(
        self, table: Table, shard: Shard, copies: int, error: Exception, out: list[Output]
    ) -> None:
        """A copy was not made, for lack of memory: the next tick tries again."""
        self._on_the_way -= shard.size * copies
        self._waiting.append((table, shard))
        text = f"job {self._partition.job!r}: a spare waits for memory: {error}"
        out.append(Log(0, logging.WARNING, text, {"job": self._partition.job}))


def _last_sets(table: Table) -> list[StepSet]:
    """The last set, which comes last, and for each worker that is not in it the last set it was in.

    From these the spare knows how long each worker was left out. Only the owner of the steps counts
    that. A set before the last has only the workers that were in no later one.
    """
    owner, sums = table.owner, table.steps
    if owner is None or owner.last is None or sums is None:
        return []
    by_step: dict[int, list[int]] = {}
    for worker in owner.members():
        step = sums.last_in.get(worker, 0)
        if 0 < step < owner.last.step:
            by_step.setdefault(step, []).append(worker)
    found = []
    for step in sorted(by_step):
        workers = tuple(by_step[step])
        found.append(StepSet(step, 0, workers, (1,) * len(workers)))
    return [*found, owner.last]


class _Ship(Sequel):
    """Collects the copies of a shard."""

    def __init__(self, refill: Refill, table: Table, shard: Shard, wanted: int) -> None:
        self._refill = refill
        self._table = table
        self._shard = shard
        self._wanted = wanted
        self._copies: list[tuple[Buffer, int]] = []

    def done(self, event: TableEffect, now: float, out: list[Output]) -> None:
        assert isinstance(event, Copied)
        if self._wanted < 0:
            out.append(Free(0, (event.buffer,)))
            return
        self._copies.append((event.buffer, event.crc))
        if len(self._copies) == self._wanted:
            self._refill.ship(self._table, self._shard, self._copies, now, out)

    def failed(self, error: Exception, now: float, out: list[Output]) -> None:
        if self._copies:
            out.append(Free(0, tuple([buffer for buffer, _ in self._copies])))
            self._copies = []
        if self._wanted > 0:  # else a copy of the shard has failed before
            self._refill.failed(self._table, self._shard, self._wanted, error, out)
        self._wanted = -1


class _Shipped(Durable):
    def __init__(self, refill: Refill, buffer: Buffer, size: int) -> None:
        self._refill = refill
        self._buffer = buffer
        self._size = size

    def durable(self, now: float, out: list[Output]) -> None:
        out.append(Free(0, (self._buffer,)))
        self._refill.shipped(self._size, now, out)

    def buffers(self) -> list[Buffer]:
        return [self._buffer]
