"""Every byte has reserved room: any order of submission completes, within the memory budget."""

from __future__ import annotations

import random

import numpy as np

from reducer.core.limits.budget import SHARES_BESIDE_RANKS, share_of
from reducer.wire.codes import MessageKind
from tests.support.counts import draws
from tests.support.simcluster import SimCluster, StuckError

CHUNK = 64 << 10
KEYS = 8
# Chunks of a key: 8 MiB keys of 1 MiB chunks, at a sixteenth of the bytes.
CHUNKS = 8


# The minimum for contributions of 4 ranks: a chunk of credit and one of grant for each.
LEAST = (4 + SHARES_BESIDE_RANKS) * 2 * CHUNK
BUDGET = (4 + SHARES_BESIDE_RANKS) * share_of(2 * CHUNK)


def run_in_own_orders(
    seed: int,
    credit: int = CHUNK,
    budget: int = BUDGET,
    stop_reading_at: int | None = None,
    grants: bool = True,
) -> SimCluster:
    """4 ranks submit 8 keys, each in its own random order, with the smallest credit."""
    world = 4
    cluster = SimCluster(world, (1,), ((0, CHUNK),), seed, budget=budget, credit=credit)
    cluster.stop_reading_at = stop_reading_at
    if not grants:
        for lane in cluster.lanes.values():
            lane.unsent = frozenset((int(MessageKind.GRANT),))
    cluster.cut = 1 << 20
    cluster.join()
    values = np.ones(CHUNKS * CHUNK // 4, np.float32)
    operations = []
    targets = []
    for rank in range(world):
        keys = [f"key-{number}" for number in range(KEYS)]
        random.Random(seed * 10 + rank).shuffle(keys)
        for key in keys:
            target = values.copy()
            targets.append(target)
            source = target if seed % 2 else values
            operations.append(cluster.submit(rank, key, source, target))
    cluster.finish(operations)
    assert all(operation.error is None for operation in operations)
    assert all((target == world).all() for target in targets)
    return cluster


def test_random_orders_end_within_the_smallest_budget() -> None:
    for seed in range(draws(30, 200)):
        cluster = run_in_own_orders(seed)
        (lane,) = cluster.lanes.values()
        assert lane.peak <= LEAST * 1.1


def test_rounds_larger_than_their_limits_end_in_any_order() -> None:
    """Two of three keys, different ones on each rank, fill the credit up to their limits."""
    for seed in range(24):
        cluster = SimCluster(3, (1,), ((0, 64 << 10),), seed, budget=1 << 30, credit=1 << 20)
        cluster.cut = 1 << 20
        cluster.join()
        ones = np.ones((3 << 19) // 4, np.float32)
        targets = []
        operations = []
        for rank in range(3):
            keys = ["a", "b", "c"]
            random.Random(seed * 10 + rank).shuffle(keys)
            for key in keys:
                targets.append(ones.copy())
                operations.append(cluster.submit(rank, key, ones, targets[-1]))
        cluster.finish(operations)
        assert all((target == 3).all() for target in targets)


def test_without_grants_the_same_orders_get_stuck() -> None:
    """The test above can fail: it would without the reserved room of the oldest round."""
    assert stuck_orders(grants=False) >= 8


def test_a_lane_that_stops_reading_instead_gets_stuck_on_the_same_orders() -> None:
    """Without effective credits, a lane that stops reading when its memory is full deadlocks."""
    assert stuck_orders(credit=1 << 30, budget=1 << 40, stop_reading_at=LEAST) >= 8


def stuck_orders(**how: int) -> int:
    """The number of ten seeds whose orders get stuck."""
    stuck = 0
    for seed in range(10):
        try:
            run_in_own_orders(seed, **how)
        except StuckError:
            stuck += 1
    return stuck


def test_a_round_larger_than_the_memory_of_the_lane() -> None:
    cluster = SimCluster(2, (1,), ((0, CHUNK),), budget=20 * CHUNK)
    cluster.cut = 1 << 20
    cluster.join()
    values = np.arange(256 * CHUNK // 4, dtype=np.float32)
    targets = [np.zeros_like(values) for _ in range(2)]
    operations = [cluster.submit(rank, "huge", values, targets[rank]) for rank in range(2)]
    cluster.finish(operations)
    (lane,) = cluster.lanes.values()
    assert lane.peak <= 20 * CHUNK * 1.1
    assert (targets[0] == 2 * values).all()
    cluster.settle(1.0)
    assert cluster.held == 0


def test_conflicting_blocking_order_is_reported_with_ranks_and_keys() -> None:
    """Rank 0 waits on `a` before it submits `b`, rank 1 the other way round."""
    cluster = SimCluster(2, (1, 1), stall_after=1.0)
    cluster.join()
    values = np.ones(10, np.float32)
    cluster.submit(0, "a", values, np.empty_like(values))
    cluster.submit(1, "b", values, np.empty_like(values))
    cluster.settle(5.0)
    reports = [" ".join(state.take_reports()) for state in cluster.states]
    for report in reports:
        assert "'a'" in report
        assert "'b'" in report
        assert "rank 0 waits for rank 1" in report
        assert "rank 1 waits for rank 0" in report


def test_credit_is_whole_again_after_every_round() -> None:
    cluster = SimCluster(3, (2, 1), ((0, 4_096),), credit=8_192)
    cluster.join()
    for number in range(30):
        values = np.ones(1 + 997 * number, np.float32)
        targets = [np.empty_like(values) for _ in range(3)]
        cluster.finish([cluster.submit(r, "x", values, targets[r]) for r in range(3)])
    cluster.settle(3.0)
    for state in cluster.states:
        counters = state.counters()
        assert counters["copy_bytes"] == 0
        assert counters["open_rounds"] == 0
        assert counters["keys"] == 0


def test_thousands_of_rounds_of_one_key_may_be_under_way() -> None:
    """More rounds than the lane keeps descriptions of, with the smallest credit."""
    rounds = 3_072
    cluster = SimCluster(2, (1,), ((0, 4_096),), credit=4_096)
    cluster.cut = 1 << 20
    cluster.join()
    ones = np.ones(1, np.float32)
    targets = [np.zeros((rounds, 1), np.float32) for _ in range(2)]
    operations = [
        cluster.submit(rank, "x", ones, targets[rank][number])
        for rank in range(2)
        for number in range(rounds)
    ]
    cluster.finish(operations)
    assert all((target == 2).all() for target in targets)
    assert all(operation.error is None for operation in operations)
