"""Lanes for each reducer, and networks that limit a connection (`--flow-gbps`)."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reducer.units import auto_lanes
from reducer_tools.planner import lanes, reducer_count
from reducer_tools.planner.lanes import Flows
from reducer_tools.planner.plan import Cluster, find_winner, make_plan
from tests.support.planner import plan, planned

SIZE = 1 << 30
FOUR = ("--workers", "4", "--worker-gbps", "100", "--reducer-gbps", "100")


@pytest.mark.parametrize(
    ("workers", "reducers", "reducer_gbps", "flow_gbps", "share", "connections", "least", "cpu"),
    [
        # 100 / 5 = 20 connections, 20 / 4 = 5 lanes; 100 / 8 = 12.5 Gbit/s of CPU.
        (4, 4, 100, 5, 100, 20, 5, 13),
        # One reducer gives each of 4 workers 25 Gbit/s: 25 / 5 = 5.
        (4, 1, 100, 5, 25, 5, 5, 13),
        # 25 x 32 = 8 x 100: 20 connections are fewer than 25 reducers; 32 / 8 = 4.
        (8, 25, 32, 5, 100, 20, 1, 4),
        # More reducers than needed sum 50 Gbit/s each: 50 / 8 = 6.25; 10 / 8 connections.
        (4, 8, 100, 10, 100, 10, 2, 7),
        # 100 / 1 = 100 connections, 100 / 3 = 33.3 lanes, more than the CPU needs.
        (3, 3, 100, 1, 100, 100, 34, 13),
    ],
)
def test_lanes_by_hand(
    workers: int,
    reducers: int,
    reducer_gbps: float,
    flow_gbps: float,
    share: int,
    connections: int,
    least: int,
    cpu: int,
) -> None:
    found = lanes.worker_share(workers, 100, reducers, reducer_gbps)
    assert found == share
    assert lanes.connections_needed(found, flow_gbps) == connections
    assert lanes.lanes_for_connections(found, reducers, flow_gbps) == least
    assert lanes.lanes_for_cpu(found, workers, reducers) == cpu
    cluster = Cluster(workers, 100, reducer_gbps, SIZE, flows=Flows(flow_gbps))
    assert cluster.recommended_lanes(reducers) == cluster.choice(reducers).lanes == max(least, cpu)


def test_decimal_digits_are_exact() -> None:
    assert lanes.connections_needed(Fraction("0.3"), 0.1) == 3
    assert Flows(0.1, 3).to_reducer == Fraction("0.3")
    assert reducer_count.reducers_needed(1, 2.1, 100, Flows(0.1, 3).to_reducer) == 7


def test_too_few_lanes_set_the_time() -> None:
    """4 x 2 lanes x 5 = 40 of 100 Gbit/s: alone 2.5 times N/BW, where a ring takes 1.5.

    A worker's 10 Gbit/s to each are as much as reducers of 40 would give to 4 workers: with hosted
    ones 2n(n-1) / (n^2 + kn - 2k) times N/BW at n = 4 and k = 4 x 40 / 100.
    """
    found = planned(*FOUR, "--flow-gbps", "5", "--lanes", "2", "--reducers", "4")
    once = planned(*FOUR)["allreduce_seconds"]
    assert found["alone_seconds"] == pytest.approx(2.5 * once)
    assert found["allreduce_seconds"] == pytest.approx(24 / (16 + 1.6 * 2) * once)
    assert (found["lanes"], found["recommended_lanes"], found["flow_gbps"]) == (2, 13, 5)
    # R x 2 x 5 = 100; and R x 10 > 4/6 x 100.
    assert (found["reducers_needed"], found["reducers_to_beat_ring"]) == (10, 7)
    verdict = " ".join(found["verdict"])
    for text in (
        "A worker needs 20 connections of 5 Gbit/s for its share of 100 Gbit/s: 4 reducers x 5 ",
        "With 2 lanes its connections carry 40: hosted reducers sum the rest.",
        "Give each dedicated reducer 13 lanes, one for each 8 Gbit/s that it sums.",
        "`--lanes auto` starts as many on 18 cores.",
        "Set REDUCER_DEDICATED_GBPS=40 on rank 0's machine",
    ):
        assert text in verdict
    alone = {choice["reducers"]: choice["alone_seconds"] for choice in found["choices"]}
    assert alone[7] < found["ring_seconds"] < alone[6]


def test_without_lanes_the_recommended_number_reaches_the_rate() -> None:
    capped, free = planned(*FOUR, "--flow-gbps", "1"), planned(*FOUR)
    assert (capped["lanes"], free["lanes"]) == (25, 13)
    assert capped["allreduce_seconds"] == free["allreduce_seconds"]
    assert capped["reducers_needed"] == free["reducers_needed"] == 4
    lanes_of = "Give each dedicated reducer 25 lanes, for the workers' connections."
    assert lanes_of in capped["verdict"][-1]
    assert not any("connection" in sentence for sentence in free["verdict"])


def test_the_summary_has_the_lanes() -> None:
    shown = plan(*FOUR, "--flow-gbps", "5", "--lanes", "2").output
    assert "lanes of a reducer       2 (5 recommended), 5 Gbit/s a connection\n" in shown
    assert "lanes of a reducer      13\n" in plan(*FOUR).output


def test_a_ring_of_two_is_not_beaten_but_the_limit_is_named() -> None:
    rates = ("--workers", "2", "--worker-gbps", "10", "--reducer-gbps", "10", "--reducers", "2")
    found = planned(*rates, "--flow-gbps", "2", "--lanes", "1")
    ring, without, need, limit, *_ = found["verdict"]
    assert "2 dedicated reducers and 2 hosted ones reduce as fast as a ring of two" in ring
    assert "without them this one would take 2.50 times as long" in without
    assert "5 connections of 2 Gbit/s for its share of 10 Gbit/s: 2 reducers x 3 lanes." in need
    assert limit == "With 1 lane its connections carry 4: hosted reducers sum the rest."


@given(
    st.integers(3, 64), st.integers(1, 64), st.integers(1, 400), st.integers(1, 400),
    st.integers(1, 100),
)  # fmt: skip
def test_the_least_lanes_are_the_least_that_reach_the_rate(
    workers: int, reducers: int, ours: int, theirs: int, flow: int
) -> None:
    share = lanes.worker_share(workers, ours, reducers, theirs)
    least = lanes.lanes_for_connections(share, reducers, flow)
    free = Cluster(workers, ours, theirs, SIZE).choice(reducers).allreduce_seconds

    def seconds(count: int) -> float:
        cluster = Cluster(workers, ours, theirs, SIZE, flows=Flows(flow, count))
        return cluster.choice(reducers).allreduce_seconds

    assert seconds(least) == pytest.approx(free)
    if least > 1:
        assert seconds(least - 1) > free * (1 + 1e-9)


@given(st.integers(3, 64), st.integers(1, 400), st.integers(1, 40), st.integers(1, 16))
def test_the_counts_of_reducers_are_the_least_that_hold(
    workers: int, ours: int, flow: int, count: int
) -> None:
    cluster = Cluster(workers, ours, 1000.0, SIZE, flows=Flows(flow, count))
    found, ring = make_plan(cluster), cluster.ring_seconds()
    once = cluster.alone_seconds(10**6)
    assert cluster.alone_seconds(found.needed) == pytest.approx(once)
    if found.needed > 1:
        assert cluster.alone_seconds(found.needed - 1) > once * (1 + 1e-9)
        assert cluster.choice(found.needed - 1).allreduce_seconds > once * (1 + 1e-9)
    assert found.to_beat_ring is not None
    assert cluster.alone_seconds(found.to_beat_ring) < ring
    if found.to_beat_ring > 1:
        fewer = cluster.alone_seconds(found.to_beat_ring - 1)
        assert find_winner(fewer, ring) in ("ring", "neither")


@given(st.integers(1, 1000))
def test_auto_starts_the_recommended_lanes_on_the_named_cores(count: int) -> None:
    assert auto_lanes(-(-count * 4 // 3)) == count


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--lanes", "2"), "lanes: expected only with --flow-gbps, got 2"),
        (("--flow-gbps", "5", "--lanes", "0"), "lanes: expected a whole number, 1 or more, got 0"),
        (("--flow-gbps", "5", "--lanes", "1025"), "lanes: expected at most 1,024, got 1025"),
        (("--flow-gbps", "0"), "flow_gbps: expected a number above 0, got 0"),
    ],
)
def test_bad_limits_are_named(options: tuple[str, ...], text: str) -> None:
    result = plan(*FOUR, *options)
    assert result.exit_code == 2 and text in result.output
