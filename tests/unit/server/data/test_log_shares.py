"""Each job's share of the log of a lane."""

from __future__ import annotations

import logging

import pytest

from reducer.core.surface import events
from reducer.kernels import load
from reducer.server.data import log_shares
from reducer.server.data.buffers import BufferPool
from reducer.server.data.executor import Executor, ShellCounters
from reducer.server.data.log_shares import BURST, LogShares


def admitted(shares: LogShares, job: str, times: int, now: float, characters: int = 50) -> int:
    found = [shares.admit({"job": job}, characters, now) for _ in range(times)]
    return sum(held is not None for held in found)


def test_a_job_that_writes_too_much_hides_no_line_of_another() -> None:
    shares = LogShares()
    assert admitted(shares, "loud", 10_000, 100.0) == BURST
    assert admitted(shares, "calm", 3, 100.0) == 3
    assert admitted(shares, "loud", 100, 101.0) == 4
    assert shares.admit({"job": "loud"}, 50, 102.0) == 96
    assert shares.admit({}, 50, 102.0) == 0


def test_a_long_line_counts_as_several() -> None:
    """The text of an ERROR, up to 4,000 characters, comes from the worker."""
    assert admitted(LogShares(), "loud", 1_000, 100.0, 4_000) == -(-BURST // 16)


def test_many_names_share_what_the_lane_may_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_shares, "_MAX_JOBS", 10)
    shares = LogShares()
    assert sum(admitted(shares, f"job-{n}", 100, 100.0) for n in range(100)) in (1_999, 2_000)
    assert shares.admit({"job": "job-99"}, 50, 200.0) == 100


@pytest.mark.parametrize("level", [logging.INFO, logging.WARNING, logging.ERROR])
def test_lines_of_every_level_are_counted(level: int, caplog: pytest.LogCaptureFixture) -> None:
    """Regression: a job that joined, sent an ERROR and rejoined wrote 25 MB in 7 s."""
    counters = ShellCounters()
    executor = Executor(load(), BufferPool(0), {}, counters)
    with caplog.at_level(logging.INFO, "reducer.lane"):
        for _ in range(BURST + 1_000):
            executor.run([events.Log(1, level, "job 'a': failed", {"job": "a"})])
        executor.run([events.Log(2, level, "of another", {"job": "b"})])
    assert BURST < len(caplog.messages) < BURST + 500
    assert caplog.messages[-1] == "of another"
    assert counters.held_log_lines == BURST + 1_001 - len(caplog.messages)
