"""What a scrape shows of tables."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from reducer.core.surface.table_numbers import TableNumbers
from reducer.core.table_report import MAX_TABLES_OF_JOB
from reducer.server.daemon import metrics
from reducer.wire.table_messages import TableCall
from tests.support.simlane import SimLane
from tests.support.table_lanes import TableLanes
from tests.support.table_worker import TableWorker, describe
from tests.unit.server.daemon.test_metrics import lane_part, scrape

BACKUPS = (
    "table_backup_lag_entries",
    "table_backup_wait_seconds",
    "table_partitions_without_backup",
)
ONES = np.ones(40, np.float32)
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def joined(lane: SimLane, description: TableCall, count: int = 2) -> list[TableWorker]:
    workers = []
    for number in range(count):
        worker = TableWorker(lane, number)
        worker.table(description)
        worker.values(ONES * 0)
        workers.append(worker)
    return workers


def of(found: Samples, name: str, **labels: str) -> float:
    known = {"job_name": "job", "table": "net", "lane": "0", **labels}
    return found[f"reducer_{name}", frozenset(known.items())]


def of_tables(found: Samples) -> set[str]:
    return {name for name, _ in found if name.startswith("reducer_table_")}


def test_updates_and_their_staleness() -> None:
    lane = SimLane()
    first, second = joined(lane, describe(mode="async", bound=40))
    for seq in range(1, 41):
        first.push_all(ONES, seq, base=seq - 1)
    second.push_all(ONES, 1, base=37)  # 3 behind
    second.push_all(ONES, 2, base=9)  # 32 behind
    second.push_all(ONES, 3, base=0)  # 42 behind
    second.push_all(ONES * np.inf, 4, base=42)
    found = scrape(lane_part(lane))
    assert of(found, "table_applied_updates_total") == 126
    assert of(found, "table_dropped_updates_total") == 3
    assert of(found, "table_refused_updates_total") == 3
    assert of(found, "table_received_bytes_total") == 46 * 160
    bounds = ("0", "1", "3", "31", "63", "1023", "+Inf")
    counts = [of(found, "table_staleness_bucket", le=bound) for bound in bounds]
    assert counts == [120, 120, 123, 123, 126, 126, 126]
    assert of(found, "table_staleness_sum") == 3 * (3 + 32)
    assert found["reducer_tables", frozenset({("lane", "0")})] == 1


def test_staleness_beyond_all_bounds_is_counted() -> None:
    lane = SimLane()
    (worker,) = joined(lane, replace(describe(), count=16), 1)
    for seq in range(1, 1_030):
        worker.push(0, ONES[:16], seq)
    found = scrape(lane_part(lane))
    assert of(found, "table_staleness_bucket", le="1023") == 1_024
    assert of(found, "table_staleness_bucket", le="+Inf") == 1_029


def test_steps_and_who_is_left_out() -> None:
    lane = SimLane()
    first, second, third = joined(lane, describe(mode="step", bound=99, workers=3, quorum=2), 3)
    for step in (1, 2, 3):
        for worker in (first, third if step == 2 else second):
            worker.step_call("enter", step, weight=1)
            worker.push_all(ONES, step)
        first.step_call("folded", step)
    first.step_call("enter", 4, weight=1)
    lane.now += 5
    found = scrape(lane_part(lane))
    assert of(found, "table_steps_total") == 3
    assert of(found, "table_excluded_steps_total", worker="1") == 1
    assert of(found, "table_excluded_steps_total", worker="2") == 2
    assert of(found, "table_open_step_seconds") == 5
    assert "reducer_table_staleness_bucket" not in of_tables(found)


def test_backups() -> None:
    """The partition counts once, on the lane that leads it."""
    lanes = TableLanes("a:1", "b:1")
    worker = lanes.lead(0, 1, "a:1", "b:1")
    worker.table()
    worker.values(ONES)
    lanes.pump()
    first, second = (lanes.lanes[each] for each in ("a:1", "b:1"))
    found = scrape(lane_part(first))
    assert of(found, "table_partitions_without_backup") == 0
    assert of_tables(scrape(lane_part(second))) == {"reducer_table_reserved_bytes"}
    lanes.cut.add("b:1")
    worker.push_all(ONES, 1)
    lanes.tick(2)
    found = scrape(lane_part(first))
    assert of(found, "table_backup_lag_entries") == 3
    assert of(found, "table_backup_wait_seconds") == pytest.approx(2)
    lanes.lead(0, 2, "a:1")  # the workers decide to go on without the backup
    found = scrape(lane_part(first))
    assert of(found, "table_partitions_without_backup") == 1
    assert of(found, "table_backup_lag_entries") == 0


def test_tables_of_several_runs_are_added_up() -> None:
    """Otherwise a scrape would have the same series twice."""
    lane = SimLane()
    for start, run in enumerate(("a", "b")):
        worker = TableWorker(lane, 0, start, run_id=run)
        worker.table()
        worker.values(ONES)
        worker.push_all(ONES, 1)
    found = scrape(lane_part(lane))
    assert of(found, "table_applied_updates_total") == 6
    assert of(found, "table_staleness_count") == 6
    assert of(found, "table_elements") == 80


def test_a_lane_without_tables_has_no_series_of_tables() -> None:
    lane = SimLane()
    assert of_tables(scrape(lane_part(lane))) == set()
    worker = TableWorker(lane, 0)
    worker.table()
    assert {f"reducer_{each}" for each in BACKUPS}.isdisjoint(of_tables(scrape(lane_part(lane))))
    worker.call(TableCall("drop", name="net"))
    assert of_tables(scrape(lane_part(lane))) == set()


def test_any_name_of_a_table_is_a_label() -> None:
    name = 'a"b\\c\nd é {x="y"} 1'
    lane = SimLane()
    TableWorker(lane, 0, job="50%").table(replace(describe(), name=name))
    assert of(scrape(lane_part(lane)), "table_elements", job_name="50%25", table=name) == 40


def test_every_number_of_a_table_is_shown() -> None:
    """A new field without a series would be invisible."""
    shown = {series.field for series in metrics.catalogue()}
    unshown = {"stale", "included"}  # the sum of the histogram; steps less those left out of
    assert {field.name for field in fields(TableNumbers)} - unshown <= shown


def test_many_tables_do_not_make_a_scrape_grow() -> None:
    lane = SimLane(budget=1 << 32)
    worker = TableWorker(lane, 0)
    for number in range(2 * MAX_TABLES_OF_JOB):
        worker.table(replace(describe(), name=f"net-{number}"))
    names = {dict(labels).get("table") for _, labels in scrape(lane_part(lane))} - {None}
    assert len(names) == MAX_TABLES_OF_JOB
