"""`reducer status`, `reducer top` and the status page: the tables of jobs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from reducer.core.measures.ranking import MAX_RANKS
from reducer.server.daemon.status_page import MAX_TABLES, numbers
from reducer.status.summary import Summary, summarize
from reducer.status.table import as_text
from reducer.status.tables import TableStatus
from reducer.status.tables_text import now_text
from reducer.wire.keys import key_id
from reducer.wire.table_messages import TableCall
from reducer_tools.top.display import picture
from reducer_tools.top.rates import change
from tests.support.simlane import SimLane, snapshot_of
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


def look(*lanes: SimLane, clock: float = 1.0) -> Summary:
    """The summary of reducers of one lane each, through JSON as on the metrics port."""
    answers = {}
    for number, lane in enumerate(lanes):
        snapshot = replace(snapshot_of(lane.lane_report()), monotonic_now=clock)
        answers[f"{'abc'[number]}:1"] = json.loads(json.dumps(snapshot.as_json()))
    return summarize(answers)


def only(summary: Summary) -> TableStatus:
    (table,) = summary.tables
    return table


def enter(worker: TableWorker, step: int) -> None:
    worker.step_call("enter", step, weight=1)
    worker.push_all(ONES, step)


def test_backups_are_no_parts_of_a_table() -> None:
    lanes = TableLanes("a:1", "b:1")
    worker = lanes.lead(0, 1, "a:1", "b:1")
    worker.table()
    worker.values(ONES)
    lanes.pump()
    worker.push_all(ONES, 1)
    lanes.pump()
    first, second = (lanes.lanes[each] for each in ("a:1", "b:1"))
    table = only(look(first, second))
    assert (table.lanes, table.bytes, table.shards, table.updates) == (1, 160, 3, 1)
    assert now_text(table) == ""
    assert only(look(second)).bytes == 160  # the reducer that leads has not answered
    lanes.cut.add("b:1")
    worker.push_all(ONES, 2, 1)
    lanes.tick(3)
    assert now_text(only(look(first))) == "pushes wait 3.0 s for a backup"
    lanes.lead(0, 2, "a:1")
    assert now_text(only(look(first, second))) == "1 partition has no backup"
    lanes.lead(0, 3, "a:1", "b:1", filling=True)
    assert now_text(only(look(first, second))) == "1 backup is being filled"


def test_tables_have_a_section_of_their_own() -> None:
    lane = SimLane()
    first, second = joined(lane, describe(mode="async", bound=8))
    for seq in range(1, 5):
        first.push_all(ONES, seq, base=seq - 1)
    second.push_all(ONES, 1)
    second.lose()
    lane.tick(0.7)
    text = as_text(look(lane))
    assert text.split("\n\n")[1:] == [
        """\
tables of job 'job': 1 worker; lost: worker 1
  TABLE  MODE            LANES   SIZE  VERSION  UPDATES     STALENESS  DROPPED  REFUSED    NOW
  net    async, bound 8    1/1  160 B        5        5  p50 0, p99 7        0        0"""
    ]


def test_without_tables_nothing_is_said() -> None:
    assert "table" not in as_text(look(SimLane()))


def test_the_parts_of_a_table_are_put_together() -> None:
    """Two reducers of one lane: one has shards 0 and 2, the other shard 1."""
    call = describe(mode="async", partitions=2)
    owner = key_id(call.name) % 2
    lanes = [SimLane(), SimLane()]
    for number, lane in enumerate(lanes):
        worker = TableWorker(lane, 0, partition=number, partitions=2)
        worker.table(replace(call, partition=number))
        shards = (0, 2) if number == owner else (1,)
        for shard in shards:
            worker.push(shard, ONES[worker.shards()[shard]], 0, flags=32)
        for seq in (1, 2) if number == owner else (1,):
            for shard in shards:
                worker.push(shard, ONES[worker.shards()[shard]], seq)
    table = only(look(*lanes))
    assert (table.lanes, table.partitions, table.elements, table.shards) == (2, 2, 40, 3)
    assert (table.oldest, table.newest, table.applied) == (1, 2, 5)
    assert table.updates == pytest.approx(5 / 3) and table.bytes == 160
    received = [reducer.bytes_in for reducer in look(*lanes).reducers]
    assert sum(received) == table.bytes_in and min(received) > 0
    assert (table.staleness_p50, table.staleness_p99) == (0, 1)
    assert only(look(lanes[owner])).lanes == 1


def test_a_step_that_waits_names_its_workers() -> None:
    lane = SimLane()
    workers = joined(lane, describe(mode="step", bound=4, workers=4, quorum=4), 3)
    enter(workers[1], 1)
    lane.now += 12
    table = only(look(lane))
    assert now_text(table) == "waits for 1 more worker; step 1 waits 12.0 s for workers 0, 2"
    assert [late.worker for late in table.late] == [0, 2]
    assert "step, all of 4" in as_text(look(lane))
    for worker in workers:
        enter(worker, 1)
    assert now_text(only(look(lane))) == "waits for 1 more worker"


def test_a_step_that_lacks_contributions_names_its_workers() -> None:
    lane = SimLane()
    workers = joined(lane, describe(mode="step", bound=4, workers=3, quorum=3), 3)
    for worker in workers:
        worker.step_call("enter", 1, weight=1)
    workers[0].push_all(ONES, 1)
    workers[2].push(1, ONES[:16], 1)
    assert now_text(only(look(lane))) == ""
    lane.now += 12
    table = only(look(lane))
    assert now_text(table) == "step 1 waits 12.0 s for data of workers 1, 2"
    for worker in workers[1:]:
        worker.push_all(ONES, 1)
    assert now_text(only(look(lane))) == "step 1 waits 12.0 s for the other lanes"
    workers[0].step_call("folded", 1)
    assert now_text(only(look(lane))) == ""


def test_a_step_that_has_just_begun_waits_for_nobody() -> None:
    lane = SimLane()
    workers = joined(lane, describe(mode="step", bound=4, workers=2, quorum=2))
    enter(workers[1], 1)
    lane.now += 0.5
    table = only(look(lane))
    assert now_text(table) == "" and table.late == []


def test_whoever_is_left_out_of_more_than_5_percent_is_late() -> None:
    lane = SimLane()
    first, second, third = joined(lane, describe(mode="step", bound=99, workers=3, quorum=2), 3)
    for step in range(1, 41):
        enter(first, step)
        enter(third if step == 7 else second, step)  # second: 1 of 40, third: 39 of 40
        first.step_call("folded", step)
    table = only(look(lane))
    assert (table.step, table.updates, table.oldest) == (40, 40, 40)
    assert now_text(table) == "left out: worker 2 (98% of the steps)"
    (late,) = table.late
    assert (late.worker, late.excluded) == (2, 39)


def test_the_slowest_worker_of_ssp_is_late_while_reads_wait() -> None:
    lane = SimLane()
    workers = joined(lane, describe(mode="ssp", bound=1, workers=3), 3)
    for worker, clock in zip(workers, (3, 1, 2), strict=True):
        worker.clock(clock)
    assert now_text(only(look(lane))) == ""
    workers[0].pull(0, clock=2)
    assert now_text(only(look(lane))) == "pulls wait for worker 1, 2 clocks behind"
    assert only(look(lane)).clock == 1


def test_what_a_table_lacks_is_said() -> None:
    lane = SimLane()
    TableWorker(lane, 0).table(describe())
    assert now_text(only(look(lane))) == "waits for its first values"
    (worker,) = joined(lane := SimLane(), describe(rate=1e30), 1)
    worker.push_all(ONES * np.float32(1e18), 1)
    assert now_text(only(look(lane))) == "3 updates have overflowed"


def test_many_workers_are_counted() -> None:
    lane = SimLane(budget=1 << 40)
    workers = joined(lane, describe(mode="step", bound=4, workers=100, quorum=100), 100)
    enter(workers[0], 1)
    lane.now += 2
    table = only(look(lane))
    assert len(table.late) == MAX_RANKS and table.awaited == 99
    assert now_text(table).endswith("for workers 1, 2, 3, 4, 5, 6, 7, 8 and 91 more")


def test_jobs_and_runs_are_told_apart() -> None:
    lane = SimLane()
    for job in ("a", "b"):
        TableWorker(lane, 0, job=job).table()
    found = look(lane)
    assert [table.job for table in found.tables] == ["a", "b"]
    assert found.reducers[0].jobs == 2
    assert as_text(found).count("tables of job") == 2


def test_names_of_tables_cannot_play_with_the_terminal() -> None:
    lane = SimLane()
    TableWorker(lane, 0).table(replace(describe(), name="\x1b[2Jnet\r"))
    found = look(lane)
    assert "\\x1b[2Jnet\\r" in as_text(found)
    assert "\x1b" not in as_text(found) and "\r" not in as_text(found)


def test_older_releases_tell_of_no_tables() -> None:
    answer = snapshot_of(SimLane().lane_report()).as_json()
    (lane,) = answer["lanes"]
    del lane["report"]["tables"], lane["core"]["tables"]
    found = summarize({"a:1": answer})
    assert (found.tables, found.more_tables) == ([], 0)


def test_tables_that_no_report_shows_are_counted() -> None:
    answer = snapshot_of(SimLane().lane_report()).as_json()
    answer["lanes"][0]["core"]["tables"] = 3
    assert as_text(summarize({"a:1": answer})).endswith("and 3 more tables\n\nno job is running")


# --- reducer top --------------------------------------------------------------------------------


def screen(now: Summary, before: Summary, width: int = 150) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as shown:
        console.print(picture(["a:1"], now, {}, change(before, now), width))
    return shown.get()


def test_top_shows_updates_per_second() -> None:
    lane = SimLane()
    first, _ = joined(lane, describe(mode="async"))
    before = look(lane)
    for seq in range(1, 6):
        first.push_all(ONES, seq)
    now = look(lane, clock=3.0)
    assert change(before, now).updates == {("job", "", "net"): 2.5}
    head, row = screen(now, before).splitlines()[-2:]
    assert head.split()[5] == "UPDATES/s" and row.split()[6:8] == ["2.5", "p50"]
    assert screen(before, before).splitlines()[-1].split()[6] == "-"


def test_no_rate_is_shown_where_lanes_have_come_or_gone() -> None:
    call = describe(mode="async", partitions=2)
    lanes = [SimLane(), SimLane()]
    for number, lane in enumerate(lanes):
        TableWorker(lane, 0).table(replace(call, partition=number))
    assert change(look(lanes[0]), look(*lanes, clock=2.0)).updates == {}


def test_on_a_narrow_terminal_the_last_column_is_folded() -> None:
    lane = SimLane()
    workers = joined(lane, describe(mode="step", bound=4, workers=2, quorum=2))
    enter(workers[1], 1)
    lane.now += 12
    shown = screen(look(lane), look(lane), width=110)
    assert "step, all of 2" in shown and "UPDATES/s" in shown and "…" not in shown


# --- the status page ----------------------------------------------------------------------------


def test_the_page_is_told_no_more_tables_than_it_shows() -> None:
    lane = SimLane(budget=1 << 40)
    workers = joined(lane, describe(mode="step", bound=4, workers=100, quorum=100), 100)
    enter(workers[0], 1)
    for job in ("a", "b"):
        worker = TableWorker(lane, 0, job=job)
        for number in range(MAX_TABLES):
            worker.table(replace(describe(), name=f"net-{number}"))
    lane.now += 2
    found: dict[str, Any] = numbers("a:1", snapshot_of(lane.lane_report()))
    assert (len(found["tables"]), found["more_tables"]) == (MAX_TABLES, MAX_TABLES + 1)
    assert len(json.dumps(found)) < 100_000


def test_the_page_gets_the_texts_of_a_table() -> None:
    lane = SimLane()
    first, _ = joined(lane, describe(mode="async"))
    first.push_all(ONES, 1)
    (table,) = numbers("a:1", snapshot_of(lane.lane_report()))["tables"]
    assert table["texts"] == {
        "mode": "async",
        "version": "1",
        "staleness": "p50 0, p99 0",
        "now": "",
    }
