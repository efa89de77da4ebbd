"""For which ranks one lane waited, and how long, by a clock that the test sets."""

from __future__ import annotations

import pytest

from reducer.core.measures.ranking import most
from reducer.core.measures.waits import SHORTEST_WAIT, Waits
from tests.support.scripted import Scripted, Spec, join_all
from tests.support.simlane import SimLane

PATIENT = 1_000.0  # seconds of silence that no test here reaches
CHUNK = bytes(4_096)


def lane_of(world: int) -> tuple[SimLane, list[Scripted]]:
    lane = SimLane(silence=PATIENT, stall_after=10.0)
    return lane, join_all(lane, world)


def waited(lane: SimLane) -> dict[int, float]:
    """Seconds waited, by rank, as metrics and `reducer status` get them."""
    found = dict(lane.snapshot()["jobs"]["job"]["lateness"])
    (run,) = lane.report()["runs"]
    assert found == dict(run["lateness"])
    return found


def test_the_last_rank_is_waited_for_since_half_of_them_were_there() -> None:
    lane, workers = lane_of(4)
    for rank, seconds in ((2, 1.0), (0, 3.0), (3, 0.5), (1, 7.0)):
        workers[rank].contribute(Spec(count=1_024), data=CHUNK)
        lane.tick(seconds)
    assert waited(lane) == {3: 3.0, 1: 3.5}  # since rank 0, the second of four


def test_one_early_rank_makes_nobody_late() -> None:
    lane, workers = lane_of(3)
    workers[0].contribute(Spec(), data=bytes(32))
    lane.tick(100.0)
    workers[1].contribute(Spec(), data=bytes(32))
    workers[2].contribute(Spec(), data=bytes(32))
    assert waited(lane) == {}


def test_of_two_ranks_the_second_one_is_late() -> None:
    lane, workers = lane_of(2)
    workers[1].contribute(Spec(), data=bytes(32))
    lane.tick(2.0)
    workers[0].contribute(Spec(), data=bytes(32))
    assert waited(lane) == {0: 2.0}


def test_the_last_rank_of_a_round_is_counted_once_however_many_chunks_it_sends() -> None:
    lane, workers = lane_of(2)
    for number, last in enumerate((1, 0, 1)):
        for rank in (1 - last, last):
            workers[rank].contribute_all(Spec(number=number, count=3_072), 3 * CHUNK)
    assert dict(lane.snapshot()["jobs"]["job"]["late"]) == {1: 2, 0: 1}


def test_a_second_counts_once_however_many_chunks_wait_in_it() -> None:
    lane, workers = lane_of(2)
    for key in ("a", "b"):
        workers[0].contribute_all(Spec(key=key, count=2_048), 2 * CHUNK)
        lane.tick(1.0)
    for key in ("a", "b"):
        workers[1].contribute_all(Spec(key=key, count=2_048), 2 * CHUNK)
        lane.tick(0.5)
    assert waited(lane) == {1: 2.5}


def test_a_rank_that_does_its_work_twice_is_late_once() -> None:
    lane, workers = lane_of(2)
    workers[0].contribute(Spec(), data=bytes(32))
    lane.tick(1.0)
    workers[1].contribute(Spec(), data=bytes(32))
    lane.tick(5.0)
    workers[1].contribute(Spec(), data=bytes(32))
    assert waited(lane) == {1: 1.0}


def test_what_is_sent_at_the_same_time_is_not_late() -> None:
    waits = Waits(2)
    for _ in range(1_000):
        waits.note(1, 5.0, 5.0 + SHORTEST_WAIT / 2)
    assert waits.waited == [0.0, 0.0]


def test_the_ranks_that_were_waited_for_the_longest_come_first() -> None:
    waits = Waits(5)
    for rank, seconds in enumerate((3.0, 0.0, 5.0, 1.0, 4.0)):
        waits.note(rank, 10.0, 10.0 + seconds)
    assert most(waits.waited) == ((2, 5.0), (4, 4.0), (0, 3.0), (3, 1.0))


def test_a_report_names_who_is_absent_now_and_from_what() -> None:
    lane, workers = lane_of(3)
    workers[0].announce("layer")
    for rank in (0, 2):
        workers[rank].contribute(Spec(key="layer"), data=bytes(32))
    (run,) = lane.report()["runs"]
    assert run["waiting"] == []  # short waits are normal
    lane.tick(4.0)
    (run,) = lane.report()["runs"]
    (waiting,) = run["waiting"]
    assert (waiting["key"], waiting["round"], waiting["absent"]) == ("layer", 0, [1])
    assert waiting["age_ms"] == pytest.approx(4_000, abs=100)
    assert (run["world_size"], run["connected"], run["open_rounds"]) == (3, 3, 1)
    workers[1].session.disconnect("connection reset")
    lane.tick(0.1)
    (run,) = lane.report()["runs"]
    assert (run["connected"], run["disconnected"]) == (2, [1])


def test_a_report_names_who_has_not_joined() -> None:
    lane = SimLane()
    for rank in (0, 3):
        Scripted(lane, rank, 4)
    report = lane.report()
    assert report["runs"] == []
    assert report["forming"] == [
        {"job": "job", "title": "job", "run_id": "", "world_size": 4, "joined": 2, "absent": [1, 2]}
    ]
