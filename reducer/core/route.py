"""Who owns a chunk, all reducers alive or not (PROTOCOL.md, sections 6 and 11)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_LOW: Final = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class Place:
    """The chunks of one home slot on one lane: those with (key + chunk) mod `period` = `offset`."""

    period: int
    offset: int

    def owns(self, key: int, chunk: int) -> bool:
        return ((key & _LOW) + chunk) % self.period == self.offset

    def owned(self, key: int, chunks: int) -> int:
        """How many of the chunks 0..chunks-1 of a key are in this place."""
        first = (self.offset - (key & _LOW)) % self.period
        return 0 if first >= chunks else (chunks - 1 - first) // self.period + 1


@dataclass(frozen=True, slots=True)
class Route:
    """Which slots are live; `since`, `live` (0 or 1) and `lanes` by slot."""

    number: int
    since: tuple[int, ...]
    live: tuple[int, ...]
    lanes: tuple[int, ...]

    @classmethod
    def first(cls, lanes_by_slot: tuple[int, ...]) -> Route:
        """Route 0: every slot is live."""
        slots = len(lanes_by_slot)
        return cls(0, (0,) * slots, (1,) * slots, lanes_by_slot)

    def home(self, key: int, chunk: int) -> int:
        """The slot that owns the chunk while all are live."""
        return ((key & _LOW) + chunk) % len(self.live)

    def owner(self, key: int, chunk: int) -> tuple[int, int]:
        """(slot, lane) of a chunk."""
        home = self.home(key, chunk)
        q = ((key & _LOW) + chunk) // len(self.live)
        if self.live[home]:
            return home, q % self.lanes[home]
        living = self._living()
        slot = living[q % len(living)]
        return slot, q // len(living) % self.lanes[slot]

    def places(self, slot: int, lane: int) -> list[tuple[int, Place]]:
        """The home slots of which this lane owns chunks, and which; in time linear in the slots.

        They are its own slot and every dead one; none where its own is dead.
        """
        if not self.live[slot]:
            return []
        slots, lanes = len(self.live), self.lanes[slot]
        living = self._living()
        q = living.index(slot) + len(living) * lane
        found: list[tuple[int, Place]] = []
        for home, live in enumerate(self.live):
            if home == slot:
                found.append((home, Place(slots * lanes, lane * slots + home)))
            elif not live:
                found.append((home, Place(slots * len(living) * lanes, q * slots + home)))
        return found

    def _living(self) -> list[int]:
        return [slot for slot, live in enumerate(self.live) if live]
