"""A pull: the shards of a table on their way to the caller's memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reducer.wire import errors as wire
from reducer.wire.codes import Flag, MessageKind
from reducer.wire.header import NO_RANK, Header
from reducer_client.tables.layout import Layout, Vector
from reducer_client.tables.outgoing import Item
from reducer_client.tables.shared import Shared


class Pull:
    """``into``: a vector for the parameters, and a vector for each slot if slots are pulled, too.
    ``is_exact``: the values of exactly the named version, if the lanes still have them.

    ``versions``: the version of each received shard. The threads of the lanes receive values
    straight into the vectors, without the lock, from `begin_write` to `end_write` or
    `abandon_write`.
    """

    def __init__(
        self,
        shared: Shared,
        layout: Layout,
        number: int,
        into: Sequence[Vector],
        worker: int,
        is_exact: bool = False,
    ) -> None:
        self.number = number
        self.versions = [0] * layout.shards
        self.was_asked = False
        self._missing: set[tuple[int, int]] = set()
        self._writing = 0
        self._is_given_up = False
        self._into = into
        self._layout = layout
        self._shared = shared
        self._flags = int(Flag.ALL) if len(into) > 1 else int(Flag.EXACT) if is_exact else 0
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
                flags=self._flags,
            )
            cost = arrays * self._bytes(shard)
            table = self._layout.key
            items.append(Item(header, waiter=self, answers=arrays, cost=cost, table=table))
        return items

    def answered(self, item: Item, header: Header) -> None:
        """Answers come by `end_write`."""

    def check(self, header: Header, where: str) -> None:
        """Raises BadFrameError unless this pull has asked for the VALUE."""
        expected = self._bytes(header.chunk)
        if header.length != expected or header.root >= len(self._into):
            raise wire.BadFrameError(
                f"{where} sent {header.length} bytes of array {header.root} of shard "
                f"{header.chunk} of table {self._layout.name!r}, expected {expected} bytes of an "
                f"array below {len(self._into)}"
            )

    def begin_write(self, header: Header) -> memoryview:
        """The memory for the payload of a VALUE."""
        self._writing += 1
        place = self._layout.place(header.chunk)
        return self._into[header.root][place].data.cast("B")

    def end_write(self, header: Header) -> None:
        """The payload is there, and its checksum is right."""
        self.versions[header.chunk] = header.count
        self._missing.discard((header.chunk, header.root))
        self.abandon_write()

    def abandon_write(self) -> None:
        """Nobody writes into that memory any more."""
        self._writing -= 1
        if not self._missing or self._is_given_up:
            self._shared.changed.notify_all()

    def wait_for_writers(self) -> None:
        """Give the pull up, and wait until no thread writes into its vectors. The caller holds the
        lock.

        This takes no longer than a frame, or than a silent connection is kept.
        """
        self._is_given_up = True
        while self._writing:
            self._shared.changed.wait()

    def _bytes(self, shard: int) -> int:
        place = self._layout.place(shard)
        return 4 * int(place.stop - place.start)
