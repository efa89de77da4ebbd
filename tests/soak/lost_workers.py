"""B4: a worker is killed or stopped: every other rank is told who, and at which round."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from reducer_client import PeerLostError
from reducer_tools.netlab import enter
from tests.soak import Figures, Say, milliseconds
from tests.support.ranks import RunningRanks, Tell, join, start_ranks
from tests.support.reducers import Reducers

WORLD = 4
STOP_EVERY = 5  # one of so many losses is SIGSTOP


def _until_lost(
    rank: int, world: int, addresses: list[str], job: str, namespaces: list[str], tell: Tell
) -> tuple[float, int | None, int | None, str | None]:
    if namespaces:
        enter(namespaces[rank])
    with join(rank, world, addresses, job) as group:
        values = np.ones(100_000, np.float32)
        turn = 0
        try:
            while True:
                group.all_reduce(values, key="bucket").wait(60)
                turn += 1
                if turn == 10:
                    tell("works")
        except PeerLostError as error:
            return time.monotonic(), error.rank, error.round, error.key


def lose(
    addresses: list[str],
    job: str,
    victim: int,
    harm: Callable[[RunningRanks], None],
    *,
    world: int = WORLD,
    namespaces: Sequence[str] = (),
) -> list[float]:
    """Seconds until each survivor had its error; AssertionError unless it names the victim."""
    with start_ranks(world, _until_lost, addresses, job, list(namespaces), talk=True) as ranks:
        for rank in range(world):
            ranks.receive(rank, 60)
        at = time.monotonic()
        harm(ranks)
        took = []
        for rank in set(range(world)) - {victim}:
            outcome = ranks.collect_one(rank, 60)
            assert outcome.error is None, outcome.trace
            when, lost, round_, key = outcome.value
            assert (lost, key) == (victim, "bucket") and round_ is not None, outcome
            took.append(when - at)
    return took


def run(count: int, seed: int, say: Say) -> Figures:
    """`count` jobs that lose a worker."""
    rng = random.Random(seed)
    took: dict[Any, list[float]] = {signal.SIGKILL: [], signal.SIGSTOP: []}
    with Reducers(3, "--log-level", "error") as reducers:
        for number in range(count):
            stop = number % STOP_EVERY == STOP_EVERY - 1
            kind = signal.SIGSTOP if stop else signal.SIGKILL
            victim = rng.randrange(WORLD)
            harm = partial(RunningRanks.kill, rank=victim, signum=kind)
            seconds = lose(reducers.addresses, f"lost{number}", victim, harm)
            took[kind] += seconds
            say(f"{number + 1} of {count}: rank {victim}, {kind.name}, {max(seconds):.2f} s")
    return {
        "kill -9 to the error": milliseconds(took[signal.SIGKILL]),
        "SIGSTOP to the error": milliseconds(took[signal.SIGSTOP]),
        "survivors without rank and round": "0",
    }
