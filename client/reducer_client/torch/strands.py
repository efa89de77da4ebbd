"""Names for the rounds of calls, equal on all ranks whatever threads do.

A program makes its calls in the same order on all ranks, and takes some keys in turns. Callbacks
of futures call, too (PowerSGD sums twice in them), but when and on which thread they run is chance.
So each call has a strand, each callback of its future a branch of that, by the order in which they
are registered, and what a callback calls is named after its branch.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from reducer_client.spread import KeysInTurn

# Names come round after so many calls of a group; until then all ranks must have run the callbacks
# of the first of them. Bounds the keys that engine and reducers know.
_NAMES = 256


class Strand:
    """Calls that every rank makes in the same order."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: dict[str, int] = {}

    @contextmanager
    def next_call(self, group: str) -> Iterator[tuple[str, Strand]]:
        """Name the next call that a callback makes on a group: its key, and its own strand."""
        number = self._calls.get(group, 0)
        self._calls[group] = number + 1
        key = f"{self._name}.{number}"
        try:
            yield key, Strand(key)
        except Exception:
            self._calls[group] -= 1
            raise

    def branch(self, number: int) -> Strand:
        """The strand of the callback that was registered as that number of its future."""
        return Strand(f"{self._name}/{number}")


class MainStrand:
    """The calls of the program on one group."""

    def __init__(self, group: str, reducers: int) -> None:
        self._group = group
        self._reducers = reducers
        self._lock = threading.Lock()
        self._number = 0
        self._keys: dict[str, KeysInTurn] = {}

    @contextmanager
    def next_call(self, place: str) -> Iterator[tuple[str, Strand]]:
        """Name the call that is made inside the block: its key, and the strand of its callbacks.

        Calls of other places ("cpu", "cuda") are other rounds: they reach the engine by other ways.
        A call that raises is not counted: other ranks may not have been refused.
        """
        within: Strand | None = getattr(_entered, "strand", None)
        with self._next_call(place) if within is None else within.next_call(self._group) as call:
            yield call

    @contextmanager
    def _next_call(self, place: str) -> Iterator[tuple[str, Strand]]:
        with self._lock:
            number = self._number
            self._number += 1
            keys = self._keys.setdefault(place, KeysInTurn(main_prefix(place), self._reducers))
        try:
            with keys.next() as key:
                yield key, Strand(f"{self._group}/{number % _NAMES}")
        except Exception:
            with self._lock:
                self._number -= 1
            raise


def main_prefix(place: str) -> str:
    """Begins the keys of the calls that the program makes itself, outside callbacks."""
    return f"calls/{place}"


_entered = threading.local()


@contextmanager
def entered(strand: Strand) -> Iterator[None]:
    """What this thread calls meanwhile belongs to the strand."""
    before = getattr(_entered, "strand", None)
    _entered.strand = strand
    try:
        yield
    finally:
        _entered.strand = before
