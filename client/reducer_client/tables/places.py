"""The place of each partition of a job's tables: a lane of a reducer."""

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

    ``term``: counts the holders of the partition. Partitions without backups do not move: their
    term is 0, and ``reducer`` is empty. ``backup``: the lane that gets each change before the
    change is acknowledged. While ``is_filling``, the backup is a spare that does not have
    everything yet.
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
        """The partition lives at this place now. A place without a newer term is ignored."""
        if place.term > self._places[partition].term:
            self._places[partition] = place
            self._moved(partition)


def spread(lanes_by_slot: Sequence[tuple[str, int]]) -> list[Place]:
    """The places without backups: the lanes of (address, lanes), reducer by reducer."""
    return [Place(address, lane) for address, lanes in lanes_by_slot for lane in range(lanes)]


def opening(hello: TableCall, place: Place) -> TableCall:
    """The call `open` with the term in which the worker knows the partition."""
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
