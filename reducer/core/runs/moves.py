"""Drops streams that a newer route moves away, in parts (PROTOCOL.md, section 11)."""

from __future__ import annotations

from collections import deque
from typing import Final

from reducer.core.rounds.round import Round
from reducer.core.rounds.stream import Stream
from reducer.core.runs.flow import Flow
from reducer.core.runs.sums import Sums
from reducer.core.surface.buffer import Buffer
from reducer.core.surface.events import Free, Output

# How many streams without rounds are dropped at once: 0.3 us each. A job has one stream for each
# dead reducer.
STREAMS_AT_ONCE: Final = 256


class Moves:
    """`streams` have moved away and are still to be dropped; those with rounds come first."""

    def __init__(self, number: int, flow: Flow, sums: Sums) -> None:
        self.streams: deque[Stream] = deque()
        self._number = number
        self._flow = flow
        self._sums = sums

    def __bool__(self) -> bool:
        return bool(self.streams)

    def add(self, stream: Stream) -> None:
        """The stream has moved away: its frames are dropped from now on."""
        stream.is_over = True
        if stream.rounds:
            self.streams.appendleft(stream)
        else:
            self.streams.append(stream)

    def drop_some(self, out: list[Output]) -> None:
        """Drop all streams with rounds, which hold buffers, and the next of the other streams."""
        freed: list[Buffer] = []
        out.append(Free(self._number, freed))
        dropped = 0
        while self.streams and (self.streams[0].rounds or dropped < STREAMS_AT_ONCE):
            stream = self.streams[0]
            for round_ in stream.rounds:
                self._forget(round_)
            stream.drop(freed)
            self.streams.popleft()
            dropped += 1

    def _forget(self, round_: Round) -> None:
        """The round continues on another lane."""
        self._flow.open.drop(round_)
        self._flow.debts.settle_all(round_)
        for rank, cost in round_.unanswered().items():
            self._flow.accounts.settle(rank, cost)
        self._sums.forget(round_)
