"""Results that a rank does not report as held are bounded: at the limit the run ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from reducer.core.limits.budget import RankLimits
from reducer.wire.codes import Collective, DType, ErrorCode, ReduceOp
from reducer.wire.keys import position
from tests.support.scripted import Scripted, Spec, join_all
from tests.support.simlane import SimLane

CREDIT = 64 << 10
CHUNK = 4_096


def one_key(number: int) -> Spec:
    return Spec(number=number, count=CHUNK // 4)


def a_key_each(number: int) -> Spec:
    return Spec(key=f"key-{number}", count=CHUNK // 4)


def barriers(number: int) -> Spec:
    return Spec(
        number=number, collective=Collective.BARRIER, op=ReduceOp.NONE, dtype=DType.UINT8, count=0
    )


def play(workers: list[Scripted], spec: Spec, silent: int | None = None) -> None:
    """Play a round; all ranks except the silent one report that they hold the result."""
    for worker in workers:
        worker.contribute_all(spec, bytes(worker.plan(spec).result_bytes(0)))
    for worker in workers:
        worker.results()
        if worker.rank != silent:
            worker.report(spec.key, position(spec.number + 1, 0))


def limits_of(lane: SimLane, name: str) -> RankLimits:
    (job,) = (
        members.run for members in lane.core._roster.runs.values() if members.run.name == name
    )
    return job.accounts.limits


@pytest.mark.parametrize("spec", [one_key, a_key_each, barriers])
@pytest.mark.parametrize(("world", "silent"), [(1, 0), (3, 1)])
def test_results_that_a_rank_never_reports_end_its_run_alone(
    spec: Callable[[int], Spec], world: int, silent: int
) -> None:
    """Regression: one rank with 15 MiB reserved held 600 MiB, and other jobs had none left."""
    lane = SimLane(credit=CREDIT)
    calm = join_all(lane, 2, job="calm")
    workers = join_all(lane, world)
    limits = limits_of(lane, "job")
    number = 0
    while workers[0].session.closed is None:
        play(workers, spec(number), silent)
        number += 1
        assert number * CHUNK <= 4 * limits.unanswered
        assert sum(len(buffer.view) for buffer in lane.held) <= limits.reserve(world)
    assert number * CHUNK > 2 * limits.unanswered + limits.credit // 2  # a lag of honest ranks
    for worker in workers:
        error = worker.error()
        assert error.code == ErrorCode.QUOTA and error.rank == silent
        assert f"rank {silent} has reported key" in error.message
        assert f"the limit is {limits.unstable:,}" in error.message
    assert not lane.held
    play(calm, one_key(0))
    assert all(worker.session.closed is None for worker in calm)


@pytest.mark.parametrize("spec", [one_key, a_key_each, barriers])
def test_ranks_that_report_late_go_on(spec: Callable[[int], Spec]) -> None:
    """Each report gives back the results since the last one, here two shares each time."""
    lane = SimLane(credit=CREDIT)
    workers = join_all(lane, 2)
    lag = 2 * limits_of(lane, "job").unanswered // CHUNK
    for number in range(4 * lag):
        play(workers, spec(number), silent=1)
        if number % lag == 0:
            for before in range(number + 1):
                workers[1].report(spec(before).key, position(before + 1, 0))
    assert all(worker.session.closed is None for worker in workers)
