"""A lane tells for an hour how runs have ended."""

from __future__ import annotations

from reducer.core.members.past_runs import KEPT_SECONDS, MAX_PAST
from tests.support.scripted import Scripted, Spec, join_all
from tests.support.simlane import SimLane

PATIENT = 10_000.0


def past(lane: SimLane) -> list[tuple[str, int, float, str]]:
    """(run id, own rounds, seconds since the end, cause)."""
    return [
        (run["run_id"], run["own_rounds"], run["seconds"], run["cause"])
        for run in lane.report()["ended"]
    ]


def finish(lane: SimLane, job: str) -> None:
    worker = Scripted(lane, 0, 1, job=job)
    worker.bye()
    worker.session.disconnect()


def test_a_run_that_is_over_is_told_for_an_hour() -> None:
    lane = SimLane(silence=PATIENT)
    workers = join_all(lane, 2)
    for worker in workers:
        worker.contribute(Spec(), data=bytes(32))
    for worker in workers:
        worker.bye()
    lane.tick(0.05)
    ((_, rounds, seconds, cause),) = past(lane)
    assert (rounds, seconds, cause) == (1, 0.0, "finished")
    lane.stand_still(600.0)
    assert past(lane)[0][2] == 600.0
    lane.stand_still(KEPT_SECONDS)
    assert not past(lane)


def test_only_the_latest_runs_are_kept() -> None:
    lane = SimLane(silence=PATIENT)
    for number in range(MAX_PAST + 3):
        finish(lane, f"job{number}")
        lane.tick(0.05)
    assert [run["job"] for run in lane.report()["ended"]] == [
        f"job{number}" for number in range(3, MAX_PAST + 3)
    ]
