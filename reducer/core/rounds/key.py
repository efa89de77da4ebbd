"""Keys: names, the ranks' done positions, and stable positions that no frame has told yet."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from reducer.core.containers.listing import Listed
from reducer.core.containers.tables import OrderedSet
from reducer.core.rounds.view import View
from reducer.wire.header import HEADER_SIZE


class Key(Listed):
    """One key; `stable` is the minimum of the members' done positions.

    `_tree` is a tournament: its second half has the done position of each rank, and each place n
    of the first half has the lesser of the places 2n and 2n + 1. The minimum is in place 1, so a
    report takes logarithmic time whatever the ranks report. `unreported`: the cost of the chunks
    that are stable although no frame has told the ranks. `idles`: the key is in its table's queue
    of idle keys.
    """

    __slots__ = (
        "_tree", "_world_size", "id", "idles", "name", "stable", "touched_at", "unreported",
    )  # fmt: skip

    def __init__(self, id_: int, view: View) -> None:
        super().__init__()
        self.id = id_
        self.name = ""
        self._tree = view.first_tree()
        self._world_size = view.world_size
        self.stable = 0
        self.touched_at = 0.0
        self.idles = False
        self.unreported = 0

    @property
    def label(self) -> str:
        return repr(self.name) if self.name else f"{self.id:#018x}"

    def is_news(self, rank: int, position: int) -> bool:
        """Whether the position is above all that the rank has reported."""
        return position > self._tree[self._world_size + rank]

    def take_done(self, rank: int, position: int) -> bool:
        """Take a rank's done position. Returns whether `stable` has risen."""
        tree = self._tree
        at = self._world_size + rank
        if position <= tree[at]:
            return False
        tree[at] = position
        while at > 1:
            beside = tree[at ^ 1]
            at >>= 1
            least = beside if beside < position else position
            if tree[at] == least:
                return False
            tree[at] = position = least
        self.stable = position
        return True

    def slowest(self) -> int:
        """The lowest rank whose done position is `stable`."""
        return self._tree.index(self.stable, self._world_size) - self._world_size


ENTRY: Final = struct.Struct("<QQ")


class Untold:
    """Keys whose stable position no frame has told yet; `cost`: the cost of their stable chunks."""

    def __init__(self) -> None:
        # Told first: keys that have results to free.
        self._credited: OrderedSet[Key] = OrderedSet()
        self._changed: OrderedSet[Key] = OrderedSet()
        self.cost = 0

    def __bool__(self) -> bool:
        return len(self) > 0

    def __len__(self) -> int:
        return len(self._credited) + len(self._changed)

    def __contains__(self, key: Key) -> bool:
        return key in self._changed or key in self._credited

    def add(self, key: Key, gives_credit: bool) -> None:
        if gives_credit:
            self._credited.add(key)
            self._changed.discard(key)
        elif not key.unreported:
            self._changed.add(key)

    def charge(self, key: Key, cost: int) -> None:
        """Chunks of the key with this cost are stable."""
        key.unreported += cost
        self.cost += cost

    def told(self, key: Key) -> None:
        """A frame carries the key's stable position to every rank of the job."""
        if self._credited.discard(key):
            self.cost -= key.unreported
            key.unreported = 0
        else:
            self._changed.discard(key)

    def tell(self, most: int) -> bytes:
        """Return `most` stable positions for a HEARTBEAT; they count as told."""
        keys = self._credited.first(most)
        keys += self._changed.first(most - len(keys))
        for key in keys:
            self.told(key)
        return payload_of(keys)

    def drop_last(self) -> None:
        """Forget a key, while the table of the keys is taken apart."""
        for keys in (self._credited, self._changed):
            if len(keys):
                keys.pop_last()


def payload_of(keys: Iterable[Key]) -> bytes:
    """The stable positions of the keys, as the payload of a HEARTBEAT."""
    return b"".join([ENTRY.pack(key.id, key.stable) for key in keys])


def entries_in(heartbeat: bytes) -> int:
    """How many stable positions a HEARTBEAT carries."""
    return (len(heartbeat) - HEADER_SIZE) // ENTRY.size
