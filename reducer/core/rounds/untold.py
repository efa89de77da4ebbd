"""Stable positions of a stream's keys that have changed, and that no frame has told the ranks."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from reducer.core.containers.tables import OrderedSet
from reducer.core.rounds.key import Key
from reducer.wire.header import HEADER_SIZE

ENTRY: Final = struct.Struct("<QQ")


class Untold:
    """`cost` is the cost of all chunks that became stable untold."""

    def __init__(self) -> None:
        # Those that give credit first.
        self._credited: OrderedSet[Key] = OrderedSet()
        self._changed: OrderedSet[Key] = OrderedSet()
        self.cost = 0

    def __bool__(self) -> bool:
        return len(self._credited) + len(self._changed) > 0

    def __contains__(self, key: Key) -> bool:
        return key in self._changed or key in self._credited

    def add(self, key: Key, gives_credit: bool) -> None:
        if gives_credit:
            self._credited.add(key)
            self._changed.discard(key)
        elif not key.unreported:
            self._changed.add(key)

    def charge(self, key: Key, cost: int) -> None:
        """Chunks of the key that cost so much are stable."""
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
        """`most` stable positions, from now on told."""
        keys = self._credited.first(most)
        keys += self._changed.first(most - len(keys))
        for key in keys:
            self.told(key)
        return payload_of(keys)

    def drop_last(self) -> None:
        """The table is taken apart."""
        for keys in (self._credited, self._changed):
            if len(keys):
                keys.pop_last()


def payload_of(keys: Iterable[Key]) -> bytes:
    """Stable positions for a HEARTBEAT."""
    return b"".join([ENTRY.pack(key.id, key.stable) for key in keys])


def entries_in(heartbeat: bytes) -> int:
    """How many stable positions the frame tells."""
    return (len(heartbeat) - HEADER_SIZE) // ENTRY.size
