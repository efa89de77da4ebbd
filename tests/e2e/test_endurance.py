"""Resources that must not grow, and orders of submission that must not deadlock."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from typing import Any, NamedTuple

import numpy as np
import pytest

import reducer_client
from tests.soak import orders
from tests.support.allocated import allocated
from tests.support.cluster import Daemon, usage
from tests.support.counts import draws
from tests.support.ranks import Tell, join, run_ranks, start_ranks
from tests.support.wait import wait_until

MEBIBYTE = 1 << 20
# Of each rank in 800 rounds: a leak of 256 bytes or of one object of Python in each is more.
MOST_GROWTH = 200 << 10
MOST_BLOCKS = 400
LANE_NUMBERS = ("tasks", "connections", "buffers_out", "buffers_unsent", "buffer_bytes")


class Kept(NamedTuple):
    """What a rank keeps: bytes of malloc, blocks of Python, descriptors, threads (also of C++)."""

    allocated: int
    blocks: int
    descriptors: int
    threads: int


def _kept() -> Kept:
    used = usage(os.getpid())
    return Kept(allocated() or 0, sys.getallocatedblocks(), used.descriptors, used.threads)


def _many_rounds(
    rank: int, world: int, addresses: list[str], job: str, tell: Tell
) -> tuple[Kept, Kept]:
    array = np.full(MEBIBYTE // 4, rank, np.float32)
    out = np.empty_like(array)
    kept = []
    with join(rank, world, addresses, job) as group:
        for rounds in (200, 1000):
            for _ in range(rounds):
                group.all_reduce(array, out=out, key="same").wait(60)
                assert out[0] == out[-1] == sum(range(world))
            kept.append(_kept())
            tell(rounds)
            tell.hear()
    return kept[0], kept[1]


def _steady(daemon: Daemon) -> dict[int, tuple[int, int]] | None:
    """Descriptors and threads by process, if they stay the same for half a second."""
    found = []
    for pause in (0.5, 0.0):
        found.append({p: (of.descriptors, of.threads) for p, of in daemon.usages().items()})
        time.sleep(pause)
    return found[1] if found[0] == found[1] else None


def _numbers_of(daemon: Daemon) -> dict[str, Any]:
    """What the daemon keeps while a job pauses: its own counts, and the system's."""
    wait_until(lambda: daemon.lane_total("buffers_out") == 0, 10, "buffers are freed")
    stats = daemon.stats()
    used = wait_until(lambda: _steady(daemon), 30, "the connection of the last request is closed")
    lanes = [{name: lane[name] for name in LANE_NUMBERS} for lane in stats["lanes"]]
    return {"processes": used, "tasks": stats["tasks"], "lanes": lanes}


@pytest.mark.long  # 18 CPU seconds
def test_a_thousand_rounds_leak_nothing_that_is_counted() -> None:
    """Tasks, descriptors, threads and buffers of the daemon, and what ranks allocate.

    `python -m tests.soak` looks at resident memory, which also has what an allocator keeps.
    """
    with (
        Daemon(lanes=2) as daemon,
        start_ranks(4, _many_rounds, [daemon.address], "rounds", talk=True) as ranks,
    ):
        numbers = []
        daemon.stats()  # the first request starts a thread
        for rounds in (200, 1000):
            assert [ranks.receive(rank, 120) for rank in range(4)] == [rounds] * 4
            numbers.append(_numbers_of(daemon))
            for rank in range(4):
                ranks.send(rank)
        outcomes = ranks.collect(60)
    assert numbers[0] == numbers[1]
    for outcome in outcomes:
        assert outcome.error is None, outcome.trace
        before, after = outcome.value
        assert after[2:] == before[2:], outcome.rank
        assert after.allocated - before.allocated < MOST_GROWTH, outcome.rank
        assert after.blocks - before.blocks < MOST_BLOCKS, outcome.rank


def _many_keys(rank: int, world: int, addresses: list[str], job: str) -> Any:
    with join(rank, world, addresses, job) as group:
        for start in range(0, 10_000, 500):
            works = [
                group.all_reduce(np.full(10, n, np.int32), key=f"key{n}")
                for n in range(start, start + 500)
            ]
            for n, work in enumerate(works, start):
                assert work.wait(60)[0] == world * n

        def total(field: str) -> int:
            return sum(lane[field] for lane in group.stats()["reducers"])

        wait_until(lambda: total("held_bytes") == 0, 10, "results that all ranks hold are freed")
        wait_until(lambda: total("keys") == 0, 20, "idle keys are forgotten")
        return total("open_rounds"), threading.active_count()


@pytest.mark.long  # 17 s; unit tests of the core and of the engine hold the same for each side
def test_ten_thousand_keys_used_once_leave_nothing_behind(addresses: list[str]) -> None:
    assert run_ranks(2, _many_keys, addresses, "keys") == [(0, 1)] * 2


def test_ranks_may_submit_keys_in_any_order_with_the_least_room() -> None:
    """Each rank has an order of its own; the lane has room for one chunk of each rank."""
    orders.turns(draws(2, 25))


class _Logged(logging.Handler):
    """The lines of a logger."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.lines: list[str] = []
        logging.getLogger(name).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        assert record.levelno == logging.WARNING
        self.lines.append(record.getMessage())


def _block_in_conflict(
    rank: int, world: int, addresses: list[str], job: str, tell: Tell
) -> tuple[str, str, list[str]]:
    first, second = ("a", "b")[:: 1 if rank == 0 else -1]
    logged = _Logged("reducer_client")
    with join(rank, world, addresses, job) as group:
        with pytest.raises(reducer_client.RoundTimeoutError) as caught:
            group.all_reduce(np.ones(3), key=first).wait(4)
        tell("timed out")
        tell.hear()
        other = group.all_reduce(np.ones(3), key=second)
        assert other.wait(30).tolist() == [world] * 3
        group.barrier()
    return first, str(caught.value), logged.lines


def test_a_conflict_of_blocking_orders_is_reported_with_ranks_and_keys() -> None:
    with (
        Daemon("--stall-after", "1") as daemon,
        start_ranks(2, _block_in_conflict, [daemon.address], "conflict", talk=True) as ranks,
    ):
        assert [ranks.receive(rank) for rank in range(2)] == ["timed out"] * 2
        for rank in range(2):
            ranks.send(rank)
        outcomes = ranks.collect(60)
    for rank, outcome in enumerate(outcomes):
        assert outcome.error is None, outcome.trace
        key, text, lines = outcome.value
        assert f"'{key}'" in text
        assert f"rank {1 - rank}" in text, text
        assert {line for line in lines if line in text}
        assert len(lines) == len(set(lines)), "each report is logged once"
