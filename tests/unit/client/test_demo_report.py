"""The demo's figures, its table and sentences, and that wrong results are a failure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from reducer_tools.demo import report
from reducer_tools.demo.case import Case
from reducer_tools.demo.cores import CpuTime, cpu_time
from reducer_tools.demo.messages import BATCH, RUNS, WARMUP, RunResult
from reducer_tools.demo.summary import Run, find_faults, summarize
from tests.support.frameworks import needs_extra

CASE = Case(workers=4, reducers=4, steps=5, rate="100mbit", obstacle="")
ON_LOOPBACK = replace(CASE, obstacle="no rights")


def _result(run: str, step: float) -> RunResult:
    seconds = [9.0] * WARMUP + [step, step, 3 * step]
    return RunResult(run, seconds, [2.0] * (WARMUP + 2) + [1.0], 12_000_000, 4_000_000, "abc" * 9)


def _runs() -> dict[str, Run]:
    ranks = [[_result("reducers", 0.2), _result("gloo", 0.3)] for _ in range(3)]
    slow = replace(ranks[1][0], seconds=[9.0] * WARMUP + [0.25, 0.1, 0.1], losses=[8.0] * 6)
    return summarize([ranks[0], [slow, ranks[1][1]], ranks[2]])


def test_a_step_is_as_long_as_on_its_slowest_rank_and_the_median_counts() -> None:
    ours, theirs = (_runs()[run] for run in RUNS)
    assert ours.seconds[WARMUP:] == pytest.approx([0.25, 0.2, 0.6])
    assert (ours.step, theirs.step) == pytest.approx((0.25, 0.3))
    assert ours.losses == pytest.approx([4.0] * 5 + [10 / 3])
    assert ours.sent == pytest.approx(4_000_000)
    assert report.samples_per_second(CASE, ours) == pytest.approx(4 * BATCH / 0.25)


def test_equal_runs_have_no_fault() -> None:
    runs = _runs()
    runs["reducers"] = replace(runs["reducers"], losses=runs["gloo"].losses)
    assert find_faults(runs) == []


def test_one_rank_with_other_parameters_is_a_fault() -> None:
    runs = {run: replace(one, losses=[1.0]) for run, one in _runs().items()}
    runs["gloo"] = replace(runs["gloo"], digests=["abc", "abd", "abc"])
    assert find_faults(runs) == ["gloo: the workers hold 2 different sets of parameters"]


def test_a_loss_that_is_not_gloos_is_a_fault() -> None:
    runs = _runs()
    for loss, faults in ((1.019, 0), (1.021, 1), (0.979, 1), (float("nan"), 1)):
        runs["reducers"] = replace(runs["reducers"], losses=[loss])
        assert len(find_faults(runs)) == faults


def test_the_table_is_aligned_and_has_the_speed_up() -> None:
    lines = report.format_table(CASE, _runs()).splitlines()
    assert len(lines) == 4
    assert len({len(line) for line in lines}) == 1
    assert "250 ms" in lines[2] and "1.20x" in lines[2] and "4.0 MB a step" in lines[2]
    assert "1.00x" in lines[3]
    assert "sent" not in report.format_table(ON_LOOPBACK, _runs())


def test_the_sentences_say_what_the_bytes_allow() -> None:
    text = " ".join(report.explain(CASE, _runs(), busy=0.5).split())
    assert "A ring of 4 sends them 1.50 times" in text
    assert "allow a speed-up of 1.50" in text and "cores were" not in text
    assert "The cores were 95% busy" in report.explain(CASE, _runs(), busy=0.95)
    few = " ".join(report.explain(replace(CASE, reducers=2), _runs(), busy=0.5).split())
    assert "these few reducers 2 times" in few and "allow a speed-up of 0.75" in few


def test_over_loopback_the_sentences_say_why_gloo_wins_and_what_to_run() -> None:
    text = " ".join(report.explain(ON_LOOPBACK, _runs(), busy=0.99).split())
    assert "No limited NICs here: no rights." in text
    assert "`sudo make demo`" in text and "`reducer plan --workers 8" in text
    assert "cores were" not in text


@pytest.mark.parametrize("case", [CASE, ON_LOOPBACK, replace(CASE, workers=64, reducers=1)])
def test_no_line_is_wider_than_a_terminal(case: Case) -> None:
    texts = [report.introduce(case), report.format_table(case, _runs())]
    texts += [report.explain(case, _runs(), busy=0.99)]
    assert max(len(line) for text in texts for line in text.splitlines()) < 80


def test_the_busy_share_is_that_of_the_time_between() -> None:
    assert CpuTime(150, 400).busy_since(CpuTime(100, 300)) == 0.5
    now = cpu_time()
    assert 0 < now.busy < now.total
    assert now.busy_since(now) == 0


@needs_extra("matplotlib")
@pytest.mark.parametrize("case", [CASE, ON_LOOPBACK])
def test_the_picture_is_a_png(case: Case, tmp_path: Path) -> None:
    from reducer_tools.demo.picture import draw

    draw(case, _runs(), tmp_path / "demo.png")
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
