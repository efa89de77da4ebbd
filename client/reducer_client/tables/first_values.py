"""The first values of a table: this worker sends them to each lane that lacks them."""

from __future__ import annotations

from collections.abc import Sequence

from reducer.wire.codes import DType, Flag, MessageKind
from reducer.wire.header import NO_RANK, Header
from reducer_client.tables.layout import Layout, Vector
from reducer_client.tables.outgoing import Item
from reducer_client.tables.shared import Shared


class FirstValues:
    """``arrays``: the parameters, then the slots of a restored table. ``versions``: the versions of
    the shards of a restored table.

    The caller of each method holds the lock.
    """

    def __init__(
        self,
        shared: Shared,
        layout: Layout,
        worker: int,
        arrays: Sequence[Vector],
        versions: Sequence[int] | None = None,
    ) -> None:
        self._shared = shared
        self._layout = layout
        self._worker = worker
        self._bytes = [array.data.cast("B") for array in arrays]
        self._versions = versions
        self._unanswered: set[tuple[int, int]] = set()

    @property
    def are_there(self) -> bool:
        """Whether the lanes have answered all frames."""
        return not self._unanswered

    def items(self, partition: int) -> list[Item]:
        """The frames for a lane, without those that are on their way.

        Slots come first: parameters make a shard complete.
        """
        roots = [*range(1, len(self._bytes)), 0]
        shards = self._layout.by_partition[partition]
        wanted = ((shard, root) for shard in shards for root in roots)
        return [self._item(*each) for each in wanted if each not in self._unanswered]

    def answered(self, item: Item, header: Header) -> None:
        self._unanswered.discard((item.header.chunk, item.header.root))
        if not self._unanswered:
            self._shared.changed.notify_all()

    def _item(self, shard: int, root: int) -> Item:
        self._unanswered.add((shard, root))
        header = Header(
            kind=MessageKind.PUSH,
            dtype=DType.FLOAT32,
            flags=int(Flag.VALUES),
            rank=self._worker & NO_RANK,  # a reader may bring the values of a checkpoint
            root=root,
            chunk=shard,
            key=self._layout.key,
            count=0 if self._versions is None else self._versions[shard],
        )
        place = self._layout.place(shard)
        part = self._bytes[root][4 * place.start : 4 * place.stop]
        return Item(header, part, waiter=self, answers=1, cost=len(part), table=self._layout.key)
