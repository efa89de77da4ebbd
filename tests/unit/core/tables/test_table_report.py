"""What a lane reports about its tables."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from reducer.core.measures.ranking import MAX_RANKS, MAX_RANKS_OF_JOB
from reducer.core.surface.table_numbers import TablePart
from reducer.core.table_report import MAX_TABLES, MAX_TABLES_OF_JOB
from reducer.optimizers import Adam
from reducer.server.pipe.reports import line_of, part_of
from reducer.wire.keys import key_id
from reducer.wire.table_messages import TableCall
from tests.support.simlane import SimLane
from tests.support.table_lanes import TableLanes
from tests.support.table_worker import TableWorker, describe

ONES = np.ones(40, np.float32)


def joined(lane: SimLane, description: TableCall, count: int = 2) -> list[TableWorker]:
    workers = []
    for number in range(count):
        worker = TableWorker(lane, number)
        worker.table(description)
        worker.values(ONES * 0)
        workers.append(worker)
    return workers


def named(number: int) -> TableCall:
    return replace(describe(), name=f"net-{number:03}")


def part_of_lane(lane: SimLane) -> TablePart:
    (part,) = lane.lane_report().tables
    return part


def test_updates_are_counted_by_their_outcome_and_staleness() -> None:
    lane = SimLane()
    first, second = joined(lane, describe(Adam(0.1, convention="torch"), mode="async", bound=2))
    for seq in range(1, 5):
        first.push_all(ONES, seq, base=seq - 1)
    second.push_all(ONES, 1, base=2)  # 2 behind
    second.push_all(ONES, 2, base=0)  # 5 behind
    second.push_all(ONES * np.nan, 3, base=5)
    part = part_of_lane(lane)
    table, numbers = part.table, part.numbers
    assert (table.job, table.name, table.mode, table.optimizer) == ("job", "net", "async", "Adam")
    assert (table.bound, table.size, table.version, table.newest) == (2, 160, 5, 5)
    assert (numbers.applied, numbers.dropped, numbers.refused) == (15, 3, 3)
    assert numbers.staleness == ((0, 12), (2, 3)) and numbers.stale == 6
    assert (numbers.elements, numbers.shards, numbers.workers) == (40, 3, 2)
    assert numbers.reserved > 3 * 160  # the parameters and Adam's two slots
    # Two workers sent first values, and seven times an update.
    assert numbers.bytes_in == 9 * 160 and numbers.bytes_out == 0
    first.pull_all()
    assert part_of_lane(lane).numbers.bytes_out == 160


def test_the_state_of_the_backup_is_told() -> None:
    lanes = TableLanes("a:1", "b:1")
    worker = lanes.lead(0, 1, "a:1", "b:1")
    worker.table()
    worker.values(ONES)
    lanes.pump()
    lane = lanes.lanes["a:1"]
    table = part_of_lane(lane).table
    assert (table.leads, table.backup, table.backup_lag, table.backup_wait) == (True, "full", 0, 0)
    backup = part_of_lane(lanes.lanes["b:1"]).table
    assert (backup.leads, backup.backup, backup.backup_lag) == (False, "", 0)
    lanes.lead(0, 2, "a:1")
    assert part_of_lane(lane).table.backup == "missing"
    lanes.lead(0, 3, "a:1", "b:1", filling=True)
    assert part_of_lane(lane).table.backup == "filling"


def test_a_backup_that_does_not_answer_is_timed() -> None:
    lanes = TableLanes("a:1", "b:1")
    worker = lanes.lead(0, 1, "a:1", "b:1")
    worker.table()
    worker.values(ONES)
    lanes.pump()
    lane = lanes.lanes["a:1"]
    lanes.tick(1)
    lanes.cut.add("b:1")
    worker.push(0, ONES[:16], 1)
    lane.now += 2
    worker.push(1, ONES[:16], 1)
    table = part_of_lane(lane).table
    assert (table.backup_lag, table.backup_wait) == (2, pytest.approx(2))
    lanes.cut.clear()
    lanes.pump()
    lane.now += 2
    table = part_of_lane(lane).table
    assert (table.backup_lag, table.backup_wait) == (0, 0.0)


def test_shards_without_values_and_pulls_that_wait_are_told() -> None:
    lane = SimLane()
    worker = TableWorker(lane, 0)
    worker.table()
    worker.push(1, ONES[:16], 0, flags=32)
    worker.pull(0)
    worker.pull(1, version=1)
    part = part_of_lane(lane)
    assert (part.table.unready, part.numbers.waiting_pulls) == (2, 2)
    assert (part.table.version, part.table.newest) == (0, 0)


def test_an_update_that_overflows_is_counted() -> None:
    lane = SimLane()
    (worker,) = joined(lane, describe(), 1)
    worker.push_all(ONES * np.float32(1e18), 1)
    assert part_of_lane(lane).numbers.spoilt == 0
    (worker,) = joined(lane := SimLane(), describe(rate=1e30), 1)
    worker.push_all(ONES * np.float32(1e18), 1)
    assert part_of_lane(lane).numbers.spoilt == 3


def test_clocks_are_told_the_slowest_first() -> None:
    lane = SimLane()
    workers = joined(lane, describe(mode="ssp", bound=1, workers=3), 3)
    for worker, clock in zip(workers, (4, 2, 3), strict=True):
        worker.clock(clock)
    table = part_of_lane(lane).table
    assert table.clocks == ((1, 2), (2, 3), (0, 4))
    assert (table.least_clock, table.fastest_clock) == (2, 4)


def test_whoever_says_goodbye_is_not_lost() -> None:
    lane = SimLane()
    first, second, third = joined(lane, describe(), 3)
    second.bye()
    third.lose()
    lane.tick(0.7)
    part = part_of_lane(lane)
    assert (part.numbers.workers, part.numbers.lost_workers, part.table.lost) == (1, 1, (2,))
    TableWorker(lane, 2).table(first.description)
    part = part_of_lane(lane)
    assert (part.numbers.workers, part.table.lost) == (2, ())
    TableWorker(lane, 1).lose()  # it had left, and has come again
    lane.tick(0.7)
    assert part_of_lane(lane).table.lost == (1,)


def step_table(workers: int, quorum: int) -> TableCall:
    return describe(mode="step", bound=100, workers=workers, quorum=quorum)


def test_the_open_step_names_whom_it_waits_for() -> None:
    lane = SimLane()
    first, second, third = joined(lane, step_table(4, 3), 3)
    third.step_call("enter", 1, weight=1)
    lane.now += 3
    step = part_of_lane(lane).table.open
    assert step is not None and not step.decided
    assert (step.step, step.generation, step.seconds, step.absent) == (1, 0, 3.0, 1)
    assert (step.entered, step.awaited, step.awaited_count) == ((2,), (0, 1), 2)
    fourth = TableWorker(lane, 3)
    fourth.table(first.description)
    for worker in (first, second):
        worker.step_call("enter", 1, weight=1)
    step = part_of_lane(lane).table.open
    assert step is not None and step.decided
    assert (step.entered_count, step.awaited, step.absent) == (3, (0, 1, 2), 0)  # no data yet
    second.lose()
    lane.tick(0.7)
    step = part_of_lane(lane).table.open
    assert step is not None and not step.decided
    assert (step.generation, step.awaited) == (1, (3,))


def test_the_steps_that_a_worker_was_left_out_of_are_counted() -> None:
    lane = SimLane()
    first, second, third = joined(lane, step_table(3, 2), 3)
    for step in range(1, 5):
        for worker in (first, second) if step < 4 else (first, third):
            worker.step_call("enter", step, weight=1)
            worker.push_all(ONES, step)
        first.step_call("folded", step)
    third.push_all(ONES, 1)  # of a step that is over
    part = part_of_lane(lane)
    assert (part.table.step, part.numbers.steps) == (4, 4)
    assert part.numbers.excluded == ((2, 3), (1, 1))
    assert part.numbers.included == ((2, 1), (1, 3))
    assert part.table.open is not None and part.table.open.seconds == 0.0


def test_a_contribution_that_is_not_finite_is_counted() -> None:
    lane = SimLane()
    first, _ = joined(lane, step_table(2, 2))
    first.push(0, ONES[:16] * np.nan, 1)
    assert part_of_lane(lane).numbers.refused == 1


def test_only_the_lane_that_decides_the_steps_has_an_open_step() -> None:
    lane = SimLane()
    call = replace(step_table(1, 1), partitions=2)
    second = 1 - key_id(call.name) % 2  # shard 0 is on the other lane
    worker = TableWorker(lane, 0, partition=second, partitions=2)
    worker.table(replace(call, partition=second))
    part = part_of_lane(lane)
    assert part.table.open is None and part.numbers.excluded == ()
    assert (part.numbers.shards, part.table.partition, part.table.partitions) == (1, second, 2)


@pytest.mark.parametrize("mode", ["async", "ssp", "step"])
def test_the_main_process_reads_what_the_lane_has_told(mode: str) -> None:
    lane = SimLane()
    joined(lane, describe(mode=mode, bound=1, workers=2, quorum=2))
    (part,) = lane.core.parts(lane.now)
    read = part_of(json.loads(line_of(part=part))["part"])
    assert json.loads(line_of(part=read)) == json.loads(line_of(part=part))
    assert lane.snapshot()["tables"] == 1


def test_tables_of_a_report_are_bounded() -> None:
    lane = SimLane(budget=1 << 32)
    jobs = MAX_TABLES // MAX_TABLES_OF_JOB + 2
    for job in range(jobs):
        worker = TableWorker(lane, 0, job=f"job-{job}")
        for number in range(MAX_TABLES_OF_JOB + 3):
            worker.table(named(number))
    report = lane.lane_report()
    shown = [part.table.job for part in report.tables]
    assert len(shown) == MAX_TABLES
    assert {shown.count(job) for job in set(shown)} == {MAX_TABLES_OF_JOB}
    assert report.numbers.core.tables == jobs * (MAX_TABLES_OF_JOB + 3)


def test_rows_of_workers_are_bounded() -> None:
    lane = SimLane(budget=1 << 40)
    workers = [TableWorker(lane, number) for number in range(MAX_RANKS + 6)]
    tables = MAX_RANKS_OF_JOB // MAX_RANKS + 1
    for number in range(tables):
        for worker in workers:
            worker.table(named(number))
    rows = [len(part.table.clocks) for part in lane.lane_report().tables]
    assert rows == [MAX_RANKS] * (tables - 1) + [0]


def test_a_table_that_is_dropped_during_a_report_is_left_out() -> None:
    lane = SimLane()
    worker = TableWorker(lane, 0)
    for number in range(3):
        worker.table(named(number))
    parts = lane.core.parts(lane.now)
    found = [next(parts)]
    worker.call(TableCall("drop", name="net-001"))
    found += parts
    names = [part.table.name for part in found if isinstance(part, TablePart)]
    assert names == ["net-000", "net-002"]
