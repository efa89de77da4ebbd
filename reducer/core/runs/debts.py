"""What ranks have sent of void rounds: it counts until they abandon these, or send it again."""

from __future__ import annotations

from reducer.core.limits.records import OWED
from reducer.core.rounds.round import Debt, Round
from reducer.core.runs.ledger import Ledger


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
        """What the rank has sent it sends again, as it is back on a new connection."""
        self._ledger.settle(rank, self._sums[rank])
        self._sums[rank] = 0
        self._times[rank] += 1
