"""The owners of chunks, while all reducers are live and later (PROTOCOL.md, sections 6 and 11)."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

from reducer.core.rounds.deal import Deal

_LOW: Final = 0xFFFF_FFFF


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

    def living(self) -> list[int]:
        """The slots that are live."""
        return [slot for slot, live in enumerate(self.live) if live]


class Place:
    """The chunks of one home slot that one lane owns.

    `_heirs`: deals the chunks of a dead home to the live slots; None if the home is live. `_heir`:
    the party of the lane's slot.
    """

    __slots__ = ("_heir", "_heirs", "_home", "_homes", "_lane", "_lanes")

    def __init__(
        self, homes: Deal, home: int, heirs: Deal | None, heir: int, lanes: int, lane: int
    ) -> None:
        self._homes = homes
        self._home = home
        self._heirs = heirs
        self._heir = heir
        self._lanes = lanes
        self._lane = lane

    def owns(self, key: int, chunk: int) -> bool:
        number = (key & _LOW) + chunk
        if self._homes.party(number) != self._home:
            return False
        turn = self._homes.turn(number)
        if self._heirs is not None:
            if self._heirs.party(turn) != self._heir:
                return False
            turn = self._heirs.turn(turn)
        return turn % self._lanes == self._lane

    def owned(self, key: int, chunks: int) -> int:
        """How many of the chunks 0 to `chunks` - 1 of a key are in this place."""
        first = key & _LOW
        return self._below(first + chunks) - self._below(first)

    def _below(self, number: int) -> int:
        """How many numbers below this one are in this place."""
        turn = self._homes.below(self._home, number)
        if self._heirs is not None:
            turn = self._heirs.below(self._heir, turn)
        return (turn + self._lanes - 1 - self._lane) // self._lanes


class Owners:
    """Who owns which chunks under a route. `weights` by slot; none: all slots are equal."""

    __slots__ = ("_heirs", "_homes", "_living", "_route")

    def __init__(self, route: Route, weights: tuple[int, ...] = ()) -> None:
        weights = weights or (1,) * len(route.live)
        self._route = route
        self._living = route.living()
        self._homes = Deal(weights)
        self._heirs = Deal([weights[slot] for slot in self._living])

    def home(self, key: int, chunk: int) -> int:
        """The slot that owns the chunk while all slots are live."""
        return self._homes.party((key & _LOW) + chunk)

    def owner(self, key: int, chunk: int) -> tuple[int, int]:
        """(slot, lane) of a chunk."""
        number = (key & _LOW) + chunk
        slot, turn = self._homes.party(number), self._homes.turn(number)
        if not self._route.live[slot]:
            slot, turn = self._living[self._heirs.party(turn)], self._heirs.turn(turn)
        return slot, turn % self._route.lanes[slot]

    def place(self, slot: int, lane: int, home: int) -> Place | None:
        """The chunks of a home slot that a lane of a slot owns; None if the slot owns none."""
        route = self._route
        if not route.live[slot]:
            return None
        lanes = route.lanes[slot]
        if home == slot:
            return Place(self._homes, home, None, 0, lanes, lane)
        if route.live[home]:
            return None
        heir = bisect_left(self._living, slot)
        return Place(self._homes, home, self._heirs, heir, lanes, lane)
