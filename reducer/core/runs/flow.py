"""The credit of a run: what ranks have unanswered, which round they are granted, what they owe."""

from __future__ import annotations

from collections.abc import Iterable

from reducer.core.limits.budget import Window
from reducer.core.limits.records import OWED
from reducer.core.rounds.open_rounds import OpenRounds
from reducer.core.rounds.round import Debt, Round
from reducer.core.runs.seats import Seats
from reducer.core.surface.events import Output, Send
from reducer.wire.codes import MessageKind
from reducer.wire.errors import QuotaError
from reducer.wire.header import Crc, Header, pack_header


class UnreadError(QuotaError):
    """A rank sends on and does not read what it was sent."""


class Ledger:
    """The unanswered cost of each rank of a run, and the round that the rank was granted."""

    def __init__(self, window: Window, world_size: int) -> None:
        self.window = window
        self._limit = window.limit
        self._unread = window.unread
        self._unanswered = [0] * world_size
        # By its `opening`: a round that is forgotten, known here, would keep its memory.
        self._granted = [0] * world_size

    def fits(self, rank: int, cost: int, unread: int) -> bool:
        """Whether the rank has room for so much more, while it has left `unread` bytes unread."""
        owed = self._unanswered[rank] + cost
        return owed <= self._limit and owed + unread <= self._unread

    @property
    def slack(self) -> int:
        """How many bytes may wait for a rank whatever it has unanswered."""
        return self._unread - self._limit

    def unread_room(self, rank: int) -> int:
        """How many bytes may wait for the rank, or come from it in a frame, beside what it has
        unanswered."""
        return self._unread - self._unanswered[rank]

    def over(self, rank: int, cost: int, unread: int) -> QuotaError:
        """The error for a rank that sends more than it has room for."""
        owed = self._unanswered[rank]
        if owed + cost > self._limit:
            return QuotaError(
                f"rank {rank} has {owed:,} bytes unanswered and sends {cost:,} more: over its "
                f"{self._limit:,}"
            )
        return self.too_slow(rank, cost, unread)

    def too_slow(self, rank: int, size: int, unread: int) -> UnreadError:
        return UnreadError(
            f"rank {rank} has {self._unanswered[rank]:,} bytes unanswered, {unread:,} that it has "
            f"not read, and sends {size:,} more: over its {self._unread:,} (a slow reader)"
        )

    def charge(self, rank: int, cost: int) -> None:
        self._unanswered[rank] += cost

    def settle(self, rank: int, cost: int) -> None:
        self._unanswered[rank] -= cost

    def settle_all(self, cost: int) -> None:
        """A chunk is answered to every rank."""
        self._unanswered = [owed - cost for owed in self._unanswered]

    def runs_low(self, rank: int) -> bool:
        """Whether the rank's next chunk might not fit in its credit."""
        return self._unanswered[rank] + self.window.largest > self.window.credit

    def grant(self, rank: int, oldest: Round) -> bool:
        """Whether a rank that runs low must be told now that it may go on with the oldest round.

        So it is when some of that round is still to come from it.
        """
        if self._granted[rank] == oldest.opening or not oldest.wants(rank):
            return False
        self._granted[rank] = oldest.opening
        return True

    def take_grant(self, rank: int) -> None:
        """Forget what the rank was granted: it may not have heard of it."""
        self._granted[rank] = 0


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
        """As `end`, for several rounds."""
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


class Debts:
    """`_sums` adds up the debts of each rank; `_times` counts how often a rank was back.

    A rank that is back sends everything again, so debts that a round noted before count no more:
    that takes no walk over the rounds.
    """

    def __init__(self, ledger: Ledger, world_size: int) -> None:
        self._ledger = ledger
        self._sums = [0] * world_size
        self._times = [0] * world_size

    def note(self, round_: Round, costs: dict[int, int]) -> None:
        """The round becomes void: what each rank has sent of it, which the ledger knows.

        Raises RecordsError before anything is noted.
        """
        round_.charge(OWED * len(costs))
        for rank, cost in costs.items():
            round_.owed[rank] = Debt(cost, self._times[rank])
            self._sums[rank] += cost

    def add(self, round_: Round, rank: int, cost: int) -> None:
        """The rank sends so much more of a void round; raises RecordsError."""
        debt, times = round_.owed.get(rank), self._times[rank]
        if debt is None:
            round_.charge(OWED)
            round_.stream.rounds.add(round_)
        if debt is None or debt.times != times:
            round_.owed[rank] = Debt(cost, times)
        else:
            debt.cost += cost
        self._sums[rank] += cost
        self._ledger.charge(rank, cost)

    def settle(self, round_: Round, rank: int) -> None:
        """The rank has abandoned the round."""
        debt = round_.owed.pop(rank, None)
        if debt is not None and debt.times == self._times[rank]:
            self._sums[rank] -= debt.cost
            self._ledger.settle(rank, debt.cost)

    def settle_all(self, round_: Round) -> None:
        """The round is forgotten."""
        for rank in list(round_.owed):
            self.settle(round_, rank)

    def begin_again(self, rank: int) -> None:
        """The rank is back on a new connection, and sends everything again."""
        self._ledger.settle(rank, self._sums[rank])
        self._sums[rank] = 0
        self._times[rank] += 1


class Flow:
    """One ledger, and who writes in it."""

    def __init__(self, window: Window, world_size: int, seats: Seats, crc: Crc) -> None:
        self.ledger = Ledger(window, world_size)
        self.open = OpenRounds()
        self.grants = Grants(self.ledger, self.open, seats, crc)
        self.debts = Debts(self.ledger, world_size)
