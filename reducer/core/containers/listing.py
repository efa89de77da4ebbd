"""A list that is walked in parts and may change between them."""

from __future__ import annotations

from typing import Generic, TypeVar


class Listed:
    """An item of at most one Listing; `place` is its index there, or -1."""

    __slots__ = ("place",)

    def __init__(self) -> None:
        self.place = -1


T = TypeVar("T", bound=Listed)


class Listing(Generic[T]):
    """A list without an order. Adding and removing take constant time.

    Removing an item moves the last item into its place. A walk goes from the end to the start, so
    it may meet an item twice, and it misses only items that were added after its start.
    """

    __slots__ = ("_all",)

    def __init__(self) -> None:
        self._all: list[T] = []

    def __len__(self) -> int:
        return len(self._all)

    def add(self, item: T) -> None:
        self._all.append(item)
        item.place = len(self._all) - 1

    def remove(self, item: T) -> None:
        last = self._all.pop()
        if last is not item:
            self._all[item.place] = last
            last.place = item.place
        item.place = -1

    def before(self, place: int, most: int) -> tuple[list[T], int]:
        """The next part of a walk that has come down to `place`, and the place to continue from."""
        end = min(place, len(self._all))
        start = max(0, end - most)
        return self._all[start:end], start
