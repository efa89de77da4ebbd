"""Ranks that all-reduce without a pause, as processes, while something breaks the rest."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from reducer_tools.netlab import enter
from tests.support.cluster import Usage, usage
from tests.support.groups import Values
from tests.support.ranks import Tell, join, start_ranks
from tests.support.wait import wait_until

SETTLE_SECONDS = 5.0
PATIENCE = 60.0  # for one turn: whatever is broken, nobody may hang


@dataclass(frozen=True)
class Account:
    """What one rank has seen."""

    turns: int
    wrong: int
    slowest: float
    resident: tuple[int, int]  # bytes after half of the turns, and at the end


def train(
    rank: int,
    world: int,
    addresses: list[str],
    job: str,
    count: int,
    seed: int,
    keys: int,
    namespaces: list[str],
    tell: Tell,
) -> Account:
    """Turns of some keys of `count` elements until rank 0 hears anything; rank 0 tells of each.

    Descriptors and threads must be what they were, 5 s after the end at most. With `namespaces`
    each rank goes to the network of its own.
    """
    if namespaces:
        enter(namespaces[rank])
    values = Values(seed, world, count)
    before = usage(os.getpid())
    residents = []
    with join(rank, world, addresses, job) as group:
        turn = wrong = 0
        slowest = 0.0
        stop = np.zeros(1, np.int32)
        while not stop[0]:
            began = time.monotonic()
            works = [group.all_reduce(values.of(rank, turn + i), key=f"k{i}") for i in range(keys)]
            for i, work in enumerate(works):
                result = work.wait(PATIENCE)
                wrong += result.tobytes() != values.total(turn + i).tobytes()
            if rank == 0:
                stop[0] = tell.heard()
            stop = group.broadcast(stop, key="stop").wait(PATIENCE)
            slowest = max(slowest, time.monotonic() - began)
            turn += 1
            if rank == 0:
                tell((turn, time.monotonic()))
            if turn % 100 == 0:
                residents.append(usage(os.getpid()).resident)
    _settle(before)
    middle = residents[len(residents) // 2] if residents else 0
    return Account(turn, wrong, slowest, (middle, residents[-1] if residents else 0))


def _settle(before: Usage) -> None:
    def base() -> bool:
        now = usage(os.getpid())
        return now.descriptors <= before.descriptors and now.threads <= before.threads

    wait_until(base, SETTLE_SECONDS, f"descriptors and threads are back to {before}")


class Training:
    """A context manager that kills what is left of the ranks."""

    def __init__(
        self,
        addresses: Sequence[str],
        job: str,
        *,
        world: int = 4,
        count: int = 100_003,
        seed: int = 1,
        keys: int = 2,
        namespaces: Sequence[str] = (),
    ) -> None:
        arguments = (list(addresses), job, count, seed, keys, list(namespaces))
        self.ranks = start_ranks(world, train, *arguments, talk=True)

    def turn(self) -> tuple[int, float]:
        """The number of the next turn that rank 0 has finished, and when."""
        done: tuple[int, float] = self.ranks.receive(0, 2 * PATIENCE)
        return done

    def turn_after(self, at: float) -> tuple[int, float]:
        """The first turn that began after `at`: its number, and when it was done."""
        done = 0.0
        while done < at:
            done = self.turn()[1]
        return self.turn()

    def until(self, predicate: Callable[[], object], timeout: float = 2 * PATIENCE) -> None:
        """Turns, until something is true: who does not hear of them holds rank 0 up."""
        deadline = time.monotonic() + timeout
        while not predicate():
            assert time.monotonic() < deadline, f"not within {timeout:g} s: {predicate}"
            self.turn()

    def finish(self) -> list[Account]:
        """All ranks end well; AssertionError if a turn was lost or a bit was wrong."""
        self.ranks.send(0)
        outcomes = self.ranks.collect(2 * PATIENCE)
        for outcome in outcomes:
            assert outcome.reported and outcome.error is None, outcome
        accounts: list[Account] = [outcome.value for outcome in outcomes]
        assert not any(account.wrong for account in accounts), accounts
        assert len({account.turns for account in accounts}) == 1, accounts
        return accounts

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *exception: object) -> None:
        self.ranks.__exit__(*exception)
