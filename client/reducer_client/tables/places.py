"""Where each partition of a job's tables lives: on which lane of which reducer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Place(NamedTuple):
    """A lane. ``term``: which holder of the partition it is; 0 where partitions do not move.

    ``incarnation``: the start of the lane that has the partition; b"" if it is not known.
    """

    address: str
    lane: int
    term: int = 0
    incarnation: bytes = b""


class Places:
    """``moved`` is called with the number of a partition that has another place.

    The caller of each method holds the lock.
    """

    def __init__(self, places: Sequence[Place], moved: Callable[[int], None]) -> None:
        self._places = list(places)
        self._moved = moved

    def __len__(self) -> int:
        return len(self._places)

    def of(self, partition: int) -> Place:
        return self._places[partition]

    def move(self, partition: int, place: Place) -> None:
        """The partition lives there now. A place of an older term is ignored."""
        before = self._places[partition]
        if place.term < before.term or place == before:
            return
        self._places[partition] = place
        self._moved(partition)


def spread(lanes_by_slot: Sequence[tuple[str, int]]) -> list[Place]:
    """The places without moves: the lanes of (address, lanes), reducer by reducer."""
    return [Place(address, lane) for address, lanes in lanes_by_slot for lane in range(lanes)]
