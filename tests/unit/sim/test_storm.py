"""Seeded storms of faults over the real core, the real engine state and simulated links.

The storms must also notice if a rule of the protocol is missing, else they prove nothing.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.broken import OF_VIEWS, RULES
from tests.support.cluster import ROOT, environment
from tests.support.counts import draws
from tests.support.storm import Storm
from tests.support.worker_storm import WorkerStorm

ROUNDS = 100


SEEDS = draws(2, 5)  # of a test


@pytest.mark.parametrize("first", range(0, draws(SEEDS, 100), SEEDS))
def test_no_storm_breaks_a_law(first: int) -> None:
    for seed in range(first, first + SEEDS):
        storm = Storm(seed, ROUNDS)
        storm.run()
        assert storm.laws.checked >= ROUNDS, "no freed chunk was checked"


@pytest.mark.parametrize("first", range(0, draws(10, 1_000), 10))
def test_ranks_that_are_lost_break_no_law(first: int) -> None:
    shrunk = mixed = 0
    for seed in range(first, first + 10):
        storm = WorkerStorm(seed)
        storm.run()
        shrunk, mixed = shrunk + storm.shrunk, mixed + storm.mixed
    assert shrunk > 500 and mixed > 20, "hardly any sum was made without a rank"


def test_a_lane_that_was_frozen_and_then_cut_off_calls_nobody_lost() -> None:
    """In storm 859 the only lane is frozen for 2.8 s, and then does not hear rank 0 for 3 s."""
    Storm(859, ROUNDS).run()


def broken(*rule: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.support.broken", *rule],
        env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip


# They take 3 to 5 CPU seconds, the others 1.
AT_NIGHT = ("redelivery", "telling_again", "origin")


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(rule, marks=[pytest.mark.long] * (rule in AT_NIGHT))
        for rule in (*RULES, *OF_VIEWS)
    ],
)
def test_a_missing_rule_shows(rule: str) -> None:
    ended = broken(rule)
    assert ended.returncode == 1 and ended.stdout.startswith("seed"), ended


@pytest.mark.long  # 5 CPU seconds; the tests above run the same storms on the compiled core
def test_with_all_its_rules_the_same_core_stands() -> None:
    ended = broken()
    assert (ended.returncode, ended.stdout) == (0, ""), ended
