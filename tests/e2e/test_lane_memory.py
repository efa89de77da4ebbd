"""One real lane with many workers stays within its memory budget."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

import reducer_client
from tests.support.cluster import Daemon
from tests.support.weighed import Weighed

MEBIBYTE = 1 << 20
WORKERS = 32
KEYS = 4
TURNS = 3
# The run gets this quarter of the lane's memory. Of each of its 34 shares (PROTOCOL.md, section 7)
# 256 KiB are the grant and 700 KiB the credit. A round brings twice the share, a turn eight times.
MEMORY = 32 * MEBIBYTE
CHUNK = 128 << 10
COUNT = 2 * MEBIBYTE // 4


def _work(rank: int, address: str) -> None:
    """Each rank submits the keys in its own order, so that contributions wait for each other."""
    order = np.random.default_rng(rank)
    array = np.full(COUNT, rank, np.float32)
    targets = [np.empty_like(array) for _ in range(KEYS)]
    with reducer_client.connect(
        [address], job="memory", rank=rank, world_size=WORKERS, chunk_table=[(0, CHUNK)]
    ) as group:
        for _ in range(TURNS):
            works = [
                group.all_reduce(array, key=f"key{key}", out=targets[key])
                for key in order.permutation(KEYS)
            ]
            for work in works:
                result = work.wait(60)
                assert result[0] == result[-1] == sum(range(WORKERS))


def test_the_buffers_of_a_lane_with_32_workers_stay_within_its_budget() -> None:
    with (
        Daemon("--memory", str(4 * MEMORY)) as daemon,
        Weighed(daemon) as held,
        ThreadPoolExecutor(WORKERS) as threads,
    ):
        list(threads.map(_work, range(WORKERS), [daemon.address] * WORKERS))
    assert held.most > 0.2 * MEMORY, "the lane was never full, so the test proves nothing"
    assert held.most <= MEMORY
