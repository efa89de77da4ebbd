"""The keys of a dict from the least on, without a walk over all of them."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Container
from typing import Final

_SPARE: Final = 16


class Ascending:
    """Numbers that are keys of a dict, or were, least first.

    One that the dict has lost stays until its turn comes. They never are more than twice those of
    the dict, and a few.
    """

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[int] = []

    def add(self, number: int, keys: Collection[int]) -> None:
        """`number` has become one of `keys`."""
        if len(self._heap) < 2 * len(keys) + _SPARE:
            heapq.heappush(self._heap, number)
        else:
            self._heap = sorted(keys)

    def has_below(self, limit: int) -> bool:
        """Whether there may be one under `limit`."""
        return bool(self._heap) and self._heap[0] < limit

    def first_below(self, limit: int, keys: Container[int]) -> int | None:
        """The least that is one of `keys` still, if it is under `limit`."""
        while self.has_below(limit):
            if self._heap[0] in keys:
                return self._heap[0]
            heapq.heappop(self._heap)
        return None

    def take_below(self, limit: int, most: int) -> list[int]:
        """So many of those under `limit`, which are forgotten here."""
        taken: list[int] = []
        while len(taken) < most and self.has_below(limit):
            taken.append(heapq.heappop(self._heap))
        return taken
