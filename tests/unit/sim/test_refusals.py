"""Storms of mismatched rounds: every round ends, alike on every rank, and nothing is left.

Ranks describe some rounds differently while many keys are in flight on several lanes with the
smallest credit. The seed draws the interleaving.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from reducer.core.limits.budget import SHARES_BESIDE_RANKS, share_of
from reducer.wire.codes import DType, ErrorCode
from tests.support import oracle
from tests.support.counts import draws
from tests.support.simcluster import SimCluster

SEEDS = draws(100, 1_000)
KEYS = "ab"
DESCRIPTIONS = [
    (DType.FLOAT32, 100),
    (DType.INT8, 5_000),
    (DType.FLOAT16, 5_000),
    (DType.FLOAT32, 0),
    (DType.UINT64, 1_500),
]


def storm(seed: int) -> None:
    rng = random.Random(seed)
    world = rng.choice((2, 3, 4))
    cluster = SimCluster(
        world,
        rng.choice([(1,), (2,), (1, 1), (2, 1)]),
        ((0, 4_096),),
        seed,
        credit=rng.choice((4_096, 16_384)),
        budget=(world + SHARES_BESIDE_RANKS) * share_of(3 * 16_384),
    )
    cluster.join()
    lengths = {key: rng.randrange(1, 6) for key in KEYS}
    usual = {(key, n): rng.choice(DESCRIPTIONS) for key in KEYS for n in range(lengths[key])}
    calls: dict[tuple[str, int], list[tuple[tuple[DType, int], Any]]] = {r: [] for r in usual}
    left = [(rank, key) for rank in range(world) for key in KEYS for _ in range(lengths[key])]
    rng.shuffle(left)
    numbers = dict.fromkeys(left, 0)
    for rank, key in left:
        number = numbers[rank, key]
        numbers[rank, key] += 1
        described = usual[key, number] if rng.random() < 0.8 else rng.choice(DESCRIPTIONS)
        calls[key, number].append((described, submit(cluster, rank, key, described)))
        if rng.random() < 0.3:
            for _ in range(rng.randrange(5)):
                cluster.step()
        if rng.random() < 0.05:
            cluster.settle(rng.choice((0.3, 1.5)))
    cluster.finish([operation for round_ in calls.values() for _, operation in round_])
    for round_ in calls.values():
        errors = {operation.error for _, operation in round_}
        assert len(errors) == 1
        codes = {error[0] for error in errors if error is not None}
        differ = len({described for described, _ in round_}) > 1
        assert codes == ({ErrorCode.MISMATCH} if differ else set())
    cluster.settle(2.0)
    assert [state.counters()["live_rounds"] for state in cluster.states] == [0] * world
    cluster.settle(12.0)
    for lane in cluster.lanes.values():
        job = lane.snapshot()["jobs"]["job"]
        assert (job["open_rounds"], job["keys"]) == (0, 0)
    for state in cluster.states:
        assert state.counters()["unanswered"] == 0
    assert cluster.held == 0


def submit(cluster: SimCluster, rank: int, key: str, described: tuple[DType, int]) -> Any:
    dtype, count = described
    source = np.zeros(count, oracle.NUMPY_DTYPES[dtype])
    return cluster.submit(rank, key, source, np.empty_like(source), dtype=int(dtype))


def test_storms_of_mismatches_leave_nothing_behind() -> None:
    for seed in range(SEEDS):
        storm(seed)
