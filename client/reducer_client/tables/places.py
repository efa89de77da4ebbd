"""Where each partition of a job's tables lives: on which lane of which reducer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from reducer.wire.table_messages import TableCall


class Spot(NamedTuple):
    """One lane, in one start of its process: ``reducer`` is the start's incarnation."""

    address: str
    lane: int
    reducer: bytes = b""


class Place(NamedTuple):
    """The lane that has a partition.

    ``term``: which holder of the partition it is; 0 where partitions have no backups and do not
    move. Then ``reducer`` is not known beforehand. ``backup``: where each change goes before it
    counts; while ``is_filling`` it is a spare that does not have everything yet.
    """

    address: str
    lane: int
    reducer: bytes = b""
    term: int = 0
    backup: Spot | None = None
    is_filling: bool = False


class Places:
    """``moved`` is called with the number of a partition that has another place, or another term.

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
        """The partition lives there now. A place whose term is not newer is ignored."""
        if place.term > self._places[partition].term:
            self._places[partition] = place
            self._moved(partition)


def spread(lanes_by_slot: Sequence[tuple[str, int]]) -> list[Place]:
    """The places without backups: the lanes of (address, lanes), reducer by reducer."""
    return [Place(address, lane) for address, lanes in lanes_by_slot for lane in range(lanes)]


def opening(hello: TableCall, place: Place) -> TableCall:
    """The call `open` that says which term of the partition the worker means."""
    backup = place.backup or Spot("", 0)
    return replace(
        hello,
        term=place.term,
        reducer=place.reducer,
        backup=backup.address,
        backup_lane=backup.lane,
        backup_reducer=backup.reducer,
        filling=place.is_filling,
    )
