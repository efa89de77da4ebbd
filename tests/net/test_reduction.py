"""Sums through real daemons, checked bit for bit against numpy in rank order."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pytest

from reducer.wire.codes import MessageKind
from tests.support.cluster import Daemon
from tests.support.wait import wait_until
from tests.support.worker import Link, Worker

T = TypeVar("T")
Array = npt.NDArray[np.float32]


def in_parallel(workers: list[Worker], call: Callable[[Worker], T]) -> list[T]:
    """Run ``call`` for every rank in a thread of its own; results in rank order."""
    with ThreadPoolExecutor(len(workers)) as pool:
        return [future.result(60) for future in [pool.submit(call, w) for w in workers]]


def sums(workers: list[Worker], name: str, round_: int, parts: list[Array]) -> set[bytes]:
    """The different results that the ranks got."""
    return set(in_parallel(workers, lambda w: w.all_reduce(name, round_, parts[w.rank])))


def inputs(world: int, size: int, seed: int) -> list[Array]:
    random = np.random.default_rng(seed)
    return [random.standard_normal(size, dtype=np.float32) for _ in range(world)]


def rank_order_sum(parts: list[Array]) -> bytes:
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total.tobytes()


@pytest.fixture(scope="module", params=[1, 2], ids=["1lane", "2lanes"])
def daemon(request: pytest.FixtureRequest) -> Iterator[Daemon]:
    with Daemon(lanes=request.param) as running:
        yield running


def joined(stack: ExitStack, daemon: Daemon, job: str, world: int) -> list[Worker]:
    workers = [stack.enter_context(Worker(daemon.port, job, r, world)) for r in range(world)]
    in_parallel(workers, Worker.join)
    return workers


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("size", [0, 1, 1_000, 100_003, 1_300_000])
def test_sum_is_rank_ordered_bit_for_bit(daemon: Daemon, world: int, size: int) -> None:
    parts = inputs(world, size, seed=size + world)
    with ExitStack() as stack:
        workers = joined(stack, daemon, f"sum-{world}-{size}", world)
        for round_ in range(3):
            assert sums(workers, "k", round_, parts) == {rank_order_sum(parts)}
        for worker in workers:
            worker.bye()


def test_jobs_do_not_mix(daemon: Daemon) -> None:
    with ExitStack() as stack:
        jobs = [joined(stack, daemon, f"job-{number}", 2) for number in range(3)]
        for number, workers in enumerate(jobs):
            parts = inputs(2, 50_000, seed=number)
            assert sums(workers, "same", 0, parts) == {rank_order_sum(parts)}


def test_every_buffer_comes_back(daemon: Daemon) -> None:
    parts = inputs(2, 500_000, seed=5)
    with ExitStack() as stack:
        workers = joined(stack, daemon, "buffers", 2)
        for round_ in range(5):
            sums(workers, "k", round_, parts)
        for worker in workers:
            worker.heartbeat()
        wait_until(lambda: daemon.lane_total("buffers_out") == 0, 10, "no buffer is out")
        job = next(iter(daemon.stats()["lanes"][0]["core"]["jobs"].items()))
        assert job[1]["rounds"] >= 1, json.dumps(job)


def test_a_lost_worker_is_named_to_the_other(daemon: Daemon) -> None:
    with ExitStack() as stack:
        first, second = joined(stack, daemon, "lost", 2)
        second.close()
        first.contribute("k", 0, inputs(1, 10, 0)[0])
        ((rank, why),) = first.wait_for_absence().absent
        assert rank == 1  # the close sends RST if bytes from the lane were unread
        assert why == "the worker closed the connection" or "reset by peer" in why
    wait_until(lambda: daemon.lane_total("buffers_out") == 0, 10, "no buffer is out")


@pytest.fixture(autouse=True, scope="module")
def leaves_nothing(daemon: Daemon) -> Iterator[None]:
    yield
    wait_until(lambda: daemon.lane_total("connections") == 0, 10, "all connections are gone")
    wait_until(lambda: daemon.lane_total("buffers_out") == 0, 10, "all buffers are back")
    assert daemon.lane_total("internal_errors") == 0


def test_a_waiting_worker_hears_heartbeats(daemon: Daemon) -> None:
    """Ranks may start far apart, so an idle lane must not seem dead."""
    with Worker(daemon.port, "waiting", 0, 2) as worker:
        lanes = worker.start()
        heard: set[Link] = set()

        def all_beat() -> bool:
            for link, frame in worker.poll(1.0):
                if frame.header.kind == MessageKind.HEARTBEAT:
                    heard.add(link)
            return len(heard) == lanes

        wait_until(all_beat, 5, "a heartbeat of every lane")
