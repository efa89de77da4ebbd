"""The credit of a run: unanswered cost, the granted round, and debts for void rounds."""

from __future__ import annotations

from collections.abc import Iterable

from reducer.core.limits.budget import RankLimits
from reducer.core.limits.charges import OWED
from reducer.core.rounds.open_rounds import OpenRounds
from reducer.core.rounds.round import Debt, Round
from reducer.core.runs.seats import Seats
from reducer.core.surface.events import Output, Send
from reducer.wire.codes import MessageKind
from reducer.wire.errors import QuotaError
from reducer.wire.header import Crc, Header, pack_header


class UnreadError(QuotaError):
    """A rank keeps sending and does not read."""


class Accounts:
    """The unanswered cost of each rank of a run, and the round that the rank was granted."""

    def __init__(self, limits: RankLimits, world_size: int) -> None:
        self.limits = limits
        self._limit = limits.unanswered
        self._unread = limits.unread
        self._unanswered = [0] * world_size
        # The round's `opening`: a reference would keep a forgotten round in memory.
        self._granted = [0] * world_size

    def fits(self, rank: int, cost: int, unread: int) -> bool:
        """Whether the rank has room for `cost` more while `unread` bytes wait for it."""
        owed = self._unanswered[rank] + cost
        return owed <= self._limit and owed + unread <= self._unread

    @property
    def slack(self) -> int:
        """How many bytes may wait for a rank, whatever its unanswered cost."""
        return self._unread - self._limit

    def unread_room(self, rank: int) -> int:
        """How many bytes may wait for the rank now, including a frame that it is sending."""
        return self._unread - self._unanswered[rank]

    def over(self, rank: int, cost: int, unread: int) -> QuotaError:
        """The error for a rank that sends more than it has room for."""
        owed = self._unanswered[rank]
        if owed + cost > self._limit:
            return QuotaError(
                f"rank {rank} has {owed:,} bytes unanswered and sends {cost:,} more: above its "
                f"limit of {self._limit:,}"
            )
        return self.too_slow(rank, cost, unread)

    def too_slow(self, rank: int, size: int, unread: int) -> UnreadError:
        return UnreadError(
            f"rank {rank} has {self._unanswered[rank]:,} bytes unanswered, {unread:,} that it has "
            f"not read, and sends {size:,} more: above its limit of {self._unread:,} "
            "(a slow reader)"
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
        return self._unanswered[rank] + self.limits.largest > self.limits.credit

    def grant(self, rank: int, oldest: Round) -> bool:
        """Grant the rank the oldest round. Returns whether the rank must be sent a GRANT.

        No GRANT is sent to a rank that has sent the whole round, or was granted it before.
        """
        if self._granted[rank] == oldest.opening or not oldest.wants(rank):
            return False
        self._granted[rank] = oldest.opening
        return True

    def forget_grant(self, rank: int) -> None:
        """Forget the rank's grant: the rank may not have received it."""
        self._granted[rank] = 0


class Grants:
    """Grants the oldest open round to the ranks whose credit may be used up.

    So the oldest round can always proceed.
    """

    def __init__(self, accounts: Accounts, open_: OpenRounds, seats: Seats, crc: Crc) -> None:
        self._accounts = accounts
        self._open = open_
        self._seats = seats
        self._crc = crc

    def begin(self, round_: Round, now: float, out: list[Output]) -> None:
        """The first contribution to the round has come."""
        self._open.begin(round_, now)
        if len(self._open) == 1:
            self.grant_oldest(out)

    def end(self, round_: Round, out: list[Output]) -> None:
        """The round is no longer open. If it was the oldest, ranks may need a grant of the next
        one.
        """
        if self._open.end(round_):
            self.grant_oldest(out)

    def end_all(self, rounds: Iterable[Round], out: list[Output]) -> None:
        """Like `end`, for several rounds."""
        was_oldest = False
        for round_ in rounds:
            was_oldest |= self._open.end(round_)
        if was_oldest:
            self.grant_oldest(out)

    def grant_oldest(self, out: list[Output]) -> None:
        """Another round is the oldest now: grant it to the ranks that run low.

        A rank may run low even if no other round is open, because of what it has sent of void
        rounds.
        """
        self._grant(range(len(self._seats.sessions)), out)

    def maybe_grant(self, rank: int, out: list[Output]) -> None:
        """Let the rank continue with the oldest open round if its credit may be used up."""
        if self._accounts.runs_low(rank):
            self._grant((rank,), out)

    def _grant(self, ranks: Iterable[int], out: list[Output]) -> None:
        """Send one GRANT to the connected ranks that run low and have not sent the whole round."""
        oldest, accounts = self._open.oldest, self._accounts
        if oldest is None:
            return
        low = [rank for rank in ranks if accounts.runs_low(rank) and accounts.grant(rank, oldest)]
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
        """Repeat the grant for a rank that may not have received it."""
        self._accounts.forget_grant(rank)
        self.maybe_grant(rank, out)


class Debts:
    """The debts of ranks: the cost of what they have sent of void rounds.

    `_sums`: the total of each rank. `_times`: how often each rank has reconnected. A rank that
    reconnects sends everything again, so debts with an older `times` no longer count. No walk over
    the rounds is needed for that.
    """

    def __init__(self, accounts: Accounts, world_size: int) -> None:
        self._accounts = accounts
        self._sums = [0] * world_size
        self._times = [0] * world_size

    def note(self, round_: Round, costs: dict[int, int]) -> None:
        """The round becomes void: note the cost of what each rank has sent of it.

        The accounts have charged this cost already. Raises RecordsError before anything is noted.
        """
        round_.charge(OWED * len(costs))
        for rank, cost in costs.items():
            round_.owed[rank] = Debt(cost, self._times[rank])
            self._sums[rank] += cost

    def add(self, round_: Round, rank: int, cost: int) -> None:
        """The rank has sent `cost` more of a void round; raises RecordsError."""
        debt, times = round_.owed.get(rank), self._times[rank]
        if debt is None:
            round_.charge(OWED)
            round_.stream.rounds.add(round_)
        if debt is None or debt.times != times:
            round_.owed[rank] = Debt(cost, times)
        else:
            debt.cost += cost
        self._sums[rank] += cost
        self._accounts.charge(rank, cost)

    def settle(self, round_: Round, rank: int) -> None:
        """Settle the debt of a rank that has abandoned the round."""
        debt = round_.owed.pop(rank, None)
        if debt is not None and debt.times == self._times[rank]:
            self._sums[rank] -= debt.cost
            self._accounts.settle(rank, debt.cost)

    def settle_all(self, round_: Round) -> None:
        """Settle the debts of all ranks for a round that is forgotten."""
        for rank in list(round_.owed):
            self.settle(round_, rank)

    def begin_again(self, rank: int) -> None:
        """The rank has reconnected and sends everything again: settle its debts."""
        self._accounts.settle(rank, self._sums[rank])
        self._sums[rank] = 0
        self._times[rank] += 1


class Flow:
    """The accounts of a run, its open rounds, and the grants and debts that change the accounts."""

    def __init__(self, limits: RankLimits, world_size: int, seats: Seats, crc: Crc) -> None:
        self.accounts = Accounts(limits, world_size)
        self.open = OpenRounds()
        self.grants = Grants(self.accounts, self.open, seats, crc)
        self.debts = Debts(self.accounts, world_size)
