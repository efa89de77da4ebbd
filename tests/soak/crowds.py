"""B14: thousands of strangers at the port: how much slower a job runs, how long a join takes.

They share the machine with their victim, so the loss is measured against the same strangers at a
port that does nothing.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tests.soak import Figures, Say, milliseconds
from tests.soak.training import Training
from tests.support.cluster import ROOT, Daemon, environment
from tests.support.groups import Groups

_PROGRAM = [sys.executable, "-m", "tests.soak.attack"]
_JOINS = 5
MOST_LOSS = 0.05  # of the turns a second
MOST_JOIN = 1.0  # seconds
Rates = dict[str, float]


class Cost(NamedTuple):
    """What the strangers cost the others: a share of the turns, and the slowest join."""

    loss: float
    join: float
    figures: Figures


@contextmanager
def program(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*_PROGRAM, *arguments],
        env=environment(), cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    with process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def crowd(port: int, slow: int, garbage: float, rates: Rates) -> Iterator[None]:
    """Strangers at the port while the block runs; then what they did, by second, in `rates`."""
    with program(str(port), "--slow", str(slow), "--garbage", str(garbage)) as process:
        yield
        said, _ = process.communicate("", timeout=30)
        rates.update(json.loads(said))


def turns_in(training: Training, seconds: float) -> float:
    """Turns a second, from now on."""
    began = training.turn_after(time.monotonic())
    last = began
    while last[1] - began[1] < seconds:
        last = training.turn()
    return (last[0] - began[0]) / (last[1] - began[1])


def joins(address: str, name: str) -> list[float]:
    """Seconds that a job of one rank takes to join and leave."""
    took = []
    for number in range(_JOINS):
        began = time.monotonic()
        with Groups(1, [address], f"{name}{number}"):
            took.append(time.monotonic() - began)
    return took


def measure(slow: int, garbage: float, seconds: float, repeats: int, say: Say) -> Cost:
    calm, attacked, waits = [], [], []
    rates: Rates = {}
    with (
        Daemon("--log-level", "error", lanes=2) as daemon,
        program("--sink") as sink,
        Training([daemon.address], "victim", world=2) as training,
    ):
        assert sink.stdout is not None
        nowhere = int(sink.stdout.readline())
        for repeat in range(repeats):
            with crowd(nowhere, slow, garbage, {}):
                turns_in(training, seconds / 2)
                calm.append(turns_in(training, seconds))
            with crowd(daemon.port, slow, garbage, rates):
                turns_in(training, seconds / 2)
                attacked.append(turns_in(training, seconds))
                waits += joins(daemon.address, f"joins{repeat}-")
            say(f"{calm[-1]:.0f} turns/s, attacked {attacked[-1]:.0f}, join {max(waits):.2f} s")
        training.finish()
        refused = daemon.stats()["refused"]
        assert refused["garbage"] and sum(refused.values()) > refused["garbage"], refused
    loss = statistics.median(
        1 - after / before for before, after in zip(calm, attacked, strict=True)
    )
    figures = {
        "strangers a second": ", ".join(f"{what} {rate:,.0f}" for what, rate in rates.items()),
        "turns a second": f"{statistics.median(calm):.0f}, attacked "
        f"{statistics.median(attacked):.0f}; by pairs {loss:.1%} less",
        "join": milliseconds(waits),
    }
    return Cost(loss, max(waits), figures)


def run(count: int, seed: int, say: Say) -> Figures:
    """`count` slow connections, and a fifth as many with garbage a second."""
    cost = measure(count, count / 5, 5.0, 7, say)
    assert cost.loss <= MOST_LOSS, cost
    assert cost.join <= MOST_JOIN, cost
    return cost.figures
