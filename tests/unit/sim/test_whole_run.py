"""A run from its first byte to its last: join, rounds of every kind, a mismatch, leave."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from reducer.wire.codes import Collective, DType, ErrorCode, ReduceOp
from tests.support.simcluster import SimCluster

DRAWN = 0


def submit_all(cluster: SimCluster, values: np.ndarray) -> list[tuple[Any, np.ndarray, np.ndarray]]:
    """Submit three collectives on each rank; returns (operation, target, expected value)."""
    count = values.shape[1]
    submitted = []
    for rank, mine in enumerate(values):
        total, sent = np.zeros_like(mine), np.zeros_like(mine)
        gathered = np.zeros_like(values)
        copy: dict[str, Any] = {"op": ReduceOp.COPY, "count": count}
        reduced = cluster.submit(rank, "sum", mine, total)
        submitted.append((reduced, total, values[0] + values[1]))
        operation = cluster.submit(
            rank, "gather", mine, gathered, collective=Collective.ALL_GATHER, **copy
        )
        submitted.append((operation, gathered, values))
        arrays = (mine, None) if rank == 1 else (None, sent)
        operation = cluster.submit(
            rank, "cast", *arrays, collective=Collective.BROADCAST, root=1, **copy
        )
        if rank != 1:
            submitted.append((operation, sent, values[1]))
    return submitted


def check(cluster: SimCluster, values: np.ndarray) -> None:
    submitted = submit_all(cluster, values)
    cluster.finish([operation for operation, _, _ in submitted])
    for operation, target, expected in submitted:
        assert operation.error is None
        assert target.tobytes() == expected.tobytes(), operation.key


@pytest.mark.parametrize("cut", [1, DRAWN, 1 << 20])
def test_a_run_leaves_nothing_behind_however_its_streams_are_cut(cut: int) -> None:
    cluster = SimCluster(2, (2, 1), ((0, 64), (256, 1_024)), seed=cut)
    cluster.cut = cut
    cluster.join()
    values = np.random.default_rng(1).normal(size=(2, 1_001)).astype(np.float32)
    check(cluster, values)

    narrow, wide = values[0], values[1].astype(np.float64)
    mismatched = [
        cluster.submit(0, "sum", narrow, np.zeros_like(narrow)),
        cluster.submit(1, "sum", wide, np.zeros_like(wide), dtype=int(DType.FLOAT64)),
    ]
    cluster.finish(mismatched)
    first, second = (operation.error for operation in mismatched)
    assert first == second
    assert first[0] == ErrorCode.MISMATCH
    assert "float32" in first[1] and "float64" in first[1]
    check(cluster, values)

    cluster.leave()
    assert cluster.held == 0
    for lane in cluster.lanes.values():
        snapshot = lane.snapshot()
        assert snapshot["jobs"] == {}
        assert (snapshot["sessions"], snapshot["forming"], snapshot["reserved_bytes"]) == (0, 0, 0)
    for state in cluster.states:
        assert state.error is None
        assert state.counters()["copy_bytes"] == 0
