"""Keys for calls that have none: in turns, so that small calls load all lanes alike."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

from reducer.wire.keys import key_id

T = TypeVar("T")

# Keys for each reducer. Lanes share a reducer's calls evenly where their number divides this one.
_ROWS = 16


@lru_cache(maxsize=64)
def spread_keys(prefix: str, reducers: int) -> tuple[str, ...]:
    """Names, equal on all ranks: the i-th starts at reducer i, in turns, and at its next lane.

    Chunk 0 of a round, the only one of a small call, belongs to the key's low 32 bits modulo the
    reducers, and on that one to the quotient modulo its lanes (PROTOCOL.md, section 6).
    """
    places = reducers * _ROWS
    found: dict[int, str] = {}
    for number in itertools.count():
        name = f"{prefix}/{number}"
        found.setdefault((key_id(name) & 0xFFFFFFFF) % places, name)
        if len(found) == places:
            return tuple(found[place] for place in range(places))
    raise AssertionError("unreachable")


class KeysInTurn:
    """The keys of one kind of call. All ranks make the calls in the same order.

    The ranks count their calls: the n-th call of a rank meets the n-th of every other, so that
    calls in another order are found as different things submitted as one round.
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
        """The call was not made: the next one has its key."""
        with self._lock:
            self._turns -= 1

    def next(self, call: Callable[[str], T]) -> T:
        """Make a call under the next key; a call that raises is not counted."""
        key = self.take()
        try:
            return call(key)
        except Exception:
            self.give_back()
            raise
