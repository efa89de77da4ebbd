"""The figures of `bench.report` for lines as `bench.allreduce` writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.report.results import ResultsError, Run, Series, collect, load
from bench.report.table import format_run, format_runs

MIB = 1 << 20
GBIT = 125e6
CONTEXT = json.loads("""
{"what": "context", "run": "a", "time": "2026-01-01T00:00:00+0000", "commit": "0123abc",
 "command": "python -m bench.allreduce", "cpu": "a processor", "cores": 2, "kernel": "6.1",
 "load": [0.5, 0.4, 0.3]}
""")
LINE = json.loads("""
{"what": "all-reduce", "run": "a", "turn": 0, "workers": 4, "reducers": 4, "lanes": 1,
 "rate": "1gbit", "reducer_rate": "1gbit", "congestion": "cubic", "transport": "default",
 "chunk_table": "default", "credit": "default", "commit": "0123abc", "bytes": 67108864,
 "dtype": "float32", "wire_dtype": "float32", "reducer_cpu": 0.0, "worker_cpu": 0.0,
 "nic_sent": 0, "cpu_busy": 0.5, "cpu_total": 1.0}
""")


def measured(contender: str, *seconds: float, **other: Any) -> dict[str, Any]:
    return {**LINE, "contender": contender, "seconds": list(seconds), **other}


def one(contender: str, *seconds: float, **other: Any) -> Series:
    (series,) = run_of(measured(contender, *seconds, **other)).series
    return series


def run_of(*lines: dict[str, Any]) -> Run:
    (run,) = collect([CONTEXT, *lines])
    return run


def test_turns_of_a_case_make_one_series() -> None:
    run = run_of(
        measured("reducers", 0.5, turn=0),
        measured("gloo", 0.9, turn=0),
        measured("reducers", 0.7, 0.6, turn=1),
    )
    assert [(s.contender, s.seconds) for s in run.series] == [
        ("reducers", (0.5, 0.7, 0.6)),
        ("gloo", (0.9,)),
    ]


def test_bandwidths_follow_from_the_median() -> None:
    series = one("reducers", 0.5, 0.4, 0.9, nic_sent=180 * MIB)
    assert series.median == 0.5
    assert series.algbw == pytest.approx(64 * MIB / 0.5 / 1e9)
    assert series.busbw == pytest.approx(1.5 * series.algbw)
    assert series.wire_rate == pytest.approx(180 * MIB / 1.8 / 1e9)


def test_the_spread_is_least_quartiles_and_most() -> None:
    assert one("gloo", 5.0, 1.0, 2.0, 4.0, 3.0).spread == (1.0, 2.0, 4.0, 5.0)
    assert one("gloo", 2.0).spread == (2.0, 2.0, 2.0, 2.0)


def test_time_is_compared_with_what_one_nic_needs_for_the_array() -> None:
    assert one("reducers", 64 * MIB / GBIT).to_line == pytest.approx(1.0)
    half = one("reducers", 64 * MIB / GBIT, wire_dtype="bfloat16")
    assert half.to_line == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("contender", "other", "arrays"),
    [
        ("reducers", {}, 1.0),
        ("reducers", {"reducers": 2, "reducer_rate": "1gbit"}, 2.0),
        ("reducers", {"reducer_rate": "500mbit"}, 2.0),
        ("reducers", {"reducers": 8}, 1.0),
        ("reducers", {"wire_dtype": "bfloat16"}, 0.5),
        ("reducers", {"reducers": 0, "hosted": True}, 1.5),
        ("reducers", {"reducers": 2, "hosted": True}, 1.2),
        ("reducers", {"reducers": 2, "hosted": True, "reducer_rate": "2gbit"}, 1.0),
        ("gloo", {}, 1.5),
        ("gloo", {"reducers": 2}, 1.5),
        ("mpi", {"workers": 8}, 1.75),
        ("gloo", {"wire_dtype": "bfloat16"}, 0.75),
    ],
)
def test_the_bound_is_what_the_busiest_nic_must_move(
    contender: str, other: dict[str, Any], arrays: float
) -> None:
    least = arrays * 64 * MIB / GBIT * 1.045
    series = one(contender, 2 * least, **other)
    assert series.bound == pytest.approx(least)
    assert series.to_bound == pytest.approx(2.0)


def test_cpu_is_counted_by_gigabytes_that_travel() -> None:
    """Four workers send 64 MiB in each of two rounds."""
    cpu = {"reducer_cpu": 0.2, "worker_cpu": 0.4}
    gigabytes = 2 * 4 * 64 * MIB / 1e9
    series = one("reducers", 0.5, 0.5, **cpu)
    assert series.reducer_cost == pytest.approx(0.2 / gigabytes)
    assert series.worker_cost == pytest.approx(0.4 / gigabytes)
    narrow = one("reducers", 0.5, 0.5, wire_dtype="bfloat16", **cpu)
    assert narrow.reducer_cost == pytest.approx(0.4 / gigabytes)
    assert one("gloo", 0.5, 0.5, **cpu).reducer_cost is None


def test_busy_is_the_share_of_all_turns_together() -> None:
    short = measured("reducers", 0.001, cpu_busy=0.0, cpu_total=0.0)
    long = measured("reducers", 0.1, cpu_busy=0.15, cpu_total=0.2)
    assert run_of(short, long).series[0].busy == pytest.approx(0.75)
    assert run_of(short).series[0].busy is None
    assert format_run(run_of(short, measured("gloo", 0.1)))


def test_speed_is_compared_within_run_and_case_alone() -> None:
    run = run_of(
        measured("reducers", 0.5),
        measured("gloo", 0.8),
        measured("gloo", 0.1, bytes=MIB),
    )
    assert run.speed_over(run.series[0], "gloo") == pytest.approx(1.6)
    assert run.speed_over(run.series[1], "gloo") == 1.0
    assert run.speed_over(run.series[2], "reducers") is None
    assert run.speed_over(run.series[0], "mpi") is None


def test_a_peer_that_was_short_of_cores_is_marked() -> None:
    def ratio(**other: Any) -> str:
        run = run_of(measured("reducers", 1.0, **other), measured("gloo", 1.6, **other))
        words = format_run(run).splitlines()[-2].split()
        return next(word for word in words if word.startswith("1.60"))

    assert ratio() == "1.60"
    assert ratio(cpu_busy=0.96) == "1.60?"
    assert ratio(bytes=MIB) == "1.60?"
    assert ratio(bytes=MIB, workers=2) == "1.60"  # as many as the machine has cores
    slow = {"cpu_busy": 1.0, "bytes": MIB, "rate": "10mbit", "reducer_rate": "10mbit"}
    assert ratio(**slow, workers=2) == "1.60?"
    assert ratio(**slow, workers=8) == "1.60"  # 1.6 s are 1.04 times what a ring of 8 needs


def test_without_limited_nics_nothing_is_said_of_them() -> None:
    loopback = {"rate": None, "reducer_rate": None}
    series = one("reducers", 0.5, nic_sent=MIB, **loopback)
    assert (series.to_line, series.bound, series.to_bound, series.wire_rate) == (None,) * 4
    text = format_run(run_of(measured("reducers", 0.5, **loopback)))
    assert "loopback" in text
    assert not {"xN/BW", "xbest", "wire", "/gloo", "/mpi"} & set(text.split())


def test_the_table_is_aligned_within_120_columns() -> None:
    run = run_of(
        measured("reducers", 43.21, 1.0, 99.0, bytes=256 * MIB, nic_sent=1, reducer_cpu=1.0),
        measured("gloo", 51.9, bytes=256 * MIB, worker_cpu=400.0),
        measured("mpi", 40.0, bytes=256 * MIB),
        measured("reducers", *[0.00017] * 150, bytes=4096, wire_dtype="bfloat16"),
        {"what": "end", "run": "a", "load": [1.5, 1.0, 0.5]},
    )
    lines = format_runs([run]).splitlines()
    assert max(map(len, lines)) <= 120
    heads, rows = lines[3:5], lines[5:8]
    assert {len(line) for line in [heads[1], *rows]} == {len(rows[0])}
    assert lines[8] == ""
    assert "load 0.5 before, 1.5 after" in lines[1]
    assert " ".join(rows[0].split()[:8]) == (
        "256M 67.1M fp32 reducers 3 43210.0 -98/-49/+65/+129 0.006"
    )
    assert " ".join(lines[9].split()[:6]) == "4K 1.02k fp32-bf16 reducers 150 0.170"


def test_a_run_that_was_broken_off_is_shown_all_the_same() -> None:
    assert "?" in format_runs(collect([CONTEXT, measured("reducers", 0.5)]))
    assert format_runs(collect([CONTEXT])) == "nothing was measured"


def test_files_are_read_and_what_is_wrong_with_them_is_said(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in (CONTEXT, measured("gloo", 1.0))))
    assert [run.contenders for run in load(path)] == [["gloo"]]
    path.write_text(json.dumps(CONTEXT) + "\n{\n")
    with pytest.raises(ResultsError, match=r"results\.jsonl, line 2"):
        load(path)
    path.write_text(json.dumps(measured("gloo", 1.0)))
    with pytest.raises(ResultsError, match="no context"):
        load(path)
    path.write_text('{"what": "all-reduce"}')
    with pytest.raises(ResultsError, match="'dtype'"):
        load(path)


def test_curves_and_bars_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from bench.report.plots import draw

    sizes = [measured("reducers", 0.1, 0.2, bytes=MIB << shift) for shift in range(3)]
    runs = [run_of(*sizes), run_of(measured("reducers", 0.5), measured("gloo", 0.8))]
    path = tmp_path / "new" / "plot.png"
    draw(runs, path)
    assert path.read_bytes().startswith(b"\x89PNG")
