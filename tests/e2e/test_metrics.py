"""A scrape of a real daemon is complete and true, and has all that dashboard and alerts use."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from reducer.server.daemon import metrics
from reducer_client import MismatchError
from tests.support.cluster import ROOT, Daemon
from tests.support.ranks import Tell, join, start_ranks
from tests.support.table_job import COUNT as COUNT_OF_TABLE
from tests.support.table_job import SHARDS, STEPS, WORKERS, tables
from tests.support.wait import wait_until

WORLD = 3
ROUNDS = 4
COUNT = 500_000
LATE = 25_000  # less than the credit of a worker, so that all bytes arrive
DASHBOARD = ROOT / "deploy/grafana/reducer.json"
ALERTS = ROOT / "deploy/prometheus/alerts.yaml"
ALERTS_TEST = ROOT / "deploy/prometheus/alerts_test.yaml"
# Prometheus adds this series for each target.
NOT_OURS = {"up"}
# Series without a sample: no stranger came, and no partition has a backup.
UNSEEN = {
    "reducer_refused_connections",
    "reducer_table_backup_lag_entries",
    "reducer_table_backup_wait_seconds",
    "reducer_table_partitions_without_backup",
}

Samples = dict[str, dict[frozenset[tuple[str, str]], float]]


def _work(rank: int, world: int, addresses: list[str], job: str, tell: Tell) -> None:
    """ROUNDS good rounds, one mismatched round, and one for which the last rank is late."""
    with join(rank, world, addresses, job) as group:
        values = np.full(COUNT, np.nan if rank == 1 else 1.0, np.float32)
        for _ in range(ROUNDS):
            group.all_reduce(values, key="grad").wait()
        with pytest.raises(MismatchError, match="disagree"):
            group.all_reduce(np.ones(8 + rank), key="odd").wait()
        late = values[:LATE]
        work = None if rank == world - 1 else group.all_reduce(late, key="late")
        tell("worked")
        tell.hear()
        (work or group.all_reduce(late, key="late")).wait()


@pytest.fixture(scope="module")
def scrapes() -> Iterator[tuple[str, str, str]]:
    """The job, /metrics while the job waits for a rank, and /metrics after its end."""
    job = "scraped"
    with Daemon(lanes=2) as daemon:
        with (
            tables(daemon.port, job),
            start_ranks(WORLD, _work, [daemon.address], job, talk=True) as ranks,
        ):
            for rank in range(WORLD):
                ranks.receive(rank, 60)
            wait_until(
                lambda: _parked(daemon) >= (WORLD - 1) * 4 * LATE,
                10,
                "contributions wait for the last rank",
            )
            at_work = daemon.get("/metrics")[1]
            for rank in range(WORLD):
                ranks.send(rank)
            assert all(o.error is None and o.reported for o in ranks.collect(60))
        wait_until(lambda: daemon.lane_total("connections") == 0, 10, "all have left")
        yield job, at_work, daemon.get("/metrics")[1]


def _parked(daemon: Daemon) -> int:
    jobs = [job for lane in daemon.stats()["lanes"] for job in lane["core"]["jobs"].values()]
    return sum(job["parked_bytes"] for job in jobs)


def samples(scrape: str) -> Samples:
    found: Samples = defaultdict(dict)
    for family in text_string_to_metric_families(scrape):
        for sample in family.samples:
            found[sample.name][frozenset(sample.labels.items())] = sample.value
    return found


def test_every_series_is_there_and_no_other(scrapes: tuple[str, str, str]) -> None:
    families = {f.name: f for f in text_string_to_metric_families(scrapes[1])}
    assert set(families) == {series.name for series in metrics.catalogue()}
    for series in metrics.catalogue():
        family = families[series.name]
        assert family.type == series.kind
        if series.name not in UNSEEN:
            assert family.samples, series.name
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(series.labels), sample


def test_the_numbers_are_true(scrapes: tuple[str, str, str]) -> None:
    job, at_work, _ = scrapes
    found = samples(at_work)
    total = {name: sum(rows.values()) for name, rows in found.items()}
    most = {name: max(rows.values()) for name, rows in found.items() if rows}
    full, late = ROUNDS * WORLD * 4 * COUNT, (WORLD - 1) * 4 * LATE
    # The mismatched round also arrived, and was dropped.
    odd = 8 * sum(8 + rank for rank in range(WORLD))
    assert total["reducer_job_received_bytes_total"] == full + late + odd
    assert total["reducer_job_sent_bytes_total"] == full
    assert total["reducer_refused_rounds_total"] == 1
    assert total["reducer_parked_bytes"] >= late
    assert total["reducer_held_bytes"] >= total["reducer_parked_bytes"]
    assert most["reducer_rounds_total"] == ROUNDS
    assert most["reducer_open_rounds"] == 1
    assert most["reducer_connected_ranks"] == most["reducer_world_size"] == WORLD
    assert most["reducer_oldest_round_seconds"] > 0
    lanes = [frozenset({("job_name", job), ("lane", lane)}) for lane in "01"]
    for lane in lanes:
        assert found["reducer_round_seconds_count"][lane] == ROUNDS
        assert 0 < found["reducer_round_seconds_sum"][lane] < 60
    nonfinite = found["reducer_nonfinite_contributions_total"]
    assert {dict(labels)["rank"] for labels in nonfinite} == {"1"}
    assert total["reducer_fold_seconds_total"] > 0
    cpu = found["reducer_process_cpu_seconds_total"]
    assert {dict(labels)["process"] for labels in cpu} == {"main", "lane-0", "lane-1"}
    assert all(seconds > 0 for seconds in cpu.values())
    assert total["reducer_fold_seconds_total"] < sum(cpu.values())
    assert 0 < total["reducer_reserved_bytes"] < total["reducer_budget_bytes"]


def test_the_numbers_of_tables_are_true(scrapes: tuple[str, str, str]) -> None:
    job, at_work, _ = scrapes
    found = samples(at_work)

    def of(name: str, table: str, **more: str) -> float:
        labels = {"job_name": job, "lane": "0", "table": table, **more}
        return found[f"reducer_table_{name}"][frozenset(labels.items())]

    assert of("steps_total", "net") == STEPS
    assert of("excluded_steps_total", "net", worker="2") == STEPS
    assert of("applied_updates_total", "net") == 2 * SHARDS * STEPS
    assert of("received_bytes_total", "net") == 4 * COUNT_OF_TABLE * (WORKERS + 2 * STEPS)
    assert of("open_step_seconds", "net") > 0
    assert of("applied_updates_total", "async") == SHARDS * WORKERS
    assert of("staleness_sum", "async") == SHARDS * sum(range(WORKERS))
    assert of("sent_bytes_total", "async") == 4 * COUNT_OF_TABLE
    assert of("elements", "async") == COUNT_OF_TABLE
    assert of("workers", "async") == WORKERS


def test_the_labels_of_a_job_end_with_it(scrapes: tuple[str, str, str]) -> None:
    for name, rows in samples(scrapes[2]).items():
        assert not [labels for labels in rows if "job_name" in dict(labels)], name


def named(text: str) -> set[str]:
    return set(re.findall(r"\breducer_[a-z_]+\b|\bup\b", text))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("expr", "definition", "query") and isinstance(inner, str):
                yield inner
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


def asked_for(path: Path) -> dict[str, set[str]]:
    """The names of metrics in each expression of a dashboard or a file of rules."""
    if path.suffix == ".json":
        return {text: named(text) for text in _strings(json.loads(path.read_text()))}
    blocks = re.findall(r"^ +expr: (.*(?:\n {10,}.*)*)", path.read_text(), re.M)
    return {block: named(block) for block in blocks}


@pytest.mark.parametrize("path", [DASHBOARD, ALERTS], ids=lambda path: path.name)
def test_dashboard_and_alerts_ask_for_what_there_is(
    path: Path, scrapes: tuple[str, str, str]
) -> None:
    there = set(samples(scrapes[1])) | {s.exposed for s in metrics.catalogue()} | NOT_OURS
    labels = {s.exposed: set(s.labels) for s in metrics.catalogue()}
    for name, rows in samples(scrapes[1]).items():
        labels.setdefault(name, set()).update(pair[0] for row in rows for pair in row)
    expressions = {text: names for text, names in asked_for(path).items() if names}
    assert len(expressions) > 15
    for text, names in expressions.items():
        assert names <= there, f"{text}: {names - there}"
        by = {
            label for group in re.findall(r"by \(([\w, ]+)\)", text) for label in group.split(", ")
        }
        known = {label for name in names for label in labels.get(name, ())} | {"instance"}
        causes = {"cause"} if "reducer_refused_connections_total" in names else set()
        assert by <= known | causes, f"{text}: {by - known}"


def test_every_series_is_on_the_dashboard_or_in_an_alert() -> None:
    used = {name for path in (DASHBOARD, ALERTS) for n in asked_for(path).values() for name in n}
    used = {re.sub(r"_(bucket|count|sum)$", "", name) for name in used}
    unused = {series.exposed for series in metrics.catalogue()} - used
    assert unused == {
        "reducer_accepted_connections_total", "reducer_lane_accepted_total", "reducer_sessions",
        "reducer_buffers_in_use", "reducer_buffer_allocations_total", "reducer_keys",
        "reducer_held_bytes", "reducer_stats_walks_total", "reducer_registry_records",
    }  # fmt: skip


def promtool(*arguments: str, stdin: str = "") -> str:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("no promtool (Debian: apt-get install prometheus)")
    done = subprocess.run(
        [tool, *arguments], input=stdin, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_promtool_accepts_the_scrape(scrapes: tuple[str, str, str]) -> None:
    for scrape in scrapes[1:]:
        assert promtool("check", "metrics", stdin=scrape) == ""


def test_promtool_accepts_the_alerts_and_they_fire_when_they_should() -> None:
    assert "SUCCESS" in promtool("check", "rules", str(ALERTS))
    assert "SUCCESS" in promtool("test", "rules", str(ALERTS_TEST))


def test_promtool_understands_the_dashboard(tmp_path: Path) -> None:
    """Check each expression as a rule, with values for Grafana's variables."""
    asked = asked_for(DASHBOARD).items()
    expressions = [t for t, names in asked if names and not t.startswith("label_values")]
    variables = {"$__rate_interval": "5m", "$job_name": ".*", "$instance": ".*"}
    for name, value in variables.items():
        expressions = [text.replace(name, value) for text in expressions]
    rules = [
        {"record": "panel", "labels": {"n": str(n)}, "expr": e} for n, e in enumerate(expressions)
    ]
    file = tmp_path / "rules.yaml"  # JSON is YAML
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"SUCCESS: {len(expressions)} rules found" in promtool("check", "rules", str(file))


def test_every_alert_fires_in_one_test_and_has_its_series_in_the_one_without_alerts() -> None:
    """Names in the files; promtool runs the tests. An alert without its series cannot fire."""
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    quiet, *others = yaml.safe_load(ALERTS_TEST.read_text())["tests"]
    (nothing,) = quiet["promql_expr_test"]
    assert (nothing["expr"], nothing["exp_samples"]) == ('ALERTS{alertstate="firing"}', [])
    fired: set[str] = set()
    for test in others:
        for case in test.get("alert_rule_test", ()):
            fired |= {case["alertname"]} if case["exp_alerts"] else set()
        for case in test.get("promql_expr_test", ()):
            labels = " ".join(sample["labels"] for sample in case["exp_samples"])
            fired |= set(re.findall(r'alertname="(\w+)"', labels))
    assert fired == {rule["alert"] for rule in rules}
    there = {series["series"].partition("{")[0] for series in quiet["input_series"]}
    for rule in rules:
        asked = set(re.findall(r"\breducer_\w+|\bup\b", rule["expr"]))
        assert asked and asked <= there, rule["alert"]
