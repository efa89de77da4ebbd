"""The bars of ``python -m tests.soak`` that need worker processes, with smaller counts."""

from __future__ import annotations

import signal

from tests.soak import hush, kills, lost_workers, rolling
from tests.support.reducers import Reducers


def test_kills_of_reducers_lose_no_step_and_leave_nothing() -> None:
    kills.run(500, 1, hush)


def test_rolling_restarts_fail_no_step() -> None:
    rolling.run(6, 1, hush)


def test_a_stopped_worker_is_named_with_the_round_on_every_survivor(job: str) -> None:
    """The promise is 6 s on a quiet machine."""
    with Reducers(3) as reducers:
        took = lost_workers.lose(reducers.addresses, job, 2, signal.SIGSTOP)
    assert min(took) > 4 and max(took) < 20
