"""The history of a reducer: differences of counters, the latest rank, and bounded columns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from reducer.core.surface.numbers import RunNumbers, RunReport, WaitingRound
from reducer.server.daemon.history import COLUMNS, Column, History
from reducer.server.pipe.snapshot import JobNumbers, LaneReport, Snapshot
from tests.support.simlane import SimLane, snapshot_of

LANE = SimLane().lane_report()
ZERO = RunNumbers(
    *([0] * 9), late=[], waiting=[], reconnects=0, failovers=0, lost_workers=0, stats_walks=0,
    stats_shared=0, refused_rounds=0, parked_bytes=0, record_bytes=0, lateness=[], nonfinite=[],
    round_counts=[], round_seconds=0.0,
)  # fmt: skip


def a_lane(received: int, rounds: int = 0, **of_run: Any) -> LaneReport:
    """A lane with one job, whose run has these fields."""
    numbers = replace(ZERO, bytes_in=received, bytes_out=2 * received, rounds=rounds)
    run: dict[str, Any] = {
        "job": "bert", "title": "bert", "run_id": "r", "world_size": 4, "connected": 4, "left": 0,
        "seconds": 1.0, "rounds": rounds, "own_rounds": 0, "open_rounds": 0, "bytes_in": 0,
        "bytes_out": 0, "oldest_seconds": 0.0, "lateness": [], "disconnected": [],
        "waiting": [], "lost": [],
    }  # fmt: skip
    return replace(
        LANE, jobs={"bert": JobNumbers(numbers, 4)}, runs=[RunReport(**{**run, **of_run})]
    )


def at(clock: float, *lanes: LaneReport) -> Snapshot:
    return replace(snapshot_of(*lanes), monotonic_now=clock)


def after(*snapshots: Snapshot) -> list[Column]:
    history = History()
    for snapshot in snapshots:
        history.add(snapshot)
    return history.columns


def test_a_column_has_what_was_added_by_all_lanes() -> None:
    (column,) = after(
        at(100.0, a_lane(10, rounds=5), a_lane(1, rounds=5)),
        at(105.0, a_lane(70, rounds=9), a_lane(2, rounds=8)),
    )
    assert (column.seconds, column.received, column.sent, column.rounds) == (5.0, 61, 122, 4)
    assert (column.late, column.waited, column.job) == (-1, 0.0, "")


def test_the_latest_rank_is_named_while_it_is_absent_and_after_it_came() -> None:
    waiting = [WaitingRound("k", 7, age_ms=4_000, absent=[2], absent_count=1)]
    absent, came = after(
        at(100.0, a_lane(0, lateness=[(1, 3.0), (2, 1.0)])),
        at(105.0, a_lane(0, lateness=[(1, 3.5), (2, 1.0)], waiting=waiting)),
        at(110.0, a_lane(0, lateness=[(1, 3.5), (2, 6.0)])),
    )
    assert (absent.late, absent.waited, absent.job) == (2, 4.0, "bert")
    assert (came.late, came.waited) == (2, 1.0)


def test_a_lane_that_was_started_again_gives_no_negative_numbers() -> None:
    lost, again = after(
        at(0.0, a_lane(100, lateness=[(1, 9.0)])), at(5.0), at(10.0, a_lane(3, lateness=[(1, 0.5)]))
    )
    assert (lost.received, lost.waited, lost.late) == (0, 0.0, -1)
    assert (again.received, again.sent, again.late) == (3, 6, 1)


def test_the_number_of_columns_is_bounded_and_no_byte_is_lost() -> None:
    history = History()
    period = history.period
    clock = 0.0
    for number in range(10 * COLUMNS):
        history.add(at(clock, a_lane(number)))
        clock += history.period
        assert len(history.columns) < COLUMNS
    assert sum(column.received for column in history.columns) == 10 * COLUMNS - 1
    assert history.period > 4 * period
    assert len({column.seconds for column in history.columns}) == 1


def test_two_columns_keep_the_longer_wait_and_the_most_memory() -> None:
    first = Column(5.0, 1, 2, 3, memory=9, waited=1.0, job="a", late=0)
    second = Column(5.0, 10, 20, 30, memory=4, waited=2.0, job="b", late=7)
    assert first + second == Column(10.0, 11, 22, 33, memory=9, waited=2.0, job="b", late=7)
    assert (second + first).late == 7
