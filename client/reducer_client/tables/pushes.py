"""Pushes to a table whose lanes apply each one at once (modes async and ssp)."""

from __future__ import annotations

from collections.abc import Callable

from reducer.wire.codes import DType, MessageKind, Outcome
from reducer.wire.header import Header
from reducer_client.errors import NumericError, ReducerError
from reducer_client.tables.context import TableContext
from reducer_client.tables.outgoing import Item
from reducer_client.tables.receipts import Push, Receipt
from reducer_client.tables.staging import Staging


class Delivery:
    """One gradient on its way to all shards."""

    def __init__(
        self,
        push: Push,
        staging: Staging,
        shards: int,
        receipted: Callable[[Header], None],
        finished: Callable[[Delivery], None],
    ) -> None:
        self.push = push
        self.staging = staging
        self.left = shards
        self.outcomes: dict[int, int] = {}
        self.staleness = 0
        self.versions = (1 << 63, 0)
        self._receipted = receipted
        self._finished = finished

    def answered(self, item: Item, header: Header) -> None:
        self.outcomes[header.flags] = self.outcomes.get(header.flags, 0) + 1
        self.staleness = max(self.staleness, header.done)
        least, most = self.versions
        self.versions = min(least, header.count), max(most, header.count)
        self.left -= 1
        self._receipted(header)
        if not self.left:
            self._finished(self)


class Pushes:
    """The caller of each method holds the lock.

    Laws:

    - Each push has the same number at all shards. Numbers have no gap: a push is put in for all
      shards or for none.
    - A gradient's memory is kept until all shards have answered, because a lost connection sends it
      again.
    """

    def __init__(self, table: TableContext) -> None:
        self._table = table
        self._last = 0
        self._marks = [0] * table.layout.shards
        self._open: set[Delivery] = set()

    @property
    def may_pull(self) -> bool:
        return True

    @property
    def is_empty(self) -> bool:
        """Whether no push is on its way."""
        return not self._open

    def submit(self, push: Push, staging: Staging, bases: list[int]) -> None:
        table, layout = self._table, self._table.layout
        self._last += 1
        delivery = Delivery(push, staging, layout.shards, self._receipted, self._finished)
        self._open.add(delivery)
        for partition, shards in enumerate(layout.by_partition):
            items = []
            for shard in shards:
                header = push_header(table, shard, self._last, bases[shard])
                items.append(push_item(table, header, staging, delivery, self._marks))
            table.lanes.put(partition, items)

    def fail(self, error: ReducerError) -> None:
        """All pushes on their way end with this error. Their memory is not used again."""
        for delivery in self._open:
            delivery.push.settle(error)
        self._open.clear()

    def _receipted(self, header: Header) -> None:
        self._marks[header.chunk] = header.round
        self._table.note_versions((header.chunk,), header.count)

    def _finished(self, delivery: Delivery) -> None:
        self._open.discard(delivery)
        self._table.pool.release(delivery.staging)
        if Outcome.REFUSED in delivery.outcomes:
            self._table.tally.refuse()
            delivery.push.settle(not_finite(self._table))
            return
        applied = delivery.outcomes.get(Outcome.APPLIED, 0)
        dropped = delivery.outcomes.get(Outcome.DROPPED, 0)
        least, most = delivery.versions
        receipt = Receipt(
            "applied" if not dropped else "partial" if applied else "dropped",
            version=least,
            staleness=delivery.staleness,
            versions=(least, most),
            weight=delivery.staging.weight,
        )
        self._table.tally.add(receipt)
        delivery.push.settle(receipt)


def push_header(table: TableContext, shard: int, number: int, base: int) -> Header:
    return Header(
        kind=MessageKind.PUSH,
        dtype=DType.FLOAT32,
        rank=table.worker,
        chunk=shard,
        key=table.layout.key,
        round=number,
        count=base,
    )


def push_item(
    table: TableContext,
    header: Header,
    staging: Staging,
    waiter: Delivery,
    marks: list[int] | None = None,
) -> Item:
    """The frame that takes a shard's part of a gradient to its lane."""
    place = table.layout.place(header.chunk)
    part = staging.bytes[4 * place.start : 4 * place.stop]
    return Item(
        header,
        part,
        waiter=waiter,
        answers=1,
        cost=len(part),
        table=table.layout.key,
        marks=marks,
    )


def not_finite(table: TableContext, tensors: str = "") -> NumericError:
    where = f", in {tensors}" if tensors else ""
    return NumericError(
        f"table {table.layout.name!r}: the gradient of worker {table.worker} has NaN, Inf or a "
        f"magnitude of 2^63 or more{where}: it was refused",
        rank=table.worker,
        key=table.layout.name,
        reason="nonfinite",
    )
