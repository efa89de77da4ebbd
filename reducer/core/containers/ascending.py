"""Finds the smallest numbers of a table without a walk over the table."""

from __future__ import annotations

import heapq
from typing import Any, Final

from reducer.core.containers.tables import Numbered

# How many removed numbers one call forgets: 0.3 us each. Other jobs then have their turns.
_REMOVED_AT_ONCE: Final = 1_024


class Ascending:
    """The numbers of a table, smallest first.

    A removed number stays here until it is the smallest. `add` and `removed` keep at most twice as
    many numbers as the table has, and the records of the table's numbers are charged.
    """

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[int] = []

    def add(self, number: int, table: Numbered[Any]) -> None:
        """The table has `number` now."""
        heapq.heappush(self._heap, number)
        self.removed(table)

    def removed(self, table: Numbered[Any]) -> None:
        """A number has been removed from the table."""
        if len(self._heap) > 2 * len(table):
            self._heap = sorted(table.numbers())

    def has_below(self, limit: int) -> bool:
        """Whether there may be a number below `limit`."""
        return bool(self._heap) and self._heap[0] < limit

    def first_below(self, limit: int, table: Numbered[Any]) -> int | None:
        """The smallest number of the table if it is below `limit`, else None.

        None also if _REMOVED_AT_ONCE removed numbers come first: the caller then asks again in
        another turn.
        """
        for _ in range(_REMOVED_AT_ONCE):
            if not self.has_below(limit):
                return None
            if self._heap[0] in table:
                return self._heap[0]
            heapq.heappop(self._heap)
        return None

    def take_below(self, limit: int, most: int) -> list[int]:
        """Remove and return at most `most` of the numbers below `limit`."""
        taken: list[int] = []
        while len(taken) < most and self.has_below(limit):
            taken.append(heapq.heappop(self._heap))
        return taken
