"""The shares of the reducers: what passes each NIC, and that nothing better exists."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction

import pytest

from reducer.shares import (
    MOST_WEIGHT,
    Shares,
    best_shares,
    least_time,
    weights_of,
)

Rates = Sequence[Fraction]


def slowest_nic(
    shares: Sequence[Fraction], hosts: int, workers: Rates, dedicated: Rates
) -> Fraction:
    """The time that the NICs need, from the bytes of every flow; the first `hosts` are hosted."""
    n = len(workers)
    out = [Fraction()] * (n + len(dedicated))
    into = list(out)
    places = [*range(hosts), *range(n, n + len(dedicated))]
    for place, share in zip(places, shares, strict=True):
        for worker in range(n):
            if worker == place:
                continue  # on one machine
            for sender, receiver in ((worker, place), (place, worker)):
                out[sender] += share
                into[receiver] += share
    rates = [*workers, *dedicated]
    return max(max(o, i) / rate for o, i, rate in zip(out, into, rates, strict=True))


def rates(rng: random.Random, count: int) -> list[Fraction]:
    return [Fraction(rng.choice((10, 25, 40, 100))) for _ in range(count)]


@pytest.mark.parametrize("n", [3, 4, 8, 25])
def test_equal_nics_take_the_time_of_the_paper(n: int) -> None:
    for k in range(n + 3):
        shares = best_shares([Fraction(10)] * n, [Fraction(10)] * k)
        used = min(k, n)
        paper = Fraction(2 * n * (n - 1), n * n + used * n - 2 * used)
        assert shares.time == paper / 10
        if 0 < k <= n:
            assert shares.dedicated[0] == Fraction(2 * (n - 1), n * n + k * n - 2 * k)
            assert shares.hosted[0] == Fraction(n - k, n * n + k * n - 2 * k)


@pytest.mark.parametrize("seed", range(60))
def test_no_other_shares_are_faster(seed: int) -> None:
    rng = random.Random(seed)
    workers = rates(rng, rng.randrange(2, 7))
    dedicated = rates(rng, rng.randrange(5))
    best = best_shares(workers, dedicated)
    everyone = [*best.hosted, *best.dedicated]
    assert sum(everyone) == 1 and min(everyone) >= 0
    assert slowest_nic(everyone, len(workers), workers, dedicated) == best.time
    for _ in range(50):
        moved = [max(Fraction(), part + Fraction(rng.randrange(-9, 10), 99)) for part in everyone]
        total = sum(moved)
        if total:
            other = [part / total for part in moved]
            assert slowest_nic(other, len(workers), workers, dedicated) >= best.time


def test_one_worker_needs_no_nic_and_two_need_no_dedicated_reducer() -> None:
    one = [Fraction(10)]
    assert best_shares(one, one) == Shares((Fraction(1),), (Fraction(),), Fraction())
    assert least_time(2, Fraction(10), Fraction(20), Fraction(0)) == Fraction(1, 10)
    assert best_shares(one * 2, []).hosted == (Fraction(1, 2), Fraction(1, 2))


@pytest.mark.parametrize("seed", range(40))
def test_weights_keep_the_shares(seed: int) -> None:
    rng = random.Random(seed)
    shares = [Fraction(rng.choice((0, 1, 3, 997, 10_007))) for _ in range(rng.randrange(2, 40))]
    shares.append(Fraction(5))
    weights = weights_of(shares)
    assert all((weight > 0) == (share > 0) for weight, share in zip(weights, shares, strict=True))
    total = sum(weights)
    assert total <= MOST_WEIGHT + len(shares)
    for weight, share in zip(weights, shares, strict=True):
        part = share / sum(shares)
        exact = Fraction(weight, total) == part
        assert exact or weight == 1 or abs(weight - part * MOST_WEIGHT) < 1
