"""The keys of a dict from the least on, without a walk over all of them."""

from __future__ import annotations

import heapq
from collections.abc import Collection
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

    def take_below(self, limit: int) -> list[int]:
        """Those under `limit`, which are forgotten here."""
        taken: list[int] = []
        while self._heap and self._heap[0] < limit:
            taken.append(heapq.heappop(self._heap))
        return taken
