"""A lane reports run by run, and the main process puts the report together."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import repeat
from typing import Any

import pytest

from reducer.core.surface.numbers import Part, RunPart
from reducer.server import serve_options
from reducer.server.daemon.lanes import LaneHandle
from reducer.server.lane import process as lane_module
from reducer.server.lane.process import LaneProcess
from reducer.server.pipe.reports import line_of
from reducer.server.pipe.snapshot import LaneReport
from tests.support.scripted import join_all
from tests.support.simlane import SimLane
from tests.unit.server.lane.test_lane_ticks import a_lane

RUNS = 20
Play = Callable[[LaneProcess, list[bytes]], Awaitable[None]]


class Core:
    """A lane's core whose reports are `parts`."""

    def __init__(self, lane: SimLane, parts: Callable[[float], Iterator[Any]]) -> None:
        self.snapshot = lane.core.snapshot
        self.parts = parts


def many_runs() -> SimLane:
    lane = SimLane(budget=1 << 40)
    for number in range(RUNS):
        join_all(lane, 2, job=f"job-{number}")
    return lane


def play(monkeypatch: pytest.MonkeyPatch, core: Any, act: Play) -> LaneProcess:
    """Let a lane serve while `act` runs, which gets the lines that the lane answers.

    A report uses up its share of time with each part. No task may be left at the end.
    """
    monkeypatch.setattr(lane_module, "SHARED_SECONDS", 0.0)

    async def run(process: LaneProcess) -> None:
        served = asyncio.create_task(process.run())
        while process._cycles is None:
            await asyncio.sleep(0)
        process._lane = core
        lines: list[bytes] = []
        monkeypatch.setattr(process._answers, "writelines", lines.extend)
        await act(process, lines)
        process._finished.set()
        await served
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with a_lane(monkeypatch) as process:
        asyncio.run(run(process))
    return process


async def report(process: LaneProcess) -> int:
    """Wait for the current report; returns the number of passes of the loop."""
    assert process._report is not None
    turns = 0
    async with asyncio.timeout(10):
        while not process._report.done():
            await asyncio.sleep(0)
            turns += 1
    return turns


def snapshots(lines: list[bytes]) -> int:
    return sum("snapshot" in json.loads(line) for line in lines)


def test_the_loop_goes_on_between_the_runs_of_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: 255 groups of 60 ranks, all late and with NaN, blocked a lane for 80 ms."""

    async def act(process: LaneProcess, lines: list[bytes]) -> None:
        process._maybe_report()
        assert await report(process) >= RUNS
        assert [list(json.loads(line)) for line in lines] == [["part"]] * RUNS + [["snapshot"]]

    play(monkeypatch, many_runs().core, act)


@pytest.mark.parametrize("share", [0.0, 1.0], ids=["between the parts", "after the last one"])
def test_reports_take_a_fifth_of_a_lane_at_most(
    monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    """Regression: requests for pages in a loop, with 250 runs or 4,000 ranks, tripled another job's
    p99."""
    worked = 0.0

    def long_parts(now: float) -> Iterator[Any]:
        nonlocal worked
        for number in range(2):
            began = time.thread_time()
            while time.thread_time() < began + 0.01:
                pass
            worked += time.thread_time() - began
            yield {"number": number}

    async def act(process: LaneProcess, lines: list[bytes]) -> None:
        monkeypatch.setattr(lane_module, "SHARED_SECONDS", share)
        began = time.monotonic()
        for _ in range(2):
            process._maybe_report()
            await report(process)
        assert time.monotonic() - began > 5 * worked / 2

    play(monkeypatch, Core(many_runs(), long_parts), act)


def test_who_asks_during_a_report_shares_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(process: LaneProcess, lines: list[bytes]) -> None:
        process._maybe_report()
        await asyncio.sleep(0)
        process._maybe_report()
        await report(process)
        assert snapshots(lines) == 1
        process._maybe_report()
        await report(process)
        assert snapshots(lines) == 2

    play(monkeypatch, many_runs().core, act)


def test_a_report_that_is_lost_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the loop had no memory for the task, and /metrics stayed 503."""

    async def never(process: LaneProcess) -> None:
        await asyncio.Event().wait()

    async def act(process: LaneProcess, lines: list[bytes]) -> None:
        with monkeypatch.context() as lost:
            lost.setattr(LaneProcess, "_tell", never)
            process._maybe_report()
            await asyncio.sleep(0)
        process._maybe_report()
        assert process._report is not None and not process._report.done()
        process._report_until = 0.0
        process._maybe_report()
        await report(process)
        assert snapshots(lines) == 1

    play(monkeypatch, many_runs().core, act)


def test_a_report_that_fails_is_counted_and_the_next_one_is_made(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lane = many_runs()
    bugs = [ValueError("injected")]

    def parts(now: float) -> Iterator[Any]:
        for part in lane.core.parts(now):
            yield part
            if bugs:
                raise bugs.pop()

    async def act(process: LaneProcess, lines: list[bytes]) -> None:
        with caplog.at_level(logging.ERROR):
            process._maybe_report()
            await report(process)
        assert not lines and "a report has failed" in caplog.text and "injected" in caplog.text
        process._maybe_report()
        await report(process)
        assert len(lines) == RUNS + 1

    process = play(monkeypatch, Core(lane, parts), act)
    assert process._shell.counters.internal_errors == 1


def test_a_lane_that_ends_leaves_no_report_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(process: LaneProcess, lines: list[bytes]) -> None:
        process._maybe_report()
        await asyncio.sleep(0)

    process = play(monkeypatch, Core(SimLane(), lambda now: repeat({})), act)
    assert process._report is not None and process._report.cancelled()
    assert process._shell.counters.internal_errors == 0


def running(parts: Iterable[Part]) -> list[str]:
    """The jobs of the parts that are about runs under way."""
    return [part.run.job for part in parts if isinstance(part, RunPart)]


def told(found: object) -> dict[str, Any]:
    """The object as the main process reads it from a lane's line."""
    (read,) = json.loads(line_of(found=found)).values()
    assert isinstance(read, dict)
    return read


def test_runs_may_end_and_begin_during_a_report() -> None:
    lane = SimLane()
    first, second, third = (join_all(lane, 1, job=job)[0] for job in ("a", "b", "c"))
    parts = lane.core.parts(lane.now)
    found = running([next(parts)])
    first.bye()
    second.bye()
    join_all(lane, 1, job="d")
    found += running(parts)
    assert found == ["a", "c"]
    third.bye()
    assert running(lane.core.parts(lane.now)) == ["d"]


def test_no_part_of_a_report_is_in_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise runs would count twice, also the runs of a lane that died during its report."""
    lane = many_runs()
    parts = list(map(told, lane.core.parts(lane.now)))
    numbers = lane.lane_report().numbers
    heard: list[LaneReport] = []

    class Child:
        def __init__(
            self, number: int, hear: Callable[[dict[str, Any]], None], core: int | None
        ) -> None:
            self._hear = hear

        async def start(self, options: serve_options.Config, key: bytes) -> None:
            self._hear({"part": copy.deepcopy(parts[0])})

        async def end(self) -> str:
            return "status 1"

    async def run() -> None:
        handle = LaneHandle(serve_options.Config(), 0, b"", 10)
        monkeypatch.setattr("reducer.server.daemon.lanes.LaneChild", Child)
        monkeypatch.setattr(handle, "_answered", lambda question, found: heard.append(found))
        await handle._live()
        for _ in range(2):
            for part in parts:
                handle._hear({"part": copy.deepcopy(part)})
            handle._hear({"snapshot": told(numbers)})

    asyncio.run(run())
    assert len(heard) == 2
    for found in heard:
        assert len(found.runs) == RUNS
        assert {job.world_size for job in found.jobs.values()} == {2}
