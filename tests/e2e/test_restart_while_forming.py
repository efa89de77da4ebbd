"""A process that dies while its run forms is replaced by a restarted one."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack

import numpy as np
import pytest

from tests.support.cluster import Daemon
from tests.support.ranks import RunningRanks, join, start_ranks, values
from tests.support.reducers import Reducers
from tests.support.wait import wait_until

WORLD = 3


def _rank(_: int, __: int, rank: int, addresses: list[str]) -> tuple[str, float]:
    with join(rank, WORLD, addresses, "forms") as group:
        total = group.all_reduce(np.full(100_000, rank + 1, np.float32)).wait(60)
        return group.run_id, float(total[-1])


def _start(stack: ExitStack, rank: int, addresses: list[str]) -> RunningRanks:
    return stack.enter_context(start_ranks(1, _rank, rank, addresses))


def _joined(daemon: Daemon) -> list[int]:
    """The number of ranks on each lane that have joined the forming run."""
    reports = [lane["report"] for lane in daemon.stats()["lanes"]]
    return [forming["joined"] for report in reports for forming in report["forming"]]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_started_again_while_the_others_wait_takes_part(rank: int) -> None:
    """As a pod that restarts at start-up. Rank 0's new process makes another run id."""
    with Reducers(2, lanes=2) as reducers, ExitStack() as stack:
        addresses = reducers.addresses
        waiting = _start(stack, 1 - rank, addresses)
        first = _start(stack, rank, addresses)
        for reducer in range(2):
            daemon = reducers.daemon(reducer)
            wait_until(lambda: _joined(daemon) == [2, 2], 30, "two ranks are on every lane")  # noqa: B023
        first.kill(0)
        for reducer in range(2):
            daemon = reducers.daemon(reducer)
            wait_until(lambda: _joined(daemon) == [1, 1], 30, "one of them has gone")  # noqa: B023
        ranks = [waiting, _start(stack, rank, addresses), _start(stack, 2, addresses)]
        ends = values([running.collect_one(0) for running in ranks])
    (run_id,) = {run for run, _ in ends}
    assert run_id
    assert {total for _, total in ends} == {6.0}


def test_a_lane_that_is_killed_while_a_run_forms_takes_part_when_it_is_back() -> None:
    with Reducers(2, lanes=2) as reducers, ExitStack() as stack:
        waiting = [_start(stack, rank, reducers.addresses) for rank in range(2)]
        daemon = reducers.daemon(1)
        wait_until(lambda: _joined(daemon) == [2, 2], 30, "two ranks are on every lane")
        os.kill(daemon.lane_pid(0), signal.SIGKILL)
        ranks = [*waiting, _start(stack, 2, reducers.addresses)]
        ends = values([running.collect_one(0) for running in ranks])
    assert {total for _, total in ends} == {6.0}
