"""What the owner of a table's steps tells: who is left out, and how long a step takes."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from reducer.core.surface import events
from reducer.core.tables.owner import StepOwner
from reducer.core.tables.step_watch import MAX_LEFT_OUT, WINDOW, StepWatch
from reducer.wire.table_messages import TableCall
from tests.support.simlane import SimLane
from tests.support.table_worker import TableWorker, describe

ONES = np.ones(40, np.float32)


def play(left_out: list[bool], *, late: str = "drop", quorum: int = 2) -> list[events.Log]:
    """The log of steps that leave out worker 2, or else worker 1, of three workers."""
    owner = StepOwner(quorum, 3, WINDOW)
    watch = StepWatch(describe(mode="step", workers=3, quorum=quorum, late=late), 160)
    for worker in range(3):
        owner.join(worker)
    out: list[events.Output] = []
    for step, is_out in enumerate(left_out, 1):
        for worker in (0, 1, 2) if is_out else (0, 2, 1):
            owner.enter(worker, step, 1)
        assert owner.commit(step, 0)
        watch.committed(owner, "job", 0.0, False, out)
    assert all(isinstance(each, events.Log) for each in out)
    return [each for each in out if isinstance(each, events.Log)]


def every(nth: int, steps: int) -> list[bool]:
    return [step % nth == 0 for step in range(1, steps + 1)]


def test_who_is_left_out_of_more_than_5_in_100_steps_is_named_once() -> None:
    # Worker 1 is left out of all other steps, and worker 2 of one step in ten.
    lines = play(every(10, 10 * WINDOW))
    assert [line.about["worker"] for line in lines] == [1, 2]
    first, second = lines
    assert first.level == logging.WARNING
    assert first.text == (
        "job 'job': worker 1 was left out of 90 of the last 100 steps of table 'net' (quorum 2 of "
        "3): it is slower than the others, and its gradients of these steps were dropped; give it "
        "less work or a faster machine, or raise the quorum"
    )
    assert "worker 2 was left out of 10 of the last 100 steps" in second.text


@pytest.mark.parametrize(("missed", "named"), [(MAX_LEFT_OUT, False), (MAX_LEFT_OUT + 1, True)])
def test_the_bound_is_exact_and_the_steps_are_the_last_ones(missed: int, named: bool) -> None:
    steps = [True] * missed + [False] * (WINDOW - missed)
    assert (2 in {line.about["worker"] for line in play(steps)}) == named
    assert 2 not in {line.about["worker"] for line in play(steps[:-1])}  # 99 steps
    late = [True] * 3 + [False] * WINDOW + [True] * 3  # 6 steps, but never of the last 100
    assert 2 not in {line.about["worker"] for line in play(late)}


def test_whoever_carries_its_gradients_is_told_so() -> None:
    lines = play([True] * WINDOW, late="carry")
    assert "were added to those of later steps" in lines[0].text


def test_a_table_that_takes_everybody_names_nobody() -> None:
    assert play([True] * WINDOW, quorum=3) == []


# --- on a lane ----------------------------------------------------------------------------------


def joined(lane: SimLane, description: TableCall) -> list[TableWorker]:
    workers = []
    for number in range(description.workers):
        worker = TableWorker(lane, number)
        worker.table(description)
        worker.values(ONES * 0)
        workers.append(worker)
    return workers


def contribute(worker: TableWorker, step: int) -> None:
    worker.step_call("enter", step, weight=1)
    worker.push_all(ONES, step)


def test_a_lane_logs_who_is_left_out() -> None:
    lane = SimLane()
    first, second, _ = joined(lane, describe(mode="step", bound=1_000, workers=3, quorum=2))
    for step in range(1, WINDOW + 1):
        contribute(first, step)
        contribute(second, step)
        first.step_call("folded", step)
    assert [line for line in lane.logs if "left out of 100 of the last 100 steps" in line]
    assert lane.about[-1] == {"job": "job", "worker": 2}


def traces(lane: SimLane) -> list[events.Traced]:
    found: list[events.Traced] = []

    def note(what: events.Output | int) -> None:
        if isinstance(what, events.Traced):
            found.append(what)

    lane.inject = note
    return found


def test_a_step_is_traced_from_the_first_worker_to_the_commit() -> None:
    lane = SimLane(traced=True)
    workers = joined(lane, describe(mode="step", bound=4, workers=4, quorum=4))
    found = traces(lane)
    for number in (2, 0, 3):
        lane.now += 1
        contribute(workers[number], 1)
    lane.now = 10.0
    workers[1].step_call("enter", 1, weight=1)
    lane.now = 11.0
    workers[1].push_all(ONES, 1)
    lane.now = 12.0
    workers[0].step_call("folded", 1)
    assert found == [
        events.Traced(0, "job", "table net", 1, 4 * 160, 1.0, events.Wait(1, 2.0, 10.0), 11.0, 12.0)
    ]
    lane.now = 20.0
    for worker in workers:
        contribute(worker, 2)
    workers[0].step_call("folded", 2)
    assert found[1].opened_at == found[1].ended_at == 20.0


def test_the_steps_of_a_lane_that_is_not_traced_cost_nothing() -> None:
    lane = SimLane()
    workers = joined(lane, describe(mode="step", bound=4, workers=1, quorum=1))
    found = traces(lane)
    contribute(workers[0], 1)
    workers[0].step_call("folded", 1)
    assert found == []


def test_whoever_comes_too_late_is_not_waited_for() -> None:
    lane = SimLane(traced=True)
    workers = joined(lane, describe(mode="step", bound=4, workers=3, quorum=2))
    found = traces(lane)
    contribute(workers[0], 1)
    lane.now = 3.0
    contribute(workers[1], 1)
    lane.now = 9.0
    workers[2].step_call("enter", 1, weight=1)
    workers[2].push_all(ONES, 1)
    lane.now = 10.0
    workers[0].step_call("folded", 1)
    (step,) = found
    assert (step.wait.rank, step.wait.until, step.all_in_at) == (1, 3.0, 3.0)
