"""Handles KEY, DESCRIBE and ABANDON: what ranks say about keys and rounds."""

from __future__ import annotations

from reducer.core.limits.charges import LIST_PLACE, MARK, ROUND
from reducer.core.rounds.header_checks import Plans
from reducer.core.rounds.stream import Streams
from reducer.core.runs.mismatches import Mismatches
from reducer.core.runs.seats import Seats
from reducer.core.surface.events import Output
from reducer.wire import messages
from reducer.wire.errors import ProtocolError
from reducer.wire.header import Header
from reducer.wire.keys import position


class RoundMessages:
    def __init__(
        self, plans: Plans, seats: Seats, streams: Streams, mismatches: Mismatches
    ) -> None:
        self._plans = plans
        self._seats = seats
        self._streams = streams
        self._records = streams.records
        self._mismatches = mismatches

    def announce(self, rank: int, header: Header, name: str, now: float) -> None:
        """KEY: a rank tells the name of a key."""
        stream = self._streams.find(rank, header.chunk, header)
        if stream is not None:
            stream.keys.announce(header.key, name, now)

    def describe(self, rank: int, header: Header, now: float, out: list[Output]) -> None:
        """DESCRIBE: the descriptor of a round, from a rank that cannot send its chunks yet."""
        world_size = len(self._seats.sessions)
        plan = self._plans.checked(header, rank)
        home = self._streams.owners.home(header.key, 0)
        stream = self._streams.find(rank, home, header)
        if stream is None:
            return
        if not stream.place.owns(header.key, 0):
            raise ProtocolError(
                f"rank {rank} described a round to a lane that does not own its chunk 0"
            )
        key = stream.keys.open(header.key, now)
        known = header.round in key.rounds
        # A DESCRIBE only speeds up a verdict, so it is dropped if records are short.
        keep = known or self._records.half_free(ROUND + LIST_PLACE * world_size)
        if position(header.round, 0) < key.stable or not keep:
            stream.keys.maybe_idle(key)
            return
        round_ = key.described(stream, header, plan, now)
        if not round_.void and not round_.agrees(header, plan):
            self._mismatches.mismatch(round_, out)
        if round_.void:
            self._mismatches.collect(round_, rank, header, out)
        elif self._records.half_free(MARK):
            round_.mark(round_.described, rank)

    def abandon(
        self, rank: int, header: Header, cause: messages.Abandon, now: float, out: list[Output]
    ) -> None:
        """ABANDON: the rank has given up a round."""
        stream = self._streams.find(rank, header.chunk, header)
        if stream is None:
            return
        key = stream.keys.open(header.key, now)
        # Known rounds first: a rank that sent nothing of a round here may have passed it already.
        round_ = key.rounds.get(header.round)
        if round_ is None:
            if position(header.round + 1, 0) <= key.stable:
                stream.keys.maybe_idle(key)
                return
            round_ = key.begin(stream, header.round, now)
        self._mismatches.abandon(round_, rank, cause, out)
        key.forget_if_over(round_)
        stream.keys.maybe_idle(key)
