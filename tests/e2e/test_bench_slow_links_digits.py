"""`bench.slow_links.digits`: a short training by real workers, and the bars."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reducer_client import Group
from tests.support.cluster import ROOT, environment
from tests.support.frameworks import needs_extra

pytestmark = needs_extra("torch", "sklearn")


@pytest.mark.long  # 30 CPU seconds; tests/e2e/test_diloco.py has the optimizer
def test_local_steps_learn_with_a_fraction_of_the_bytes(tmp_path: Path) -> None:
    options = ["--workers", "2", "--seeds", "1", "--epochs", "4", "--json", str(tmp_path / "json")]
    done = subprocess.run(
        [sys.executable, "-m", "bench.slow_links.digits", *options, "--methods", "DiLoCo H 20"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    _, whole, ours = map(json.loads, (tmp_path / "json").read_text().splitlines())
    assert ours["accuracy"] > 0.7
    steps, exchanges = 64, 4  # after steps 20, 40, 60, and at the end
    assert whole["nbytes"] / ours["nbytes"] == pytest.approx(steps / exchanges, rel=0.01)


def test_the_bars_tell_what_was_missed() -> None:
    from bench.slow_links.digits import format_table
    from bench.slow_links.methods import METHODS, WHOLE, Result, verdicts

    results = dict.fromkeys(METHODS, Result(0.95, 0.94, 1e6, 100))
    assert [line.split(": ")[-1] for line in verdicts(results)] == ["MISSED", "MISSED", "met"]
    results["DiLoCo H 20"] = Result(0.97, 0.96, 5e4, 100)
    results["wrong sign H 20"] = Result(0.1, 0.1, 5e4, 100)
    results["half lost H 20"] = Result(0.939, 0.93, 5e4, 100)
    assert [line.split(": ")[-1] for line in verdicts(results)] == ["met", "met", "MISSED"]
    results["half lost H 20"] = replace(results["half lost H 20"], accuracy=0.945)
    assert all(line.endswith(": met") for line in verdicts(results))
    results["DiLoCo H 50 e3m0"] = Result(0.944, 0.94, 9e3, 100)
    assert len(list(verdicts(results))) == 5 and "MISSED" not in "".join(verdicts(results))
    assert " ".join(format_table(results).splitlines()[2].split()) == (
        "DiLoCo H 20 0.5 20.0x 97.00% 96.00%"
    )
    assert WHOLE in format_table(results)


def test_a_spoiled_group_turns_or_loses_contributions(solo: Group) -> None:
    from bench.slow_links.controls import HalfLost, WrongSign

    array = np.ones(3, np.float32)
    turned = WrongSign(solo, 1).all_reduce(array, "mean", key="a", out=array)
    assert turned.wait().tolist() == turned.wait().tolist() == [-1.0] * 3
    lossy = HalfLost(solo, 1)
    came = []
    for _ in range(40):
        array = np.ones(3, np.float32)
        came.append(lossy.all_reduce(array, "mean", key="b", out=array).wait()[0])
    assert {*came} == {0.0, 1.0}
