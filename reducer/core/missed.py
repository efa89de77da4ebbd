"""What a rank that is back may have missed: told in parts, so that other jobs have their turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Final

from reducer.core.events import Output
from reducer.core.progress import KeyProgress
from reducer.core.round import Round
from reducer.core.seats import Seats
from reducer.core.stream import Stream
from reducer.core.verdicts import Verdicts
from reducer.wire.codes import MAX_HEARTBEAT_ENTRIES

# Of one part: REFUSED frames, each of 16 KiB at most, or one HEARTBEAT.
PART_ROUNDS: Final = 4


class Missed:
    """Stable positions and verdicts, for one rank after the other."""

    def __init__(self, seats: Seats, verdicts: Verdicts) -> None:
        self._seats = seats
        self._verdicts = verdicts
        self._ranks: deque[int] = deque()
        self._begun = False  # with the first of them
        self._keys: list[tuple[Stream, list[KeyProgress]]] = []
        self._rounds: list[Round] = []

    def __bool__(self) -> bool:
        return bool(self._ranks)

    def add(self, rank: int) -> None:
        """The rank is back; what it was told on its old connection does not count."""
        if rank in self._ranks:
            self._begun = self._begun and self._ranks[0] != rank
        else:
            self._ranks.append(rank)

    def tell(self, streams: Iterable[Stream], now: float) -> list[Output]:
        """The next part."""
        out: list[Output] = []
        rank = self._ranks[0]
        session = self._seats.sessions[rank]
        if not self._begun and session is not None:
            self._begin(streams)
        if session is None or not (self._keys or self._rounds):
            self._end()
        elif self._keys:
            stream, keys = self._keys.pop()
            payload = stream.keys.payload(keys, now)
            if payload:
                out.append(self._seats.heartbeat(stream, payload, (session,)))
        else:
            for _ in range(min(PART_ROUNDS, len(self._rounds))):
                self._verdicts.again(self._rounds.pop(), rank, out)
        return out

    def _begin(self, streams: Iterable[Stream]) -> None:
        self._begun = True
        self._keys, self._rounds = [], []
        for stream in streams:
            keys = iter(stream.keys)
            while part := list(islice(keys, MAX_HEARTBEAT_ENTRIES)):
                self._keys.append((stream, part))
            self._rounds += [round_ for round_ in stream.rounds if round_.refused is not None]

    def _end(self) -> None:
        self._ranks.popleft()
        self._begun = False
        self._keys, self._rounds = [], []
