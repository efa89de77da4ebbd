"""What a lane knows of the chunks of one home slot, since one route (PROTOCOL.md, section 11).

A stream is a fresh start in small: positions, bitmaps and results begin from nothing in it, as in
a new run, so that nothing but the worker's copies is needed to go on after a reducer's death.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from reducer.core.limits.held import HeldBytes
from reducer.core.limits.records import STREAM, Records
from reducer.core.rounds.key import Untold
from reducer.core.rounds.keytable import KeyTable
from reducer.core.rounds.round import StreamRounds
from reducer.core.rounds.route import Holding, Place, Route
from reducer.core.surface.buffer import Buffer
from reducer.wire.errors import ProtocolError


class Stream(StreamRounds):
    """The rounds of a stream, with the table of its `keys`."""

    __slots__ = ("keys",)

    def __init__(
        self,
        home: int,
        since: int,
        place: Place,
        records: Records,
        held: HeldBytes,
        new_table: Callable[[bool, Records, Untold], KeyTable],
    ) -> None:
        super().__init__(home, since, place, records, held)
        self.keys = new_table(since > 0, records, self.untold)

    def drop(self, freed: list[Buffer]) -> None:
        """Give every buffer back; the stream is not to be used any more.

        Where this raises it can be called again: no buffer is given back twice.

        Its run takes apart, a part at a time, its keys and the rounds that nobody has sent of.
        """
        self.is_over = True
        for round_ in list(self.rounds):
            for chunk in round_.chunks.values():
                chunk.drop(freed)
            self.keys[round_.key.id].forget(round_)
        self.keys.end()


class Streams:
    """What lane `lane` of slot `slot` owns under `route`, by home slot.

    A stream is made by the first frame about it: whatever walks them takes no longer for slots that
    a job has and does not use.
    """

    def __init__(
        self,
        slot: int,
        lane: int,
        route: Route,
        records: Records,
        held: HeldBytes,
        new_table: Callable[[bool, Records, Untold], KeyTable],
    ) -> None:
        self.slot = slot
        self.lane = lane
        self.route = route
        self._holding = Holding(route, slot, lane)
        self.records = records
        self._held = held
        self._new_table = new_table
        self._by_home: dict[int, Stream] = {}

    def __iter__(self) -> Iterator[Stream]:
        return iter(self._by_home.values())

    def __len__(self) -> int:
        return len(self._by_home)

    @property
    def live(self) -> bool:
        """Whether anything can be here."""
        return bool(self.route.live[self.slot])

    def move(self, route: Route) -> list[Stream]:
        """Take a newer route; the streams that it moves away from here."""
        moved = [s for s in self._by_home.values() if route.since[s.home] != s.since]
        for stream in moved:
            del self._by_home[stream.home]
        self.route = route
        self._holding = Holding(route, self.slot, self.lane)
        return moved

    def find(self, rank: int, home: int, since: int) -> Stream | None:
        """The stream that a frame of `rank` is about; None if it is elsewhere now.

        Raises ProtocolError for one that is not here, as far as this lane knows, and RecordsError.
        """
        stream = self._by_home.get(home)
        if stream is not None and stream.since == since:
            return stream
        slots = len(self.route.since)
        if home >= slots:
            raise ProtocolError(f"rank {rank} names slot {home} of {slots}")
        if since < self.route.since[home]:
            return None
        place = self._holding.place(home)
        if since > self.route.since[home] or place is None:
            raise ProtocolError(
                f"rank {rank} sent of slot {home} since route {since} to slot {self.slot} lane "
                f"{self.lane}, which knows route {self.route.number} and does not own it"
            )
        self.records.take(STREAM)
        stream = Stream(home, since, place, self.records, self._held, self._new_table)
        self._by_home[home] = stream
        return stream

    def clear(self) -> None:
        self._by_home.clear()
