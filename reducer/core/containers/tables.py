"""Tables whose keys a peer chooses, safe against chosen keys.

The hash of an int in Python is the int itself. So a peer could choose numbers that all collide, and
each look-up would walk over all of them. These tables mix a secret into each number: the secret of
the process with which Python guards its dicts of strings.

A dict also keeps the memory of its largest size. Records are charged only while they exist, so a
table is rebuilt after it has lost most of its entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Final, Generic, TypeVar

K = TypeVar("K")
T = TypeVar("T")

_SECRET: Final = hash("numbers that peers choose") & ((1 << 60) - 1)
_SMALL: Final = 5  # entries of the smallest dict; a table that never had more is not rebuilt
_PART: Final = 4  # a table with less than 1/n of its most entries is rebuilt


class _Table(Generic[K, T]):
    """A dict in the order of insertion that gives back the memory of removed entries."""

    __slots__ = ("_items", "_most")

    def __init__(self) -> None:
        self._items: dict[K, T] = {}
        self._most = _SMALL

    def __len__(self) -> int:
        return len(self._items)

    def _put(self, key: K, value: T) -> None:
        self._items[key] = value
        if len(self._items) > self._most:
            self._most = len(self._items)

    def _maybe_shrink(self) -> None:
        if self._most == _SMALL or len(self._items) * _PART >= self._most:
            return
        items = self._items
        with suppress(MemoryError):  # then the table keeps its dict
            # A copied dict is never the smallest one; a dict that is built from few items is.
            self._items = dict(items.items()) if len(items) <= _SMALL else dict(items)
        self._most = max(_SMALL, len(self._items))


class Numbered(_Table[int, T]):
    """A table by numbers that a peer chooses: ids of keys, rounds, indexes of chunks."""

    __slots__ = ()

    def __contains__(self, number: int) -> bool:
        return number ^ _SECRET in self._items

    def __getitem__(self, number: int) -> T:
        return self._items[number ^ _SECRET]

    def __setitem__(self, number: int, value: T) -> None:
        self._put(number ^ _SECRET, value)

    def get(self, number: int) -> T | None:
        return self._items.get(number ^ _SECRET)

    def pop(self, number: int) -> T | None:
        """Remove and return the entry; None if there is none."""
        value = self._items.pop(number ^ _SECRET, None)
        self._maybe_shrink()
        return value

    def pop_last(self) -> T:
        _, value = self._items.popitem()
        self._maybe_shrink()
        return value

    def values(self) -> Iterable[T]:
        return self._items.values()

    def numbers(self) -> list[int]:
        return [hidden ^ _SECRET for hidden in self._items]

    def clear(self) -> None:
        self._items.clear()
        self._most = _SMALL


class OrderedSet(_Table[T, None]):
    """A set of the lane's own objects, in the order of insertion."""

    __slots__ = ()

    def __contains__(self, item: T) -> bool:
        return item in self._items

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def add(self, item: T) -> None:
        self._put(item, None)

    def discard(self, item: T) -> bool:
        """Remove the item; False if the set does not have it."""
        if item not in self._items:
            return False
        del self._items[item]
        self._maybe_shrink()
        return True

    def pop_last(self) -> T:
        item, _ = self._items.popitem()
        self._maybe_shrink()
        return item

    def first(self, most: int) -> list[T]:
        """The oldest entries, at most `most`."""
        return list(islice(self._items, most))
