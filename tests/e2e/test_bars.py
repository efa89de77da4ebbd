"""The bars of ``python -m tests.soak`` that need worker processes, with smaller counts."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from bench.netlab import LabError
from tests.soak import (
    bits,
    crowds,
    hush,
    kills,
    lost_workers,
    neighbours,
    overload,
    partitions,
    rolling,
)
from tests.soak.training import Training
from tests.support.reducers import Reducers


def test_kills_of_reducers_lose_no_step_and_leave_nothing() -> None:
    kills.run(500, 1, hush)


def test_rolling_restarts_fail_no_step() -> None:
    rolling.run(6, 1, hush)


def test_a_stopped_worker_is_named_with_the_round_on_every_survivor(job: str) -> None:
    """The promise is 6 s on a quiet machine."""
    with Reducers(3) as reducers:
        took = lost_workers.lose(
            reducers.addresses, job, 2, lambda ranks: ranks.kill(2, signal.SIGSTOP)
        )
    assert min(took) > 4 and max(took) < 20


@pytest.fixture
def site() -> Iterator[partitions.Site]:
    try:
        with partitions.site() as built:
            yield built
    except LabError as error:
        pytest.skip(f"no network namespaces here: {error}")


def test_packets_that_vanish_cost_no_step(site: partitions.Site, job: str) -> None:
    """In one direction or both, of one worker: the promise is 2 s on a quiet machine."""
    with Training(site.addresses, job, world=3, namespaces=site.namespaces) as training:
        for cut in (
            (("w0", "r0"),),
            (("r1", "w1"),),
            (("w2", "r2"), ("r2", "w2")),
        ):
            assert partitions.partition(site, training, cut) < 10
        training.finish()


def test_a_worker_whose_packets_vanish_is_named(site: partitions.Site, job: str) -> None:
    """The promise is 6 s on a quiet machine."""
    assert max(partitions.lose_worker(site, job, 1)) < 20


def test_the_bits_are_those_of_the_contributions_alone() -> None:
    bits.run(1, 1, hush, numbers=(1, 3))


def test_a_crowd_of_strangers_keeps_nobody_out() -> None:
    crowds.measure(900, 100, 1.5, 1, hush)


def test_a_noisy_neighbour_changes_no_bit_and_holds_nobody_up() -> None:
    neighbours.measure(0.5, 1, 1, hush)


def test_no_worker_is_taken_for_dead_on_a_busy_machine() -> None:
    overload.run(4, 1, hush)
