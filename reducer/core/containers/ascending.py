"""Finds the least numbers of a table without a walk over all of them."""

from __future__ import annotations

import heapq
from typing import Any, Final

from reducer.core.containers.tables import Numbered

# Numbers that the table has lost, taken out before other jobs have their turns: 0.3 us each.
_LOST_AT_ONCE: Final = 1_024


class Ascending:
    """The keys of a table, least first.

    A key that the table has lost stays until its turn comes. `add` and `lost` keep the numbers
    below twice the keys of the table, which are charged.
    """

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[int] = []

    def add(self, number: int, table: Numbered[Any]) -> None:
        """The table has `number` now."""
        heapq.heappush(self._heap, number)
        self.lost(table)

    def lost(self, table: Numbered[Any]) -> None:
        """The table has lost a number."""
        if len(self._heap) > 2 * len(table):
            self._heap = sorted(table.numbers())

    def has_below(self, limit: int) -> bool:
        """Whether there may be a number below `limit`."""
        return bool(self._heap) and self._heap[0] < limit

    def first_below(self, limit: int, table: Numbered[Any]) -> int | None:
        """The least that is in the table still, if it is under `limit`.

        None also where so many are lost that the rest is to be looked at in another turn.
        """
        for _ in range(_LOST_AT_ONCE):
            if not self.has_below(limit):
                return None
            if self._heap[0] in table:
                return self._heap[0]
            heapq.heappop(self._heap)
        return None

    def take_below(self, limit: int, most: int) -> list[int]:
        """Remove and return up to so many of the numbers below `limit`."""
        taken: list[int] = []
        while len(taken) < most and self.has_below(limit):
            taken.append(heapq.heappop(self._heap))
        return taken
