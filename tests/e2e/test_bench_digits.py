"""`bench.ps digits`: a short training by real workers, and the bars."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.ps.digits import BARS, CASES, Result, format_row, mean, verdicts
from tests.support.cluster import ROOT, environment
from tests.support.frameworks import needs_extra

pytestmark = needs_extra("sklearn")

CASE = "slow: 3 of 4, drop, m = 4"
GOOD = Result("a", 0.97, 1.0, 100, 0.0, True)


@pytest.mark.long  # 11 CPU seconds; tests/e2e/test_tables.py has late workers
def test_a_late_worker_is_left_out_and_the_others_learn(tmp_path: Path) -> None:
    options = ["--only", CASE, "--unit-ms", "10", "--json", str(tmp_path / "json")]
    done = subprocess.run(
        [sys.executable, "-m", "bench.ps", "digits", *options],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = map(json.loads, (tmp_path / "json").read_text().splitlines())
    (result,) = [line for line in lines if line["what"] == "digits"]
    assert result["case"] == CASE
    counts = result["counts"]
    assert result["accuracy"] > 0.5 and counts["dropped"] >= 1
    # The last line of worker 0 comes a step or two before the end.
    assert 3 * result["version"] <= counts["applied"] <= 4 * (result["version"] + 3)


def test_the_bars_tell_what_was_missed() -> None:
    names = [case.name for case in CASES]
    results = dict.fromkeys(names, GOOD)
    assert [line.split(": ")[-1] for line in verdicts(results)].count("MISSED") == 4
    results["async sgd 0.1/0.9"] = replace(GOOD, accuracy=0.1)
    results["skewed: 3 of 4, drop"] = replace(GOOD, accuracy=0.8)
    results["slow: 4 of 4"] = replace(GOOD, goal_seconds=3.0)
    results["stalls: ssp 0"] = replace(GOOD, goal_seconds=1.6)
    assert all(line.endswith(": met") for line in verdicts(results))
    assert len(list(verdicts(results))) == len(BARS)
    results["slow: 3 of 4, drop"] = replace(GOOD, accuracy=0.95, goal_seconds=None)
    assert [line.endswith("MISSED") for line in verdicts(results)].count(True) == 2
    assert list(verdicts({"async sgd 0.1/0": GOOD})) == ["async sgd 0.1/0 >= 96 %: met"]


def test_a_row() -> None:
    never = replace(GOOD, goal_seconds=None, counts={"applied": 3, "dropped": 0})
    assert " ".join(format_row(never).split()) == "a 97.0% never 100 0.00 3 applied, warned"


def test_a_mean_has_a_time_if_all_trainings_have_one() -> None:
    other = replace(GOOD, accuracy=0.95, goal_seconds=2.0)
    assert mean([GOOD, other]) == replace(GOOD, accuracy=0.96, goal_seconds=1.5)
    assert mean([GOOD, replace(other, goal_seconds=None)]).goal_seconds is None
