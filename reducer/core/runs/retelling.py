"""Tells a reconnected rank what it may have missed, in parts: other jobs have turns between."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from reducer.core.rounds.stream import Stream
from reducer.core.runs.mismatches import Mismatches
from reducer.core.runs.seats import Seats
from reducer.core.surface.events import Output
from reducer.wire.codes import MAX_HEARTBEAT_ENTRIES

# REFUSED frames in one part, each of 16 KiB at most. A part may be one HEARTBEAT instead.
PART_ROUNDS: Final = 4


class Retelling:
    """Tells stable positions and mismatches to one rank after another.

    `_streams`: the streams still to be walked for the first rank, beginning at the end of the list.
    `_keys` and `_rounds`: where the walk continues in the listings of the last stream.
    """

    def __init__(self, seats: Seats, mismatches: Mismatches) -> None:
        self._seats = seats
        self._mismatches = mismatches
        self._ranks: deque[int] = deque()
        self._begun = False  # the walk for the first rank
        self._streams: list[Stream] = []
        self._keys = 0
        self._rounds = 0

    def __bool__(self) -> bool:
        return bool(self._ranks)

    def add(self, rank: int) -> None:
        """The rank has reconnected. What it was told on its old connection does not count."""
        if rank in self._ranks:
            self._begun = self._begun and self._ranks[0] != rank
        else:
            self._ranks.append(rank)

    def tell(self, streams: Iterable[Stream], now: float) -> list[Output]:
        """Return the next part."""
        out: list[Output] = []
        rank = self._ranks[0]
        session = self._seats.sessions[rank]
        if not self._begun and session is not None:
            self._begin(streams)
        if session is None or not self._streams:
            self._end()
        elif self._keys and not self._streams[-1].is_over:
            self._tell_keys(session, now, out)
        elif self._rounds and not self._streams[-1].is_over:
            self._tell_rounds(rank, out)
        else:
            self._streams.pop()
            self._enter()
        return out

    def _tell_keys(self, session: int, now: float, out: list[Output]) -> None:
        stream = self._streams[-1]
        keys, self._keys = stream.keys.listing.before(self._keys, MAX_HEARTBEAT_ENTRIES)
        payload = stream.keys.payload(keys, now)
        if payload:
            out.append(self._seats.heartbeat(stream, payload, (session,)))

    def _tell_rounds(self, rank: int, out: list[Output]) -> None:
        rounds, self._rounds = self._streams[-1].refused.before(self._rounds, PART_ROUNDS)
        for round_ in rounds:
            self._mismatches.again(round_, rank, out)

    def _begin(self, streams: Iterable[Stream]) -> None:
        self._begun = True
        self._streams = [stream for stream in streams if len(stream.keys) or len(stream.refused)]
        self._enter()

    def _enter(self) -> None:
        """Begin with the next stream, if any is left."""
        if self._streams:
            stream = self._streams[-1]
            self._keys, self._rounds = len(stream.keys), len(stream.refused)

    def _end(self) -> None:
        self._ranks.popleft()
        self._begun = False
        self._streams.clear()
