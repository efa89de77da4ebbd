"""The bars of ``python -m tests.soak`` that need worker processes, with smaller counts."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest

from reducer_client import PeerLostError
from reducer_tools.netlab import LabError
from tests.soak import (
    bits,
    crowds,
    elastic,
    hush,
    kills,
    lost_workers,
    neighbours,
    overload,
    partitions,
    rolling,
)
from tests.soak.training import Training
from tests.support.counts import draws
from tests.support.elastic_job import SLOW
from tests.support.ranks import join, start_ranks
from tests.support.reducers import Reducers
from tests.support.wait import AT_ONCE, SILENT_SECONDS


@pytest.mark.long  # 7 CPU seconds; tests/e2e/test_failover.py kills a reducer
def test_kills_of_reducers_lose_no_step_and_leave_nothing() -> None:
    kills.run(draws(20, 240), 1, hush)


@pytest.mark.long  # 20 CPU seconds; tests/e2e/test_elastic.py kills workers
def test_lost_workers_of_an_elastic_job_leave_the_sums_and_others_join() -> None:
    elastic.run(draws(12, 100), 1, hush, SLOW)


@pytest.mark.long  # 14 CPU seconds; tests/e2e/test_failover.py restarts one reducer
def test_rolling_restarts_fail_no_step() -> None:
    rolling.run(3, 1, hush)


def test_a_stopped_worker_is_named_with_the_round_on_every_survivor(job: str) -> None:
    with Reducers(3) as reducers:
        took = lost_workers.lose(
            reducers.addresses, job, 2, lambda ranks: ranks.kill(2, signal.SIGSTOP)
        )
    assert min(took) > 4 and max(took) < SILENT_SECONDS


def _die_in_callback(rank: int, world: int, addresses: list[str], job: str) -> int | None:
    with join(rank, world, addresses, job) as group:
        die = (lambda work: os.kill(os.getpid(), signal.SIGKILL)) if rank == 1 else None
        with pytest.raises(PeerLostError) as caught:
            while True:
                group.all_reduce(np.ones(1000, np.float32), key="k", on_done=die).wait(60)
        return caught.value.rank


def test_a_worker_that_dies_in_a_callback_is_lost_like_any_other(job: str) -> None:
    with (
        Reducers(2) as reducers,
        start_ranks(3, _die_in_callback, reducers.addresses, job) as ranks,
    ):
        outcomes = ranks.collect(30)
    assert [outcome.reported for outcome in outcomes] == [True, False, True]
    assert (outcomes[0].value, outcomes[2].value) == (1, 1), outcomes


@pytest.fixture
def site() -> Iterator[partitions.Site]:
    try:
        with partitions.site() as built:
            yield built
    except LabError as error:
        pytest.skip(f"no network namespaces here: {error}")


def test_packets_that_vanish_cost_no_step(site: partitions.Site, job: str) -> None:
    """Packets of one worker, in one direction or both. The promise is 2 s."""
    with Training(site.addresses, job, world=3, namespaces=site.namespaces) as training:
        for cut in (
            (("w0", "r0"),),
            (("r1", "w1"),),
            (("w2", "r2"), ("r2", "w2")),
        ):
            assert partitions.partition(site, training, cut) < 2.0 + AT_ONCE
        training.finish()


@pytest.mark.long  # 19 s; the stopped worker of this file is named by the same rule
def test_a_worker_whose_packets_vanish_is_named(site: partitions.Site, job: str) -> None:
    assert max(partitions.lose_worker(site, job, 1)) < SILENT_SECONDS


@pytest.mark.long  # 35 s; test_proofs.py and test_collectives.py compare the bits of every sum
def test_the_bits_are_those_of_the_contributions_alone() -> None:
    bits.run(2, 1, hush, numbers=(1, 3))


@pytest.mark.long  # 6 CPU seconds; tests/net/test_strangers.py has fewer strangers
def test_a_crowd_of_strangers_keeps_nobody_out() -> None:
    """Every turn of the job and every join, each in time; `make soak` asserts the loss of turns."""
    cost = crowds.measure(900, 100, 1.5, 1, hush)
    assert cost.join < crowds.MOST_JOIN + AT_ONCE, cost


@pytest.mark.long  # 5 CPU seconds; test_collectives.py compares the bits of every sum
def test_a_noisy_neighbour_changes_no_bit() -> None:
    """Both jobs compare the bits of every sum; `make soak` asserts the quiet job's share."""
    neighbours.measure(0.5, 1, 1, hush)


def test_no_worker_is_taken_for_dead_on_a_busy_machine() -> None:
    overload.run(draws(2, 4), 1, hush)
