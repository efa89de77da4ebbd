"""`bench.cpu` and `bench.latency` on tiny arrays: real daemons, worker processes and C programs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from reducer_tools.netlab import Lab, LabError, Nic
from tests.support.cluster import ROOT, environment

BRIEF = ("--workers", "2", "--warmup", "0", "--repeats", "1", "--rounds", "2")


@pytest.fixture(scope="module", autouse=True)
def namespaces() -> None:
    try:
        with Lab({"host": Nic()}):
            pass
    except LabError as error:
        pytest.skip(f"no network namespaces here: {error}")


def bench(module: str, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", module, *BRIEF, *options],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long  # 8 CPU seconds
def test_lanes_and_workers_are_measured_beside_programs_in_c(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    options = ["--mib", "1", "--window-kib", "256", "--json", str(path)]
    table = bench("bench.cpu", "--chunk-kib", "64", *options)
    bench("bench.cpu", "--chunk-kib", "96", "--out-of-place", "--unix", *options)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["what"] for line in lines] == ["context", "cpu", "cpu", "cpu"] * 2
    measured = [line for line in lines if line["what"] == "cpu"]
    assert [line["side"] for line in measured] == ["floor", "C", "ours"] * 2
    assert [line["in_place"] for line in measured] == [True] * 3 + [False] * 3
    for line in measured:
        assert min(line["lane"], line["worker"], line["seconds"]) > 0
    assert "Chunks of 64 KiB: float32, 2 workers" in table
    assert [row[:14].split() for row in table.splitlines() if row.startswith("worker")] == [
        ["worker", side] for side in ("floor", "C", "ours")
    ]


@pytest.mark.long  # 6 CPU seconds
def test_small_all_reduces_are_timed_beside_programs_in_c() -> None:
    table = bench("bench.latency", "--sizes", "4KiB,64KiB")
    assert "All-reduce of 4 KiB: float32, 2 workers" in table
    assert "All-reduce of 64 KiB" in table and "1 turns of 2 rounds" in table
