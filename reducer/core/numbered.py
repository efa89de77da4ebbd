"""What is found by a number that a peer chooses: a key's id, a round, the index of a chunk.

Python looks for an int in a dict where the int itself says. So a peer could choose numbers that
all lead to the same places: each look-up would walk over all of them. Here a secret of the process
stands before each number: Python's own, which guards its dicts of texts in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_SECRET: Final = hash("numbers that peers choose") & ((1 << 60) - 1)


class Numbered(Generic[T]):
    """A dict by numbers, in the order in which they came."""

    __slots__ = ("_by_number",)

    def __init__(self) -> None:
        self._by_number: dict[int, T] = {}

    def __len__(self) -> int:
        return len(self._by_number)

    def __contains__(self, number: int) -> bool:
        return number ^ _SECRET in self._by_number

    def __getitem__(self, number: int) -> T:
        return self._by_number[number ^ _SECRET]

    def __setitem__(self, number: int, value: T) -> None:
        self._by_number[number ^ _SECRET] = value

    def get(self, number: int) -> T | None:
        return self._by_number.get(number ^ _SECRET)

    def pop(self, number: int) -> T | None:
        """None where there is none."""
        return self._by_number.pop(number ^ _SECRET, None)

    def pop_last(self) -> T:
        return self._by_number.popitem()[1]

    def values(self) -> Iterable[T]:
        return self._by_number.values()

    def numbers(self) -> list[int]:
        return [hidden ^ _SECRET for hidden in self._by_number]

    def clear(self) -> None:
        self._by_number.clear()
