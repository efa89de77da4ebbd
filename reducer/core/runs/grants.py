"""Who is granted the oldest open round (PROTOCOL.md, section 7)."""

from __future__ import annotations

from collections.abc import Iterable

from reducer.core.rounds.open_rounds import OpenRounds
from reducer.core.rounds.round import Round
from reducer.core.runs.ledger import Ledger
from reducer.core.runs.seats import Seats
from reducer.core.surface.events import Output, Send
from reducer.wire.codes import MessageKind
from reducer.wire.header import Crc, Header, pack_header


class Grants:
    """Every rank can always go on with the oldest round, whatever else it has unanswered."""

    def __init__(self, ledger: Ledger, open_: OpenRounds, seats: Seats, crc: Crc) -> None:
        self._ledger = ledger
        self._open = open_
        self._seats = seats
        self._crc = crc

    def begin(self, round_: Round, now: float, out: list[Output]) -> None:
        """Its first contribution has come."""
        self._open.begin(round_, now)
        if len(self._open) == 1:
            self.to_stuck(out)

    def end(self, round_: Round, out: list[Output]) -> None:
        """The round is open no more; if it was the oldest, the next one may need a grant."""
        if self._open.end(round_):
            self.to_stuck(out)

    def end_all(self, rounds: Iterable[Round], out: list[Output]) -> None:
        """As above."""
        was_oldest = False
        for round_ in rounds:
            was_oldest |= self._open.end(round_)
        if was_oldest:
            self.to_stuck(out)

    def to_stuck(self, out: list[Output]) -> None:
        """Another round is the oldest now: whoever cannot go on may need it.

        Ranks are stuck even while no other round is open: by what they sent of void rounds.
        """
        self._grant(range(len(self._seats.sessions)), out)

    def maybe_grant(self, rank: int, out: list[Output]) -> None:
        """Let a rank go on with the oldest open round when its credit may be used up."""
        if self._ledger.runs_low(rank):
            self._grant((rank,), out)

    def _grant(self, ranks: Iterable[int], out: list[Output]) -> None:
        """One frame for all of them that run low, have part of the round to send and are here."""
        oldest, ledger = self._open.oldest, self._ledger
        if oldest is None:
            return
        low = [rank for rank in ranks if ledger.runs_low(rank) and ledger.grant(rank, oldest)]
        if not low:
            return
        sessions = self._seats.of(low)
        if sessions:
            stream = oldest.stream
            header = Header(
                kind=MessageKind.GRANT, epoch=self._seats.epoch, chunk=stream.home,
                key=oldest.key.id, round=oldest.number, route=stream.since,
            )  # fmt: skip
            frame = pack_header(header, self._crc)
            out.append(Send(self._seats.run, sessions, frame, None, 0))

    def again(self, rank: int, out: list[Output]) -> None:
        """The rank may not have heard of what it was granted."""
        self._ledger.take_grant(rank)
        self.maybe_grant(rank, out)
