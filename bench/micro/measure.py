"""Measures the time of an event, and GB/s if an event has bytes.

An event is the unit of the benchmark: one fold, one header, one contribution.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pytest_benchmark.fixture import BenchmarkFixture


@dataclass(frozen=True)
class Line:
    """One benchmark; times in seconds for one event, ``size`` in bytes of one event."""

    name: str
    median: float
    least: float
    p99: float
    size: int


LINES: list[Line] = []


class Measure:
    """The pytest-benchmark fixture, with the number of events per call."""

    def __init__(self, benchmark: BenchmarkFixture) -> None:
        self._benchmark = benchmark

    def __call__(self, action: Callable[[], Any], *, events: int = 1, size: int = 0) -> Any:
        """Time ``action``, which may run any number of times; ``size`` is bytes per event."""
        result = self._benchmark(action)
        self._note(events, size)
        return result

    def each(
        self,
        action: Callable[..., Any],
        *,
        rounds: int,
        setup: Callable[[], Any] | None = None,
        events: int = 1,
        size: int = 0,
    ) -> None:
        """Time each call alone; ``setup`` returns its arguments as (args, kwargs)."""
        self._benchmark.pedantic(  # type: ignore[no-untyped-call]
            action, setup=setup, rounds=rounds, warmup_rounds=rounds // 10
        )
        self._note(events, size)

    def _note(self, events: int, size: int) -> None:
        stats = self._benchmark.stats
        if stats is None:  # --benchmark-disable: everything ran once, nothing was timed
            return
        times = stats.stats.sorted_data
        p99 = times[min(len(times) - 1, len(times) * 99 // 100)]
        median = stats.stats.median
        name = self._benchmark.name.removeprefix("test_")
        LINES.append(Line(name, median / events, times[0] / events, p99 / events, size))
