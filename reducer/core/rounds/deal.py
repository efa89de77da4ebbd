"""Deals chunks to owners by weight, as evenly as whole chunks allow."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from heapq import heappop, heappush
from math import gcd


class Deal:
    """Deals the numbers 0, 1, 2, ... to parties; the party of weight w gets w of each `period`.

    Of the numbers below n, each party has its exact share, give or take less than one (P-fairness:
    S. Baruah et al., Proportionate progress, 1996). Parties of equal weight take turns.
    """

    __slots__ = ("_parties", "_places", "_turns", "_weights", "period")

    def __init__(self, weights: Sequence[int]) -> None:
        common = gcd(*weights)
        self._weights = [weight // common for weight in weights]
        self.period = sum(self._weights)
        self._parties: list[int] = []  # by number, in one period; empty if all weights are equal
        self._turns: list[int] = []  # how many earlier numbers of the period the party has
        self._places: list[list[int]] = []  # by party: its numbers in one period
        if self.period > len(weights):
            self._deal()

    def party(self, number: int) -> int:
        """Who has the number."""
        at = number % self.period
        return self._parties[at] if self._parties else at

    def turn(self, number: int) -> int:
        """How many numbers below this one its party has."""
        periods, at = divmod(number, self.period)
        if not self._parties:
            return periods
        return periods * self._weights[self._parties[at]] + self._turns[at]

    def below(self, party: int, number: int) -> int:
        """How many numbers below this one the party has."""
        periods, at = divmod(number, self.period)
        if not self._parties:
            return periods + int(party < at)
        return periods * self._weights[party] + bisect_left(self._places[party], at)

    def _deal(self) -> None:
        """The j-th number of a party of share s lies in [j/s, (j+1)/s): of all parties whose
        interval has begun, the one whose interval ends first has the next number.
        """
        period, weights = self.period, self._weights
        self._places = [[] for _ in weights]
        begins = [(0, party) for party in range(len(weights))]
        ends: list[tuple[int, int]] = []
        for number in range(period):
            while begins and begins[0][0] <= number:
                party = heappop(begins)[1]
                had = len(self._places[party])
                heappush(ends, (-(-(had + 1) * period // weights[party]), party))
            party = heappop(ends)[1]
            self._parties.append(party)
            self._turns.append(len(self._places[party]))
            self._places[party].append(number)
            heappush(begins, (len(self._places[party]) * period // weights[party], party))
