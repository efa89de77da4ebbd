"""A list whose items come and go while it is walked a part at a time."""

from __future__ import annotations

from typing import Generic, TypeVar


class Listed:
    """An item of at most one Listing; `place` is its index there, or -1."""

    __slots__ = ("place",)

    def __init__(self) -> None:
        self.place = -1


T = TypeVar("T", bound=Listed)


class Listing(Generic[T]):
    """In no order. To add and to remove take the same time however many there are.

    A walk goes from the end to the start: the last one comes into the place of one that is removed.
    So it may meet one twice, and misses none but those that come after its start.
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
