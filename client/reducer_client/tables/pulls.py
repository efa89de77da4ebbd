"""A pull: the shards of a table on their way to the caller's memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from reducer.wire import errors as wire
from reducer.wire.codes import Flag, MessageKind
from reducer.wire.header import NO_RANK, Header
from reducer_client.tables.layout import Layout, Vector
from reducer_client.tables.outgoing import Item
from reducer_client.tables.shared import Shared


class Pull:
    """``into``: a vector for the parameters, and one for each slot if they are pulled, too.

    ``versions``: the version of each shard that has come. The threads of the lanes write into the
    vectors without the lock, and only between `begin_write` and `end_write`.
    """

    def __init__(
        self, shared: Shared, layout: Layout, number: int, into: Sequence[Vector], worker: int
    ) -> None:
        self.number = number
        self.versions = [0] * layout.shards
        self.was_asked = False
        self._missing: set[tuple[int, int]] = set()
        self._writing = 0
        self._into = into
        self._layout = layout
        self._shared = shared
        self._rank = NO_RANK if worker < 0 else worker

    @property
    def done(self) -> bool:
        return not self._missing

    def items(
        self, shards: Iterable[int], least_clock: int = 0, least_version: int = 0
    ) -> list[Item]:
        """The frames that ask for these shards of one lane."""
        arrays = len(self._into)
        items = []
        for shard in shards:
            self._missing.update((shard, root) for root in range(arrays))
            header = Header(
                kind=MessageKind.PULL,
                rank=self._rank,
                chunk=shard,
                key=self._layout.key,
                round=self.number,
                count=least_clock,
                done=least_version,
                flags=int(Flag.ALL) if arrays > 1 else 0,
            )
            cost = arrays * self._bytes(shard)
            table = self._layout.key
            items.append(Item(header, waiter=self, answers=arrays, cost=cost, table=table))
        return items

    def answered(self, item: Item, header: Header) -> None:
        """Answers come by `end_write`."""

    def check(self, header: Header, where: str) -> None:
        """Raises BadFrameError unless a VALUE is one that was asked for."""
        expected = self._bytes(header.chunk)
        if header.length != expected or header.root >= len(self._into):
            raise wire.BadFrameError(
                f"{where} sent {header.length} bytes of array {header.root} of shard "
                f"{header.chunk} of table {self._layout.name!r}, expected {expected} bytes of an "
                f"array below {len(self._into)}"
            )

    def begin_write(self) -> None:
        self._writing += 1

    def write(self, header: Header, payload: memoryview) -> None:
        values = np.frombuffer(payload, "<f4")
        self._into[header.root][self._layout.place(header.chunk)] = values

    def end_write(self, header: Header) -> None:
        self._writing -= 1
        self.versions[header.chunk] = header.count
        self._missing.discard((header.chunk, header.root))
        if not self._missing or not self._writing:
            self._shared.changed.notify_all()

    def wait_for_writers(self) -> None:
        """After this nobody writes any more, if the pull was given up. The caller holds the lock.

        It takes no longer than the copy of a shard for each lane.
        """
        while self._writing:
            self._shared.changed.wait()

    def _bytes(self, shard: int) -> int:
        place = self._layout.place(shard)
        return 4 * int(place.stop - place.start)
