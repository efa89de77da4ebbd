"""What a scrape shows, and METRICS.md.

`python -m tests.unit.server.daemon.test_metrics` writes METRICS.md.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from reducer.core.measures.durations import BOUNDS
from reducer.core.measures.ranking import MAX_RANKS, MAX_RANKS_OF_JOB
from reducer.core.table_report import MAX_TABLES, MAX_TABLES_OF_JOB
from reducer.server.daemon import metrics
from reducer.server.pipe.snapshot import LaneReport
from tests.support.scripted import Spec, join_all
from tests.support.simlane import SimLane, snapshot_of

PATH = Path(__file__).parents[4] / "reducer/METRICS.md"
INTRO = f"""\
# Metrics

This page lists the metrics at `/metrics` of a reducer (by default `127.0.0.1:2223`:
`--metrics-host`, `--metrics-port`). `python -m tests.unit.server.daemon.test_metrics` writes the
page from `reducer/server/daemon/metrics.py`. Each lane keeps its own numbers; a scrape collects the
numbers of all lanes.

- **over lanes** says how to combine the numbers of several lanes or reducers. Each lane has its own
  bytes and events: `sum`. All lanes see the same rounds, times and ranks: `max`.
- Labels are bounded: `job_name` by `--max-total-runs`, `rank` to the {MAX_RANKS} ranks with the
  largest numbers in each run and lane, and to {MAX_RANKS_OF_JOB:,} on a lane for a job with all its
  groups, `worker` likewise, `table` to {MAX_TABLES} on a lane and {MAX_TABLES_OF_JOB} of a job, all
  other labels by the code. A series with a `job_name` label ends with the job, one with a `table`
  label with the table.
- The series of a table are of the lanes that lead its partitions. A lane that is the backup of a
  partition has only `reducer_table_reserved_bytes`. The series of backups exist with `replicas=1`.
- An update of a table is a push of one worker to one shard. Divide the updates of all lanes by
  `reducer_table_shards` of all lanes for the updates of the whole table.
- A group of a job's workers is a run with its own ranks: `job_name` is then `JOB#GROUP`. In the
  name of a job, `#` is shown as `%23`, and `%` as `%25`.
- A round of one chunk is on one lane only. `max` over lanes therefore counts only a part of many
  small rounds.

`deploy/grafana/reducer.json` is a dashboard of these metrics, and
`deploy/prometheus/alerts.yaml` has alerts.

"""
CAUSES = """\
## Causes

`reducer_refused_connections_total` counts each refused connection by one cause:

| cause | meaning |
|---|---|"""


def text() -> str:
    rows = [("metric", "type", "labels", "over lanes", "meaning")]
    for series in metrics.catalogue():
        labels = ", ".join(f"`{label}`" for label in series.labels)
        rows.append((f"`{series.exposed}`", series.kind, labels, series.over, series.help))
    lines = [f"| {' | '.join(row)} |".replace("|  |", "| |") for row in rows]
    lines.insert(1, "|---" * len(rows[0]) + "|")
    causes = [f"| `{cause}` | {why} |" for cause, why in metrics.REFUSAL_CAUSES.items()]
    return "\n".join([INTRO + "\n".join(lines), "", CAUSES, *causes, ""])


def test_the_document_shows_what_there_is() -> None:
    assert PATH.read_text() == text()


def lane_part(lane: SimLane, number: int = 0, **changes: Any) -> LaneReport:
    """A lane's part of the snapshot, as the lane process sends it."""
    return lane.lane_report(lane=number, **changes)


def scrape(*lanes: LaneReport) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample, by its name and labels."""
    snapshot = snapshot_of(*lanes)
    families = text_string_to_metric_families(metrics.render(snapshot).decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def test_lanes_and_processes_are_told_apart() -> None:
    first, second = SimLane(), SimLane()
    found = scrape(
        lane_part(first, 0, cpu_seconds=2.0, fold_seconds=0.5), lane_part(second, 1, cpu_seconds=3)
    )
    seconds = "reducer_process_cpu_seconds_total"
    used = {dict(labels)["process"]: v for (name, labels), v in found.items() if name == seconds}
    assert used == {"main": 1.5, "lane-0": 2.0, "lane-1": 3.0}
    assert found["reducer_fold_seconds_total", frozenset({("lane", "0")})] == 0.5
    assert found["reducer_refused_connections_total", frozenset({("cause", "garbage")})] == 2
    assert ("reducer_kernel_info", frozenset({("impl", "native"), ("compiled", "true")})) in found


def test_every_cause_of_a_refusal_is_there_from_the_start() -> None:
    """The causes are literals in the sources, most of them arguments of counting functions."""
    server = Path(metrics.__file__).parents[1]
    gates = server / "gates"
    sources = [
        server / "daemon" / "acceptor.py",
        *(gates / f"{name}.py" for name in ("gate", "psk_gate", "tls_gate")),
    ]
    text = "".join(source.read_text() for source in sources)
    text += (tls := (gates / "tls_errors.py").read_text())
    causes = set(re.findall(r'(?:note|refuse)\(\s*"(\w+)"', text))
    causes |= {cause for line in re.findall(r"cause = (.*)", text) for cause in words(line)}
    causes |= set(re.findall(r'return "(\w+)", ', tls))
    causes |= set(re.findall(r'refused\["(\w+)"\]', (server / "daemon" / "app.py").read_text()))
    assert causes == set(metrics.REFUSAL_CAUSES)
    found = scrape(lane_part(SimLane()))
    assert {
        dict(labels)["cause"]: count
        for (name, labels), count in found.items()
        if name == "reducer_refused_connections_total"
    } == {**dict.fromkeys(causes, 0), "garbage": 2}


def words(line: str) -> list[str]:
    return re.findall(r'"(\w+)"', line)


def test_how_long_rounds_take() -> None:
    lane = SimLane()
    first, second = join_all(lane, 2)
    for number, seconds in enumerate((0.0, 0.004, 0.15)):
        first.contribute(Spec(number=number), data=bytes(32))
        lane.now += seconds
        second.contribute(Spec(number=number), data=bytes(32))
    found = scrape(lane_part(lane))
    labels = {("job_name", "job"), ("lane", "0")}

    def up_to(bound: str) -> float:
        return found["reducer_round_seconds_bucket", frozenset({*labels, ("le", bound)})]

    assert [up_to(b) for b in ("0.0001", "0.002", "0.005", "0.1", "0.2", "+Inf")] == [
        1,
        1,
        2,
        2,
        3,
        3,
    ]
    assert found["reducer_round_seconds_count", frozenset(labels)] == 3
    assert found["reducer_round_seconds_sum", frozenset(labels)] == pytest.approx(0.154)
    assert sum(name == "reducer_round_seconds_bucket" for name, _ in found) == len(BOUNDS) + 1


def test_two_runs_of_one_name_are_one_job() -> None:
    lane = SimLane()
    for run in ("a", "b"):
        first, second = join_all(lane, 2, run_id=run)
        first.contribute(Spec(), data=bytes(32))
        second.contribute(Spec(), data=bytes(32))
    found = scrape(lane_part(lane))
    labels = frozenset({("job_name", "job"), ("lane", "0")})
    assert found["reducer_round_seconds_count", labels] == 2
    assert found["reducer_job_received_bytes_total", labels] == 128
    assert found["reducer_connected_ranks", labels] == 2
    assert found["reducer_world_size", labels] == 2


def test_a_group_of_a_job_has_a_label_of_its_own() -> None:
    lane = SimLane()
    join_all(lane, 3)
    join_all(lane, 2, run_id="run#rows")
    found = scrape(lane_part(lane))
    for name in ("reducer_world_size", "reducer_connected_ranks"):
        sizes = {dict(of)["job_name"]: n for (series, of), n in found.items() if series == name}
        assert sizes == {"job": 3, "job#rows": 2}


def test_any_name_of_a_job_is_a_label() -> None:
    name = 'a"b\\c\nd é {x="y"} 1'
    lane = SimLane()
    join_all(lane, 1, job=name)
    found = scrape(lane_part(lane))
    assert found["reducer_world_size", frozenset({("job_name", name), ("lane", "0")})] == 1


def test_ranks_are_bounded_and_go_with_the_job() -> None:
    lane = SimLane()
    ranks = join_all(lane, 2 * MAX_RANKS)
    for rank in ranks:
        rank.contribute(Spec(), data=b"\x00\x00\xc0\x7f" * 8)
        lane.now += 0.01
    found = scrape(lane_part(lane))
    rows = [labels for name, labels in found if name == "reducer_rank_lateness_seconds_total"]
    assert len(rows) == MAX_RANKS
    for rank in ranks:
        rank.bye()
    found = scrape(lane_part(lane))
    assert not [name for name, labels in found if "job_name" in dict(labels)]


def test_every_number_of_a_job_is_shown() -> None:
    """A new field without a series would be invisible."""
    lane = SimLane()
    join_all(lane, 1)
    shown = {series.field for series in metrics.catalogue()} | {"round_counts"}
    assert set(lane.snapshot()["jobs"]["job"]) - {"waiting"} <= shown


if __name__ == "__main__":
    PATH.write_text(text())
