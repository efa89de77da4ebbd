"""The fixture `measure`, and the table at the end."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.micro.measure import LINES, Measure
from reducer import compiled

compiled.check_sources()


@pytest.fixture
def measure(benchmark: BenchmarkFixture) -> Measure:
    return Measure(benchmark)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not LINES:
        return
    width = max(len(line.name) for line in LINES)
    write = terminalreporter.write_line
    write("")
    write(f"{'':<{width}} {'us/event':>10} {'min':>10} {'p99':>10} {'GB/s':>8}")
    for line in LINES:
        times = (line.median * 1e6, line.least * 1e6, line.p99 * 1e6)
        rate = f"{line.size / line.median / 1e9:>8.2f}" if line.size else ""
        write(f"{line.name:<{width}} " + " ".join(f"{time:>10.2f}" for time in times) + f" {rate}")
