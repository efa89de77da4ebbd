"""`bench.allreduce` and `bench.report` on tiny arrays: real daemons, worker processes and gloo."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from reducer_tools.netlab import Lab, LabError, Nic
from tests.support.cluster import ROOT, environment

pytest.importorskip("torch")


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def measure(path: Path, *options: str) -> tuple[str, list[dict[str, Any]]]:
    """The printed table, and the JSON lines between "context" and "end"."""
    once = ["--workers", "2", "--repeats", "1", "--warmup", "0", "--json", str(path)]
    done = bench("bench.allreduce", *once, *options)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["what"] for line in lines if line["what"] != "all-reduce"] == ["context", "end"]
    assert lines[0]["cores"] >= 1 and "bench.allreduce" in lines[0]["command"]
    return done.stdout, lines[1:-1]


def cases(lines: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """The measured cases, in order, each with its number of measurements."""
    names = ("dtype", "wire_dtype", "bytes", "contender")
    return [(*(line[name] for name in names), len(line["seconds"])) for line in lines]


@pytest.mark.long
def test_contenders_are_measured_over_loopback(tmp_path: Path) -> None:
    results, plot = tmp_path / "results.jsonl", tmp_path / "plot.png"
    table, lines = measure(
        *(results, "--loopback", "--reducers", "2", "--lanes", "2", "--sizes", "4K,2M"),
        *("--dtypes", "fp32,bf16,fp16,fp32-bf16", "--chunk-table", "0:64K", "--credit", "1MiB"),
        *("--transport", "tcp"),
    )
    types = [("float32", "float32"), ("bfloat16", "bfloat16"), ("float16", "float16")]
    types += [("float32", "bfloat16")]
    assert cases(lines) == [
        (*type_, size, contender, rounds)
        for type_ in types
        for size, rounds in ((4096, 30), (2 << 20, 2))
        for contender in ("reducers", "gloo")
    ]
    for line in lines:
        assert all(0 < seconds < 60 for seconds in line["seconds"])
        assert line["worker_cpu"] > 0 and line["nic_sent"] > line["bytes"]
        assert (line["reducer_cpu"] > 0) == (line["contender"] == "reducers")
        assert (line["rate"], line["chunk_table"], line["credit"]) == (None, "0:65536", "1MiB")
    assert "2 workers, 2 reducers of 2 lanes, loopback" in table
    shown = bench("bench.report", str(results), "--plot", str(plot))
    assert shown.stdout == table, shown.stderr


@pytest.mark.long
def test_limited_nics_limit(tmp_path: Path) -> None:
    try:
        with Lab({"host": Nic("1gbit")}) as lab:
            firewall = subprocess.run(
                lab.command("switch", ["sh", "-c", "cat /proc/sys/net/bridge/*-call-*"]),
                capture_output=True, text=True, check=False,
            ).stdout  # fmt: skip
    except LabError as error:
        pytest.skip(f"no network namespaces here: {error}")
    assert "1" not in firewall  # and nothing where the machine has no br_netfilter
    table, lines = measure(
        *(tmp_path / "results.jsonl", "--reducers", "2", "--sizes", "2M"),
        *("--rate", "100mbit", "--reducer-rate", "200mbit", "--peers", "gloo"),
    )
    assert "100mbit NICs, reducers' 200mbit" in table
    line_rate = (2 << 20) / 12.5e6
    for line in lines:
        assert line["congestion"] == "cubic"
        assert line["nic_sent"] >= line["bytes"]  # nothing went around the NIC
        # A bucket of 256 KB is full at the start, and may be once more after a pause.
        assert min(line["seconds"]) > 0.7 * line_rate


@pytest.mark.long
def test_reducers_on_the_hosts_of_workers_move_what_a_ring_moves(tmp_path: Path) -> None:
    try:
        with Lab({"host": Nic("1gbit")}):
            pass
    except LabError as error:
        pytest.skip(f"no network namespaces here: {error}")
    table, lines = measure(
        *(tmp_path / "results.jsonl", "--workers", "3", "--reducers", "0", "--hosted"),
        *("--rate", "400mbit", "--sizes", "8M", "--peers", "none"),
    )
    assert "3 workers, 0 reducers and 3 hosted ones, 400mbit NICs" in table
    (line,) = lines
    ring = 2 * (3 - 1) / 3 * (8 << 20)
    # 128 chunks do not divide by three: a reducer may have a chunk less than its share.
    assert 0.98 * ring < line["nic_sent"] < 1.1 * ring


@pytest.mark.long
def test_the_plugin_for_nccl_is_a_contender(tmp_path: Path) -> None:
    table, lines = measure(
        *(tmp_path / "results.jsonl", "--loopback", "--reducers", "2", "--sizes", "5M"),
        *("--peers", "plugin", "--dtypes", "fp32,fp32-bf16"),
    )
    assert cases(lines) == [
        ("float32", "float32", 5 << 20, "reducers", 1),
        ("float32", "float32", 5 << 20, "plugin", 1),
        ("float32", "bfloat16", 5 << 20, "reducers", 1),
    ]
    assert all(line["reducer_cpu"] > 0 for line in lines)
    assert "plugin" in table


def test_a_worker_that_fails_ends_the_run_with_its_name() -> None:
    options = "--loopback --workers 2 --reducers 1 --transport pigeon"
    done = bench("bench.allreduce", *options.split())
    assert done.returncode == 1
    assert "worker" in done.stderr and "ended when ordered to join" in done.stderr
