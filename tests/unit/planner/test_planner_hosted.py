"""The model of dedicated reducers beside hosted ones: bounds, counts, and limits of connections."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reducer.shares import best_shares
from reducer_tools.planner import network_time
from reducer_tools.planner.lanes import Flows
from reducer_tools.planner.plan import Cluster, make_plan

SIZE = 1 << 26
EQUAL = 1e-9
RATES = st.floats(0.1, 400).map(lambda rate: round(rate, 2))
FLOWS = st.none() | st.tuples(RATES, st.integers(1, 16))


@st.composite
def clusters(draw: st.DrawFn, least: int = 1) -> Cluster:
    flow = draw(FLOWS)
    flows = Flows() if flow is None else Flows(*flow)
    return Cluster(draw(st.integers(least, 200)), draw(RATES), draw(RATES), SIZE, flows=flows)


@given(clusters(), st.integers(1, 400))
def test_hosted_reducers_are_no_slower_than_a_ring_or_dedicated_ones(
    cluster: Cluster, reducers: int
) -> None:
    found = cluster.choice(reducers)
    assert found.alone_seconds is not None
    assert found.allreduce_seconds <= cluster.ring_seconds() * (1 + EQUAL)
    assert found.allreduce_seconds <= found.alone_seconds * (1 + EQUAL)
    assert found.speedup >= 1 - EQUAL and found.winner != "ring"
    if cluster.workers > 1:
        at_line_rate = network_time.reducer_seconds(SIZE, 1, cluster.worker_gbps, 1, 1e6)
        assert found.allreduce_seconds >= at_line_rate * (1 - EQUAL)


@given(clusters(least=3), st.integers(0, 400))
def test_each_reducer_up_to_the_needed_number_saves_time(cluster: Cluster, reducers: int) -> None:
    found, more = cluster.choice(reducers), cluster.choice(reducers + 1)
    saved = found.allreduce_seconds - more.allreduce_seconds
    assert found.one_more_saves_seconds == saved
    if reducers < make_plan(cluster).needed:
        assert saved > 0 and cluster.hosted_share(reducers) > 0
    else:
        assert saved == 0 and cluster.hosted_share(reducers) == 0


@given(clusters(least=2), st.integers(0, 50))
def test_from_the_needed_number_on_hosted_reducers_have_no_share(
    cluster: Cluster, more: int
) -> None:
    reducers = make_plan(cluster).needed + more
    found = cluster.choice(reducers)
    assert found.allreduce_seconds == pytest.approx(found.alone_seconds)
    assert found.one_more_saves_seconds == 0 and cluster.hosted_share(reducers) == 0


@given(clusters())
def test_hosted_reducers_alone_are_a_ring(cluster: Cluster) -> None:
    found = cluster.choice(0)
    assert found.allreduce_seconds == pytest.approx(cluster.ring_seconds())
    assert (found.winner, found.alone_seconds, found.break_even_ratio) == ("neither", None, None)
    assert cluster.hosted_share(0) == 1


@given(RATES, RATES, st.integers(0, 400))
def test_two_workers_gain_nothing_from_dedicated_reducers(
    ours: float, theirs: float, reducers: int
) -> None:
    found = Cluster(2, ours, theirs, SIZE).choice(reducers)
    assert found.winner == "neither" and found.one_more_saves_seconds == 0


def test_one_dedicated_reducer_does_not_double_the_time_of_two_workers() -> None:
    found = Cluster(2, 10, 10, SIZE).choice(1)
    assert found.alone_seconds == pytest.approx(2 * found.allreduce_seconds)
    assert found.speedup == pytest.approx(1)


def test_the_largest_number_of_reducers_has_no_successor() -> None:
    found = Cluster(4, 1, 1, SIZE).choice(10**18)
    assert found.one_more_saves_seconds == 0


@pytest.mark.parametrize(("k", "share"), [(0, 1.5), (1, 24 / 18), (2, 1.2), (3, 24 / 22), (4, 1)])
def test_the_times_of_the_paper(k: int, share: float) -> None:
    """2n(n-1) / (n^2 + kn - 2k) at n = 4; a reducer with half the rate counts half."""
    once = network_time.reducer_seconds(SIZE, 1, 1, 1, 1)
    assert network_time.mixed_seconds(SIZE, 4, 1, k, 1) == pytest.approx(share * once)
    assert network_time.mixed_seconds(SIZE, 4, 1, 2 * k, 0.5) == pytest.approx(share * once)


def longest(
    hosted: Sequence[Fraction], dedicated: Sequence[Fraction], cluster: Cluster
) -> Fraction:
    """The time of the slowest NIC or connection, from the shares, for an array of one Gbit."""
    n, flow = cluster.workers, cluster.flows.to_reducer
    ours, theirs = Fraction(cluster.worker_gbps), Fraction(cluster.reducer_gbps)
    times = [(sum(dedicated) + sum(hosted) + (n - 2) * own) / ours for own in hosted]
    times += [n * share / theirs for share in dedicated]
    times += [share / flow for share in dedicated if flow is not None]
    return max(times)


@pytest.mark.parametrize("seed", range(60))
def test_no_other_shares_are_faster_with_limited_connections(seed: int) -> None:
    rng = random.Random(seed)
    n, reducers = rng.randrange(3, 9), rng.randrange(1, 6)
    flows = Flows(rng.choice((1, 5, 10)), rng.randrange(1, 5))
    cluster = Cluster(n, rng.choice((10, 25, 100)), rng.choice((10, 25, 100)), SIZE, flows=flows)
    rates = (n, cluster.worker_gbps, reducers, cluster.reducer_gbps, flows.to_reducer)
    time = network_time.least_time(*rates)
    rate = network_time.dedicated_gbps(n, cluster.reducer_gbps, flows.to_reducer)
    best = best_shares([Fraction(cluster.worker_gbps)] * n, [rate] * reducers)
    assert longest(best.hosted, best.dedicated, cluster) == time
    assert sum(best.hosted) == cluster.hosted_share(reducers)
    everyone = [*best.hosted, *best.dedicated]
    for _ in range(50):
        moved = [max(Fraction(), part + Fraction(rng.randrange(-9, 10), 99)) for part in everyone]
        total = sum(moved)
        if total:
            other = [part / total for part in moved]
            assert longest(other[:n], other[n:], cluster) >= time
