"""The shares of the reducers at which the NICs need the least time for an all-reduce.

Reducers are *dedicated*, on machines of their own, or *hosted*, each on the machine of a worker.
All sizes are parts of the array of a worker, and a time is the size divided by a rate: multiply it
by the bytes of the array.

n workers have NICs of the rates b_1 ... b_n, the dedicated reducers of r_1 ... r_k. All NICs are
full-duplex. Let the hosted reducer of worker i have the share x_i, and dedicated reducer j the
share y_j; together they have 1.

- Dedicated reducer j receives its share from n workers, and sends the sum to all: n y_j each way.
- Worker i sends all shares but x_i, which stays on the machine, and its reducer sends n - 1 results
  of x_i. Each way that makes 1 - x_i + (n - 1) x_i = 1 + (n - 2) x_i.

A time T is enough if n y_j <= T r_j and 1 + (n - 2) x_i <= T b_i for all of them. So T is at least
1 / min(b). The largest shares that T allows add up to T sum(r) / n + (T sum(b) - n) / (n - 2), and
this must be at least 1. For n > 2 therefore

    T = max(1 / min(b), (1 + n / (n - 2)) / (sum(r) / n + sum(b) / (n - 2))).

With equal NICs of rate 1 this is 2n (n - 1) / (n^2 + kn - 2k), the formula of Jiang and others, "A
unified architecture for accelerating distributed DNN training in heterogeneous GPU/CPU clusters"
(OSDI 2020), section 4.1: 2 (n - 1) / n without dedicated reducers, as a ring, and 1 with n of them.
For n = 2 the hosted shares change nothing, and T = 1 / min(b).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

# What weights add up to at most: then every share is right to 1/1024 of the array.
MOST_WEIGHT = 1_024


@dataclass(frozen=True, slots=True)
class Shares:
    """`hosted` by worker, `dedicated` by reducer, 1 in all. `time` is for an array of size 1."""

    hosted: tuple[Fraction, ...]
    dedicated: tuple[Fraction, ...]
    time: Fraction


def least_time(
    workers: int, slowest: Fraction, all_workers: Fraction, all_dedicated: Fraction
) -> Fraction:
    """The least time with hosted reducers.

    ``slowest``: the rate of the slowest worker; ``all_workers``, ``all_dedicated``: the sums of the
    rates.
    """
    if workers == 1:
        return Fraction(0)
    if workers == 2:
        return 1 / slowest
    rest = workers - 2
    spread = (1 + Fraction(workers, rest)) / (all_dedicated / workers + all_workers / rest)
    return max(1 / slowest, spread)


def best_shares(workers: Sequence[Fraction], dedicated: Sequence[Fraction]) -> Shares:
    """The shares with hosted reducers on all workers, from the rates of the NICs.

    Dedicated reducers get as much as the least time allows: their CPUs have nothing else to do.

    >>> [str(share) for share in best_shares([Fraction(1)] * 4, [Fraction(1)] * 2).dedicated]
    ['3/10', '3/10']
    """
    n = len(workers)
    time = least_time(n, min(workers), sum(workers, Fraction()), sum(dedicated, Fraction()))
    capacity = [time * rate / n for rate in dedicated]
    if n == 1:  # no byte passes a NIC
        return Shares((Fraction(1),), (Fraction(),) * len(dedicated), time)
    taken = _spread(min(Fraction(1), sum(capacity, Fraction())), capacity)
    spare = [time * rate - 1 for rate in workers] if n > 2 else [Fraction(1)] * n
    return Shares(_spread(1 - sum(taken, Fraction()), spare), taken, time)


def weights_of(shares: Sequence[Fraction]) -> tuple[int, ...]:
    """Whole numbers in the ratio of the shares, or close to it; a share of 0 stays 0.

    The numbers add up to MOST_WEIGHT at most, not counting those that are raised to 1. Every other
    number differs from its exact part of MOST_WEIGHT by less than one.

    >>> weights_of([Fraction(3, 10), Fraction(3, 10), Fraction(2, 10), Fraction(2, 10)])
    (3, 3, 2, 2)
    """
    parts = _spread(Fraction(1), shares)
    common = lcm(*(part.denominator for part in parts))
    if common <= MOST_WEIGHT:
        return tuple(int(part * common) for part in parts)
    exact = [part * MOST_WEIGHT for part in parts]
    weights = [max(int(part), int(part > 0)) for part in exact]
    left = MOST_WEIGHT - sum(weights)
    by_rest = sorted(range(len(exact)), key=lambda i: int(exact[i]) - exact[i])
    for index in by_rest[: max(0, left)]:
        weights[index] += int(exact[index] > 0)
    return tuple(weights)


def _spread(amount: Fraction, over: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Divide the amount in proportion."""
    total = sum(over, Fraction())
    return tuple(amount * part / total if total else Fraction() for part in over)
