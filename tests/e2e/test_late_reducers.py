"""Jobs that start while some of their reducers are down."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from reducer_client import ReducerError
from tests.support.cluster import Daemon
from tests.support.ports import free_ports
from tests.support.ranks import Tell, join, run_ranks, start_ranks

WORLD = 3
COUNT = 100_000


def _work(rank: int, world: int, addresses: list[str], job: str, tell: Tell) -> dict[str, Any]:
    """Sums until all reducers take part. Rank 1 lists the reducers in reverse order."""
    listed = addresses[::-1] if rank == 1 else addresses
    with join(rank, world, listed, job) as group:
        tell("joined")
        array = np.arange(COUNT, dtype=np.float32)
        turns = 0
        while True:
            assert np.array_equal(group.all_reduce(array).wait(30), array * world)
            turns += 1
            heard = np.array([rank == 0 and tell.heard()])
            if group.broadcast(heard, 0, key="stop").wait(30)[0]:
                break
            if rank == 0 and turns % 20 == 0:
                took = [lane["reducer"] for lane in group.stats()["reducers"]]
                tell(sorted(set(took)))
        return {"turns": turns}


def test_a_job_starts_without_absent_reducers_and_takes_them_in(job: str) -> None:
    """The first and the last address are down, so rank 1 cannot know their slots."""
    ports = free_ports(3)
    addresses = [f"127.0.0.1:{port}" for port in ports]
    with (
        Daemon("--port", str(ports[1])),
        start_ranks(WORLD, _work, addresses, job, talk=True) as ranks,
    ):
        for rank in range(WORLD):
            assert ranks.receive(rank, 40) == "joined"
        with Daemon("--port", str(ports[0])) as first, Daemon("--port", str(ports[2])) as last:
            for _ in range(10_000):
                if ranks.receive(0, 40) == sorted(addresses) and _sums(first) and _sums(last):
                    break
            ranks.send(0)
            outcomes = ranks.collect()
    assert all(outcome.error is None and outcome.reported for outcome in outcomes), outcomes


def _sums(daemon: Daemon) -> bool:
    jobs = [job for lane in daemon.stats()["lanes"] for job in lane["core"]["jobs"].values()]
    return any(job["contributions"] for job in jobs)


def _refused(rank: int, world: int, addresses: list[str], job: str) -> str:
    with pytest.raises(ReducerError) as caught:  # of this rank, or as told by the other one
        join(rank, world, addresses, job, connect_timeout=7, min_reducers=2)
    return str(caught.value)


def test_min_reducers_keeps_a_job_from_starting_with_fewer(job: str) -> None:
    absent = f"127.0.0.1:{free_ports(1)[0]}"
    with Daemon() as daemon:
        for text in run_ranks(2, _refused, [daemon.address, absent], job):
            assert absent in text
