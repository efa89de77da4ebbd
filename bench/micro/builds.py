"""Compares two builds of the native kernels in one process: `pytest bench/micro --beside FILE`.

A call of one build follows a call of the other, and the first of both changes from pair to pair, so
that other programs of the machine disturb both builds alike.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

PAIRS = 100
_BLOCK_NS = 300_000  # time of the calls that are measured together


@dataclass(frozen=True)
class Pair:
    """One benchmark; times in seconds for one event."""

    name: str
    ours: float
    beside: float
    ratio: (
        float  # time of our build divided by the time of the build beside it, median of the pairs
    )


ROWS: list[Pair] = []


class Builds:
    """Our build of the kernels and another one. All calls go to `used`."""

    def __init__(self, ours: Any, path: str) -> None:
        spec = importlib.util.spec_from_file_location("reducer.kernels._native", path)
        assert spec is not None and spec.loader is not None, path
        beside = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(beside)
        self.both = (ours, beside)
        self.used = ours

    def __getattr__(self, name: str) -> Any:
        return getattr(self.used, name)


class MeasurePairs:
    """As `Measure`, for both builds."""

    def __init__(self, name: str, builds: Builds) -> None:
        self._name = name
        self._builds = builds

    def __call__(self, action: Callable[[], Any], *, events: int = 1, size: int = 0) -> Any:
        first, result = [self._run(build, action) for build in range(2)]
        assert first == result, "the builds differ"
        calls = max(1, int(_BLOCK_NS / min(self._time(0, action, 1) for _ in range(3))))
        times: tuple[list[float], list[float]] = ([], [])
        for turn in range(PAIRS):
            for build in (0, 1) if turn % 2 else (1, 0):
                times[build].append(self._time(build, action, calls))
        ratio = median(a / b for a, b in zip(*times, strict=True))
        ours, beside = (min(found) / 1e9 / events for found in times)
        ROWS.append(Pair(self._name, ours, beside, ratio))
        return result

    def _run(self, build: int, action: Callable[[], Any]) -> Any:
        self._builds.used = self._builds.both[build]
        return action()

    def _time(self, build: int, action: Callable[[], Any], calls: int) -> float:
        """Nanoseconds of one call."""
        self._builds.used = self._builds.both[build]
        began = time.perf_counter_ns()
        for _ in range(calls):
            action()
        return (time.perf_counter_ns() - began) / calls
