"""Machines with a worker and a hosted reducer each: faults that hit both at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from reducer.wire.codes import ErrorCode
from tests.support.simfaults import FaultyCluster

MACHINES = 3
COUNT = 4_096


def hosted(seed: int, weights: tuple[int, ...] = ()) -> FaultyCluster:
    cluster = FaultyCluster(
        MACHINES, (1,) * MACHINES, table=((0, 1_024),), seed=seed, silence=1.0,
        hosted=tuple((rank,) for rank in range(MACHINES)), weights=weights,
    )  # fmt: skip
    cluster.join()
    return cluster


def submit(cluster: FaultyCluster, *ranks: int) -> list[Any]:
    return [
        cluster.submit(rank, "key", np.full(COUNT, rank, np.float32), np.empty(COUNT, np.float32))
        for rank in ranks
    ]


def lost(cluster: FaultyCluster, rank: int) -> tuple[int, int]:
    """Code and rank of the error of a rank."""
    error = cluster.states[rank].error
    assert error is not None, cluster.report()
    assert "reducer" not in error[1].partition("is lost")[0], error
    return error[0], error[2]


def wait_for_errors(cluster: FaultyCluster, *ranks: int) -> float:
    """Let time pass until these ranks have an error; returns the seconds."""
    began = cluster.now
    while any(cluster.states[rank].error is None for rank in ranks):
        assert cluster.now - began < 20, cluster.report()
        cluster.settle(0.25)
    return cluster.now - began


@pytest.mark.parametrize("dead", range(MACHINES))
def test_a_machine_that_dies_ends_the_job_by_the_name_of_its_rank(dead: int) -> None:
    """Its reducer is gone, too, but no error blames the reducer, and nobody waits for it."""
    cluster = hosted(seed=dead)
    others = [rank for rank in range(MACHINES) if rank != dead]
    submit(cluster, *others)
    cluster.isolate(dead, *range(MACHINES))
    for rank in others:
        cluster.isolate(rank, dead)
    seconds = wait_for_errors(cluster, *others)
    assert seconds < 7, "silence counts as death after 5 s"
    for rank in others:
        assert lost(cluster, rank) == (ErrorCode.PEER_LOST, dead)


@pytest.mark.parametrize("alone", [1, 2])
def test_a_worker_that_reaches_only_its_own_reducer_is_lost(alone: int) -> None:
    """The others reach that reducer, too, and hear from it that the worker lives."""
    cluster = hosted(seed=10 + alone)
    others = [rank for rank in range(MACHINES) if rank != alone]
    submit(cluster, *others)
    cluster.isolate(alone, *others)
    wait_for_errors(cluster, *others)
    for rank in others:
        assert lost(cluster, rank) == (ErrorCode.PEER_LOST, alone)


def test_if_rank_0_reaches_only_its_own_reducer_the_job_goes_on_there() -> None:
    """Rank 0 makes the routes: it puts out the reducers that it does not reach."""
    cluster = hosted(seed=10)
    cluster.isolate(0, 1, 2)
    operations = submit(cluster, *range(MACHINES))
    cluster.finish(operations)
    assert all(operation.error is None for operation in operations)


@pytest.mark.parametrize("weights", [(), (1, 5, 2)])
@pytest.mark.parametrize("slot", range(MACHINES))
def test_a_hosted_reducer_that_dies_costs_no_round(slot: int, weights: tuple[int, ...]) -> None:
    cluster = hosted(seed=20 + slot, weights=weights)
    for turn in range(20):
        operations = submit(cluster, *range(MACHINES))
        if turn == 5:
            cluster.kill(slot)
        if turn == 10:
            cluster.start(slot)
        cluster.finish(operations)
        assert all(operation.error is None for operation in operations), cluster.report()
    cluster.settle(3.0)
    assert all(state.error is None for state in cluster.states)
