"""The state that a lane has of the chunks of one home slot (PROTOCOL.md, section 11).

A new stream begins with empty positions, bitmaps and results, as a new run does. To continue after
the death of a reducer, a lane therefore needs nothing but the copies that the workers keep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from reducer.core.limits.charges import STREAM, Records
from reducer.core.limits.held import HeldBytes
from reducer.core.rounds.chunk_owners import Owners, Place, Route
from reducer.core.rounds.key import Untold
from reducer.core.rounds.key_table import KeyTable
from reducer.core.rounds.round import StreamRounds
from reducer.core.rounds.view import View
from reducer.core.surface.buffer import Buffer
from reducer.wire.errors import ProtocolError
from reducer.wire.header import Header


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
        view: View,
        new_table: Callable[[View, bool, Records, Untold], KeyTable],
    ) -> None:
        super().__init__(home, since, place, records, held, view)
        self.keys = new_table(view, since > 0, records, self.untold)

    def drop(self, freed: list[Buffer]) -> None:
        """End the stream; `freed` gets its buffers. The run takes its keys apart later, in parts.

        If this raises, it can be called again: no buffer is given back twice.
        """
        self.is_over = True
        for round_ in list(self.rounds):
            for chunk in round_.chunks.values():
                chunk.drop(freed)
            self.keys[round_.key.id].forget(round_)
        self.keys.end()


class Streams:
    """The streams of lane `lane` of slot `slot` under `route` in `view`, by home slot.

    A stream is made by its first frame, so walks take no time for slots that the job does not use.
    """

    def __init__(
        self,
        slot: int,
        lane: int,
        route: Route,
        view: View,
        weights: tuple[int, ...],
        records: Records,
        held: HeldBytes,
        new_table: Callable[[View, bool, Records, Untold], KeyTable],
    ) -> None:
        self.slot = slot
        self.lane = lane
        self.route = route
        self.view = view
        self._weights = weights
        self.owners = Owners(route, weights)
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
        """Whether the lane's slot is live, so that it may own chunks."""
        return bool(self.route.live[self.slot])

    def move(self, route: Route, view: View) -> list[Stream]:
        """Take a newer route. Returns the streams that the route moves away from this lane.

        A new view moves every stream: what survivors have contributed before is dropped, too.
        """
        all_ = view is not self.view
        moved = [s for s in self._by_home.values() if all_ or route.since[s.home] != s.since]
        for stream in moved:
            del self._by_home[stream.home]
        self.route = route
        self.view = view
        self.owners = Owners(route, self._weights)
        return moved

    def find(self, rank: int, home: int, header: Header) -> Stream | None:
        """Return the stream that a frame of `rank` belongs to; None if a route has moved it away.

        Raises ProtocolError if this lane does not own the stream under the route that it knows, and
        RecordsError if there is no room for the record of a new stream.
        """
        since = header.route
        if header.epoch != self.view.epoch:
            if header.epoch < self.view.epoch:
                return None
            raise ProtocolError(
                f"rank {rank} sent a frame of epoch {header.epoch} before the route of that epoch; "
                f"this lane knows epoch {self.view.epoch}"
            )
        stream = self._by_home.get(home)
        if stream is not None and stream.since == since:
            return stream
        slots = len(self.route.since)
        if home >= slots:
            raise ProtocolError(f"rank {rank} names home slot {home}; expected 0 to {slots - 1}")
        if since < self.route.since[home]:
            return None
        place = self.owners.place(self.slot, self.lane, home)
        if since > self.route.since[home] or place is None:
            raise ProtocolError(
                f"rank {rank} sent a frame of home slot {home} since route {since} to slot "
                f"{self.slot} lane {self.lane}, which knows route {self.route.number} and does not "
                "own it"
            )
        self.records.take(STREAM)
        stream = Stream(home, since, place, self.records, self._held, self.view, self._new_table)
        self._by_home[home] = stream
        return stream

    def clear(self) -> None:
        self._by_home.clear()
