"""The owners of chunks, while all reducers are live and later (PROTOCOL.md, sections 6 and 11)."""

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
        """How many of the chunks 0 to `chunks` - 1 of a key are in this place."""
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
        """The slot that owns the chunk while all slots are live."""
        return ((key & _LOW) + chunk) % len(self.live)

    def owner(self, key: int, chunk: int) -> tuple[int, int]:
        """(slot, lane) of a chunk."""
        home = self.home(key, chunk)
        q = ((key & _LOW) + chunk) // len(self.live)
        if self.live[home]:
            return home, q % self.lanes[home]
        living = self.living()
        slot = living[q % len(living)]
        return slot, q // len(living) % self.lanes[slot]

    def living(self) -> list[int]:
        """The slots that are live."""
        return [slot for slot, live in enumerate(self.live) if live]


class Holding:
    """The chunks that a lane of a slot owns under a route: of its own slot and of dead slots."""

    __slots__ = ("_of_dead", "_own", "_route", "_slot")

    def __init__(self, route: Route, slot: int, lane: int) -> None:
        self._route = route
        self._slot = slot
        slots, lanes = len(route.live), route.lanes[slot]
        self._own = (slots * lanes, slots * lane)
        self._of_dead = (0, 0)
        if route.live[slot]:
            living = route.living()
            turn = living.index(slot) + len(living) * lane
            self._of_dead = (slots * len(living) * lanes, slots * turn)

    def place(self, home: int) -> Place | None:
        """The chunks of a home slot that the lane owns; None if it owns none."""
        if not self._route.live[self._slot]:
            return None
        if home == self._slot:
            period, first = self._own
        elif self._route.live[home]:
            return None
        else:
            period, first = self._of_dead
        return Place(period, first + home)
