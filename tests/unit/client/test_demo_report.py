"""The demo reports wrong results as a failure."""

from __future__ import annotations

from dataclasses import replace

from reducer_tools.demo.messages import RUNS, RunResult
from reducer_tools.demo.report import find_faults, format_table


def _results() -> dict[str, list[RunResult]]:
    return {
        run: [
            RunResult(run, rank, [2.0, 1.0], 0.95, 5_000_000, 1.5, "abc", {0: 1, 1: 3})
            for rank in range(3)
        ]
        for run in RUNS
    }


def test_equal_runs_have_no_fault() -> None:
    assert find_faults(_results()) == []


def test_one_rank_with_other_parameters_is_a_fault() -> None:
    results = _results()
    results["reducers"][1] = replace(results["reducers"][1], digest="abd")
    assert find_faults(results) == ["reducers: the ranks hold 2 different sets of parameters"]


def test_an_accuracy_more_than_two_points_below_gloos_is_a_fault() -> None:
    results = _results()
    for accuracy, faults in ((0.931, 0), (0.929, 1), (1.0, 0)):
        results["reducers"] = [replace(r, accuracy=accuracy) for r in results["reducers"]]
        assert len(find_faults(results)) == faults


def test_the_table_is_aligned_and_says_who_was_last() -> None:
    lines = format_table(_results()).splitlines()
    assert len(lines) == 4
    assert len({len(line) for line in lines}) == 1
    assert "rank 1 (75% of rounds)" in lines[2]
    assert "5.0 MB" in lines[2]
