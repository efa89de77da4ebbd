"""The figures of `bench.ps throughput` and of `bench.ps failover`."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator

import pytest

from bench.fleet import FleetError
from bench.pairs import in_turns
from bench.ps.cluster import SilenceError, Worker
from bench.ps.kills import Kill, Silence, format_kills, percentile
from bench.ps.rates import (
    BACKUP,
    HEADER,
    OURS,
    PS_LITE,
    PS_LITE_COPY,
    Turn,
    format_table,
    ratio,
    verdict,
)
from bench.ps.throughput import _counts


def turns(case: str, side: str, *milliseconds: float) -> list[Turn]:
    return [Turn(case, side, [[ms / 1e3]], 128 << 20, 0.5, 0.25) for ms in milliseconds]


def test_the_time_of_a_turn_is_that_of_the_slowest_worker() -> None:
    assert Turn("2/1", OURS, [[1, 2, 9], [3, 4, 2]], 8, 0.5, 0.25).seconds == 4


def test_a_ratio_has_the_medians_of_one_case() -> None:
    some = turns("1/1", OURS, 100, 120, 900) + turns("1/1", PS_LITE, 10, 150, 180)
    some += turns("2/1", OURS, 1) + turns("1/1", BACKUP, 600)
    assert ratio(some, "1/1", OURS) == pytest.approx(150 / 120)
    assert ratio(some, "1/1", BACKUP) == pytest.approx(150 / 600)
    assert ratio(some, "2/1", OURS) is None


def test_a_row_has_the_medians_and_the_verdict() -> None:
    sides = turns("2/1", PS_LITE, 220) + turns("2/1", OURS, 190, 200, 250)
    header, ours, theirs = format_table(sides)
    assert header.split()[:2] == ["workers/servers", "side"] and HEADER[-1] in header
    assert ours.split() == [
        *("2/1", "ours", "200", "190", "250", "0.67", "0.50", "0.25", "1.10", "1x:", "met"),
    ]
    assert theirs.split()[:3] == ["2/1", "ps-lite", "220"] and theirs.endswith(" 1.00")


@pytest.mark.parametrize(
    ("side", "times", "said"),
    [
        (OURS, 1.3, "1.2x: reached"),
        (OURS, 1.1, "1x: met"),
        (OURS, 0.9, "1x: MISSED"),
        (BACKUP, 0.7, "0.6x: met"),
        (BACKUP, 0.5, "0.6x: MISSED"),
        (PS_LITE_COPY, 0.5, ""),
        (OURS, None, ""),
    ],
)
def test_a_bar_is_met_or_missed(side: str, times: float | None, said: str) -> None:
    assert verdict(side, times) == said


def test_the_sides_take_turns() -> None:
    order = [(turn, name) for turn, name, _ in in_turns({OURS: 1, PS_LITE: 2}, 2)]
    assert order == [(0, OURS), (0, PS_LITE), (1, PS_LITE), (1, OURS)]


def test_cases_are_counts_of_workers_and_servers() -> None:
    assert _counts("1/1,2/1") == [(1, 1), (2, 1)]
    for text in ("2", "2/0", "a/1", "1/1,"):
        with pytest.raises(argparse.ArgumentTypeError, match="expected workers/servers"):
            _counts(text)


def test_percentiles_are_values_that_were_seen() -> None:
    values = [float(value) for value in range(200)]
    assert percentile(values, 0.99) == 198
    assert percentile([3.0], 0.99) == 3


def test_the_bar_of_kills_is_about_the_next_receipt() -> None:
    quick = [Kill(0.2, 0.9, 0.1)] * 20
    assert format_kills(quick)[-1] == "20 kills; p50 300 ms and p99 1000 ms: met"
    assert format_kills(quick)[1].split()[-3:] == ["200", "200", "200"]
    assert format_kills([*quick, Kill(1.5, 1.5, 0.1)])[-1].endswith("MISSED")
    assert format_kills([Kill(0.4, 0.4, 0.1)])[-1].endswith("MISSED")


def test_a_worker_hangs_ends_or_goes_on() -> None:
    start = "ps-lite: the worker ended 1 pushes after the kill; it "
    for last, code, end in (
        (0.5, None, "hangs: not one in the last 9.5 s"),
        (9.8, None, "goes on"),
        (0.5, -6, "ended with code -6 after 10.0 s"),
    ):
        assert str(Silence("ps-lite", 1, last, 10.0, code)) == start + end


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    """Prints a line, and ends with 3 when it gets "on"."""
    program = "import sys; print('{\"a\": 1}', flush=True); sys.exit(len(sys.stdin.readline()))"
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe) as started:
        yield started
        started.kill()  # the thread that reads its lines ends with it


def test_a_silent_worker_is_not_one_that_has_ended(process: subprocess.Popen[str]) -> None:
    worker = Worker(process)
    assert worker.take(60) == {"a": 1}
    with pytest.raises(SilenceError, match=r"no line for 0\.01 s"):
        worker.take(0.01)
    worker.order("on")
    with pytest.raises(FleetError, match="ended with code 3"):
        worker.take(60)
