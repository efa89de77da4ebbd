"""Chunks are dealt by weight: every prefix is fair to less than one chunk."""

from __future__ import annotations

import random
import tracemalloc
from fractions import Fraction

import pytest

from reducer.core.limits.charges import slot_bytes
from reducer.core.rounds.chunk_owners import Owners, Route
from reducer.core.rounds.deal import Deal
from reducer.wire.codes import MAX_WEIGHTED, MAX_WEIGHTS

CASES = [(1,), (1, 1, 1), (3, 3, 1, 1, 1, 1), (6, 6, 2, 2), (1, 1_000), (7, 5, 3, 2), (255, 254, 1)]
CASES += [tuple(random.Random(n).choices(range(1, 64), k=2 + n)) for n in range(30)]


@pytest.mark.parametrize("weights", CASES)
def test_every_prefix_gives_each_party_its_share_to_less_than_one(weights: tuple[int, ...]) -> None:
    deal = Deal(weights)
    total = sum(weights)
    had = [0] * len(weights)
    for number in range(2 * deal.period):
        for party, weight in enumerate(weights):
            assert abs(had[party] - Fraction(number * weight, total)) < 1
            assert deal.below(party, number) == had[party]
        party = deal.party(number)
        assert deal.turn(number) == had[party]
        had[party] += 1


@pytest.mark.parametrize("weights", CASES)
def test_any_1024_chunks_are_fair_to_one_percent(weights: tuple[int, ...]) -> None:
    deal = Deal(weights)
    for start in range(0, deal.period, max(1, deal.period // 50)):
        for party, weight in enumerate(weights):
            got = deal.below(party, start + 1_024) - deal.below(party, start)
            assert abs(got / 1_024 - weight / sum(weights)) < 0.01


def test_equal_weights_take_turns() -> None:
    for weight in (1, 5):
        deal = Deal((weight,) * 7)
        for number in range(50):
            assert (deal.party(number), deal.turn(number)) == (number % 7, number // 7)


@pytest.mark.parametrize("slots", [2, MAX_WEIGHTED])
def test_the_deals_of_a_run_take_what_is_charged(slots: int) -> None:
    weights = (MAX_WEIGHTS - slots + 1, *(1,) * (slots - 1))
    live = (1,) * (slots - 1) + (0,)
    route = Route(1, (1,) * slots, live, (1,) * slots)
    tracemalloc.start()
    owners = Owners(route, weights)
    took, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert owners.owner(0, 0) == (0, 0)
    assert slot_bytes(slots, weights) // 8 < took < slot_bytes(slots, weights)
