"""The model compared with measurements: all saved runs on hosts with limited NICs."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.report.results import Series, load
from reducer_tools.netlab import Nic
from reducer_tools.planner import network_time
from reducer_tools.planner.plan import Step

RESULTS = Path(__file__).parents[3] / "bench" / "results"
HEADLINES = ("allreduce-4+4-1gbit", "allreduce-8+8-500mbit", "allreduce-few-reducers")
HOSTED = "allreduce-hosted"
WITHIN = 0.10
# Above this share of busy cores, the cores set the time, not the NICs.
BUSY = 0.8


def gbps(rate: str | None) -> float:
    bits_per_second = Nic(rate).bits_per_second
    assert bits_per_second is not None
    return bits_per_second / 1e9


def measured(name: str) -> Iterator[Series]:
    """All but gloo's bfloat16, where torch casts the whole array before and after the ring."""
    for run in load(RESULTS / f"{name}.jsonl"):
        for series in run.series:
            if series.contender != "gloo" or series.wire_dtype == series.dtype:
                yield series


SERIES = [series for name in HEADLINES for series in measured(name)]
WITH_HOSTED = [*measured(HOSTED)]


def predicted(series: Series) -> float:
    at, size = series.topology, int(series.wire_size)
    if series.contender == "gloo":
        return network_time.ring_seconds(size, at.workers, gbps(at.rate))
    hosts = (at.workers, gbps(at.rate), at.reducers, gbps(at.reducer_rate))
    model = network_time.mixed_seconds if at.hosted else network_time.reducer_seconds
    return model(size, *hosts)


def name(series: Series) -> str:
    at = series.topology
    shape = f"{at.workers}+{at.reducers} {at.rate}/{at.reducer_rate}"
    return f"{series.contender} {shape} {series.wire_dtype}"


def test_every_shape_of_the_speed_measurements_is_among_them() -> None:
    found = {name(series) for series in SERIES if series.contender == "reducers"}
    assert found == {
        "reducers 4+4 1gbit/1gbit float32",
        "reducers 4+4 1gbit/1gbit bfloat16",
        "reducers 8+8 500mbit/500mbit float32",
        "reducers 4+3 1gbit/1gbit float32",
        "reducers 4+2 1gbit/1gbit float32",
        "reducers 4+4 1gbit/500mbit float32",
    }


def test_hosted_reducers_were_measured_with_none_to_enough_dedicated_ones() -> None:
    ours = [series.topology for series in WITH_HOSTED if series.contender == "reducers"]
    assert {(at.workers, at.reducers) for at in ours} == {
        *((4, reducers) for reducers in range(5)),
        *((8, reducers) for reducers in (0, 2, 4, 8)),
    }
    assert all(at.hosted for at in ours)


@pytest.mark.parametrize("series", [*SERIES, *WITH_HOSTED], ids=name)
def test_a_prediction_is_within_a_tenth_of_the_measurement(series: Series) -> None:
    assert predicted(series) == pytest.approx(series.median, rel=WITHIN)


def test_the_winner_is_who_was_measured_to_win() -> None:
    rings = {name(s).split(" ", 1)[1]: s for s in SERIES if s.contender == "gloo"}
    ours = [s for s in SERIES if s.contender == "reducers" and s.wire_dtype == s.dtype]
    won = {s.median < rings[name(s).split(" ", 1)[1]].median for s in ours}
    assert won == {True, False}, "expected a ring to win some shapes, but not all"
    for series in ours:
        ring = rings[name(series).split(" ", 1)[1]]
        assert (predicted(series) < predicted(ring)) == (series.median < ring.median)


def training() -> Iterator[tuple[str, dict[str, Any], float]]:
    """(contender, line, compute seconds) of each training case in which the NICs set the time."""
    lines = [json.loads(text) for text in (RESULTS / "training.jsonl").read_text().splitlines()]
    cases: dict[str, dict[str, dict[str, Any]]] = {}
    for line in lines:
        if line["what"] == "training":
            key = json.dumps([line["case"], line["gradient_bytes"]])
            cases.setdefault(key, {})[line["contender"]] = line
    for contenders in cases.values():
        if contenders["gloo"]["busy"] > BUSY:
            continue
        compute = step_of(contenders["compute"])
        for contender in ("gloo", "reducers"):
            yield contender, contenders[contender], compute


def step_of(line: dict[str, Any]) -> float:
    return statistics.median(seconds for block in line["seconds"] for seconds in block)


@pytest.mark.parametrize(("contender", "line", "compute"), [*training()])
def test_a_step_of_ddp_is_within_a_tenth(
    contender: str, line: dict[str, Any], compute: float
) -> None:
    case = line["case"]
    rate, size = gbps(case["rate"]), line["gradient_bytes"]
    if contender == "gloo":
        allreduce = network_time.ring_seconds(size, case["workers"], rate)
    else:
        allreduce = network_time.reducer_seconds(
            size, case["workers"], rate, case["reducers"], rate
        )
    assert Step(compute).seconds(allreduce) == pytest.approx(step_of(line), rel=WITHIN)
