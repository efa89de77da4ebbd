"""Resources that must not grow, and orders of submission that must not deadlock."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

import numpy as np
import pytest

import reducer_client
from tests.soak import orders
from tests.support.cluster import Daemon, Usage, usage
from tests.support.counts import draws
from tests.support.ranks import Tell, join, run_ranks, start_ranks
from tests.support.wait import wait_until

MEBIBYTE = 1 << 20


def _many_rounds(
    rank: int, world: int, addresses: list[str], job: str, tell: Tell
) -> tuple[Usage, Usage]:
    array = np.full(MEBIBYTE // 4, rank, np.float32)
    out = np.empty_like(array)
    usages = []
    with join(rank, world, addresses, job) as group:
        for rounds in (200, 1000):
            for _ in range(rounds):
                group.all_reduce(array, out=out, key="same").wait(60)
                assert out[0] == out[-1] == sum(range(world))
            usages.append(usage(os.getpid()))
            tell(rounds)
            tell.hear()
    return usages[0], usages[1]


def _tasks(daemon: Daemon) -> list[int]:
    """The asyncio tasks of the main process and of each lane."""
    stats = daemon.stats()
    return [stats["tasks"], *(lane["tasks"] for lane in stats["lanes"])]


@pytest.mark.long  # 18 CPU seconds
def test_a_thousand_rounds_leak_nothing() -> None:
    """Memory, descriptors, threads and tasks of every rank, the daemon and each of its lanes."""
    with (
        Daemon(lanes=2) as daemon,
        start_ranks(4, _many_rounds, [daemon.address], "rounds", talk=True) as ranks,
    ):
        usages, tasks = [], []
        daemon.stats()  # the first request starts a thread
        for rounds in (200, 1000):
            assert [ranks.receive(rank, 120) for rank in range(4)] == [rounds] * 4
            usages.append(daemon.usages())
            tasks.append(_tasks(daemon))
            for rank in range(4):
                ranks.send(rank)
        outcomes = ranks.collect(60)
    assert tasks[0] == tasks[1]
    for pid, before in usages[0].items():
        who = "the main process" if pid == daemon.pid else "a lane"
        _assert_no_growth(before, usages[1][pid], who)
    for outcome in outcomes:
        assert outcome.error is None, outcome.trace
        _assert_no_growth(*outcome.value, f"rank {outcome.rank}")


def _assert_no_growth(before: Usage, after: Usage, who: str) -> None:
    # Half of one leaked array in each of the 800 rounds: more than any allocator keeps.
    assert after.resident - before.resident < 400 * MEBIBYTE, who
    assert (after.descriptors, after.threads) == (before.descriptors, before.threads), who


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


def test_ten_thousand_keys_used_once_leave_nothing_behind(addresses: list[str]) -> None:
    assert run_ranks(2, _many_keys, addresses, "keys") == [(0, 1)] * 2


def test_ranks_may_submit_keys_in_any_order_with_the_least_room() -> None:
    """Each rank has an order of its own; the lane has room for one chunk of each rank."""
    orders.turns(draws(4, 25))


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
