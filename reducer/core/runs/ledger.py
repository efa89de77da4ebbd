"""What each rank of a run has sent without an answer, and which round it was granted."""

from __future__ import annotations

from reducer.core.limits.budget import Window
from reducer.core.rounds.round import Round
from reducer.wire.errors import QuotaError


class UnreadError(QuotaError):
    """A rank sends on and does not read what it was sent."""


class Ledger:
    """The unanswered cost of each rank of a job on this lane, and the round it was granted."""

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
        """What to tell a rank that sends what it has no room for."""
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
