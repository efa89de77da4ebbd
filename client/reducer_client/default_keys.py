"""Assigns keys to calls that name none, in rotation, so that small calls load all lanes evenly."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

from reducer.wire.keys import key_id

T = TypeVar("T")

# Keys per reducer. The lanes of a reducer get equal numbers of calls if their number divides this.
_KEYS_PER_REDUCER = 16


@lru_cache(maxsize=64)
def spread_keys(prefix: str, reducers: int) -> tuple[str, ...]:
    """Keys, equal on all ranks, that use the reducers in turn, and the lanes of each in turn.

    Chunk 0 of a round, the only chunk of a small call, belongs to the reducer given by the low 32
    bits of the key's id modulo the number of reducers, and to the lane given by the quotient modulo
    the number of lanes (PROTOCOL.md, section 6).
    """
    places = reducers * _KEYS_PER_REDUCER
    found: dict[int, str] = {}
    for number in itertools.count():
        name = f"{prefix}/{number}"
        found.setdefault((key_id(name) & 0xFFFFFFFF) % places, name)
        if len(found) == places:
            return tuple(found[place] for place in range(places))
    raise AssertionError("unreachable")


class KeysInTurn:
    """The keys of one kind of call. All ranks must make the calls in the same order.

    Each rank counts its calls, and the n-th calls of all ranks have the same key. Calls in a
    different order therefore fail with MismatchError if their arrays differ.
    """

    def __init__(self, prefix: str, reducers: int) -> None:
        self._prefix = prefix
        self._reducers = reducers
        self._lock = threading.Lock()
        self._turns = 0

    def take(self) -> str:
        """The key of the next call."""
        keys = spread_keys(self._prefix, self._reducers)
        with self._lock:
            turn = self._turns
            self._turns += 1
        return keys[turn % len(keys)]

    def give_back(self) -> None:
        """Return the key of a call that was not made, for the next call."""
        with self._lock:
            self._turns -= 1

    def next(self, call: Callable[[str], T]) -> T:
        """Make a call under the next key. If the call raises, the next call gets the same key."""
        key = self.take()
        try:
            return call(key)
        except Exception:
            self.give_back()
            raise
