"""The fixtures `measure` and `kernels`, and the table at the end."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.micro.builds import ROWS, Builds, MeasurePairs
from bench.micro.measure import LINES, Measure
from reducer import compiled
from reducer.kernels import KernelSet, load

compiled.check_sources()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--beside", metavar="FILE", help="another build of reducer.kernels._native")


@pytest.fixture(scope="session")
def kernels(request: pytest.FixtureRequest) -> KernelSet | Builds:
    beside = request.config.getoption("--beside")
    return Builds(load("native"), beside) if beside else load("native")


@pytest.fixture
def measure(request: pytest.FixtureRequest) -> Measure | MeasurePairs:
    if "kernels" in request.fixturenames:
        kernels = request.getfixturevalue("kernels")
        if isinstance(kernels, Builds):
            return MeasurePairs(request.node.name.removeprefix("test_"), kernels)
    benchmark: BenchmarkFixture = request.getfixturevalue("benchmark")
    return Measure(benchmark)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    write = terminalreporter.write_line
    if LINES:
        width = max(len(line.name) for line in LINES)
        write("")
        write(f"{'':<{width}} {'us/event':>10} {'min':>10} {'p99':>10} {'GB/s':>8}")
        for line in LINES:
            times = (line.median * 1e6, line.least * 1e6, line.p99 * 1e6)
            rate = f"{line.size / line.median / 1e9:>8.2f}" if line.size else ""
            shown = " ".join(f"{time:>10.2f}" for time in times)
            write(f"{line.name:<{width}} {shown} {rate}")
    if ROWS:
        width = max(len(row.name) for row in ROWS)
        write("")
        write(f"{'least us/event':<{width}} {'ours':>10} {'beside':>10} {'ours/beside':>12}")
        for row in ROWS:
            both = f"{row.ours * 1e6:>10.2f} {row.beside * 1e6:>10.2f}"
            write(f"{row.name:<{width}} {both} {row.ratio:>12.2f}")
