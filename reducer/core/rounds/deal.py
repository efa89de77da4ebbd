"""Deals chunks to owners by weight, as evenly as whole chunks allow."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import accumulate
from math import gcd


class Deal:
    """Deals the numbers 0, 1, 2, ... to parties; the party of weight w gets w of each `period`.

    Of the numbers below n, each party has its exact share, give or take less than one (P-fairness:
    S. Baruah et al., Proportionate progress, 1996). Parties of equal weight take turns.
    """

    __slots__ = ("_firsts", "_parties", "_places", "_turns", "_weights", "period")

    def __init__(self, weights: Sequence[int]) -> None:
        common = gcd(*weights)
        self.period = sum(weights) // max(1, common)
        # Of one period, if the weights differ: by number, its party and how many earlier numbers
        # the party has; and the numbers of each party, which begin at `_firsts`.
        self._weights: list[int] = []
        self._parties = array("H")
        self._turns = array("H")
        self._places = array("H")
        self._firsts: list[int] = []
        if self.period > len(weights):
            self._weights = [weight // common for weight in weights]
            self._deal()

    def party(self, number: int) -> int:
        """Who has the number."""
        at = number % self.period
        return self._parties[at] if self._weights else at

    def turn(self, number: int) -> int:
        """How many numbers below this one its party has."""
        periods, at = divmod(number, self.period)
        if not self._weights:
            return periods
        return periods * self._weights[self._parties[at]] + self._turns[at]

    def below(self, party: int, number: int) -> int:
        """How many numbers below this one the party has."""
        periods, at = divmod(number, self.period)
        if not self._weights:
            return periods + int(party < at)
        first, weight = self._firsts[party], self._weights[party]
        return periods * weight + bisect_left(self._places, at, first, first + weight) - first

    def _deal(self) -> None:
        """The j-th number of a party of share s lies in [j/s, (j+1)/s): of all parties whose
        interval has begun, the one whose interval ends first has the next number.
        """
        period, weights = self.period, self._weights
        self._firsts = [0, *accumulate(weights[:-1])]
        self._places = array("H", bytes(2 * period))
        had = [0] * len(weights)
        begins = [(0, party) for party in range(len(weights))]
        ends: list[tuple[int, int]] = []
        for number in range(period):
            while begins and begins[0][0] <= number:
                party = heappop(begins)[1]
                heappush(ends, (-(-(had[party] + 1) * period // weights[party]), party))
            party = heappop(ends)[1]
            self._parties.append(party)
            self._turns.append(had[party])
            self._places[self._firsts[party] + had[party]] = number
            had[party] += 1
            heappush(begins, (had[party] * period // weights[party], party))
