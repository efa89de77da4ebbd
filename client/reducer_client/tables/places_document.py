"""The registry's record of where each partition lives, and all decisions about the record.

Pure. Each decision is a function of the document and of an observation of a worker. A decision
returns the next document, or None if the document contradicts the observation. All workers decide
alike, and the registry's compare-and-set makes one of them the decider.

Laws (T13): a partition has one primary in a term. Each change of its entry is a new term. A backup
that is filling never becomes the primary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgpack  # type: ignore[import-untyped]  # ships no stubs

from reducer.wire.checks import INCARNATION_BYTES
from reducer.wire.table_messages import MAX_TERM
from reducer_client.errors import ProtocolError, StateLostError
from reducer_client.tables.places import Place, Spot


class Seat(NamedTuple):
    """A lane of the reducer with the number ``slot``, in one start of its process."""

    slot: int
    lane: int
    incarnation: bytes


@dataclass(frozen=True)
class Entry:
    """One partition. ``is_filling``: the backup is a spare that does not have everything yet."""

    term: int
    primary: Seat
    backup: Seat | None
    is_filling: bool = False

    @property
    def can_fail_over(self) -> bool:
        return self.backup is not None and not self.is_filling


@dataclass(frozen=True)
class PlacesDocument:
    """``reducers``: the addresses by slot. ``partitions``: the entries by partition."""

    reducers: tuple[str, ...]
    partitions: tuple[Entry, ...]

    def place(self, partition: int) -> Place:
        entry = self.partitions[partition]
        first = self._spot(entry.primary)
        backup = None if entry.backup is None else self._spot(entry.backup)
        return Place(*first, entry.term, backup, entry.is_filling)

    def spare_slots(self, partition: int, primary: int) -> list[int]:
        """The slots on which a spare of the partition may live, the preferred one first."""
        slots = len(self.reducers)
        return [(primary + step) % slots for step in range(1, slots)]

    # --- decisions ------------------------------------------------------------------------------

    def promote(self, partition: int, term: int, spare: Seat | None) -> PlacesDocument | None:
        """The primary of this term is out of reach: its backup takes its place.

        ``spare``: the lane that is to become the next backup; None without such a lane.
        """
        entry = self.partitions[partition]
        if entry.term != term or entry.backup is None or entry.is_filling:
            return None
        return self._with(partition, entry.backup, spare, is_filling=spare is not None)

    def leave_backup(
        self, partition: int, term: int, reducer: bytes, spare: Seat | None
    ) -> PlacesDocument | None:
        """The primary of this term does not reach its backup, or its spare, with this incarnation.

        The primary goes on without the backup, and fills the spare if there is one.
        """
        entry = self.partitions[partition]
        if entry.term != term or entry.backup is None or entry.backup.incarnation != reducer:
            return None
        return self._with(partition, entry.primary, spare, is_filling=spare is not None)

    def name_spare(self, partition: int, term: int, spare: Seat) -> PlacesDocument | None:
        """The partition has no backup, and this lane is free."""
        entry = self.partitions[partition]
        if entry.term != term or entry.backup is not None:
            return None
        return self._with(partition, entry.primary, spare, is_filling=True)

    def confirm_spare(self, partition: int, term: int, reducer: bytes) -> PlacesDocument | None:
        """The spare has everything: it is a backup now."""
        entry = self.partitions[partition]
        is_meant = entry.backup is not None and entry.backup.incarnation == reducer
        if entry.term != term or not is_meant or not entry.is_filling:
            return None
        return self._with(partition, entry.primary, entry.backup, is_filling=False)

    # --- bytes ----------------------------------------------------------------------------------

    def encode(self) -> bytes:
        packed: bytes = msgpack.packb(
            {
                "reducers": list(self.reducers),
                "partitions": [
                    [
                        e.term,
                        list(e.primary),
                        None if e.backup is None else list(e.backup),
                        e.is_filling,
                    ]
                    for e in self.partitions
                ],
            }
        )
        return packed

    def _spot(self, seat: Seat) -> Spot:
        return Spot(self.reducers[seat.slot], seat.lane, seat.incarnation)

    def _with(
        self, partition: int, primary: Seat, backup: Seat | None, *, is_filling: bool
    ) -> PlacesDocument:
        term = self.partitions[partition].term + 1
        if term > MAX_TERM:
            raise StateLostError(
                f"partition {partition} has moved {MAX_TERM} times, the limit: save a checkpoint, "
                "and begin a new run"
            )
        entry = Entry(term, primary, backup, is_filling)
        before, behind = self.partitions[:partition], self.partitions[partition + 1 :]
        return replace(self, partitions=(*before, entry, *behind))


def found(reducers: Sequence[str], incarnations: Sequence[Sequence[bytes]]) -> PlacesDocument:
    """The first document. ``incarnations``: the incarnations of each reducer's lanes."""
    entries = []
    for slot, lanes in enumerate(incarnations):
        behind = (slot + 1) % len(reducers)
        for lane, incarnation in enumerate(lanes):
            other = lane % len(incarnations[behind])
            backup = Seat(behind, other, incarnations[behind][other])
            entries.append(Entry(1, Seat(slot, lane, incarnation), backup))
    return PlacesDocument(tuple(reducers), tuple(entries))


def decode(value: bytes) -> PlacesDocument:
    """The document of a record. Raises ProtocolError for other bytes."""
    try:
        fields = msgpack.unpackb(value)
        reducers = tuple(_text(address) for address in fields["reducers"])
        entries = tuple(_entry(row, len(reducers)) for row in fields["partitions"])
        if not reducers or not entries:
            raise ValueError("it is empty")
        return PlacesDocument(reducers, entries)
    except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
        raise ProtocolError(
            f"the registry's record of the tables' places cannot be read ({error!r:.80}): did "
            "another program write it?"
        ) from None


def _entry(row: Any, slots: int) -> Entry:
    term, primary, backup, is_filling = row
    if type(term) is not int or not 1 <= term <= MAX_TERM or type(is_filling) is not bool:
        raise ValueError(row)
    return Entry(
        term, _seat(primary, slots), None if backup is None else _seat(backup, slots), is_filling
    )


def _seat(row: Any, slots: int) -> Seat:
    slot, lane, incarnation = row
    is_valid = type(slot) is int and 0 <= slot < slots and type(lane) is int and lane >= 0
    if not is_valid or type(incarnation) is not bytes or len(incarnation) != INCARNATION_BYTES:
        raise ValueError(row)
    return Seat(slot, lane, incarnation)


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(value)
    return value


Decision = Callable[[PlacesDocument], PlacesDocument | None]
