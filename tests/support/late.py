"""A job with one rank that is late in every round."""

from __future__ import annotations

import time

import numpy as np

from tests.support.ranks import Tell, join


def work(
    rank: int, world: int, addresses: list[str], job: str, late: int, nap: float, tell: Tell
) -> None:
    """Run rounds until told to end; rank ``late`` sleeps before each. All end in the same round."""
    with join(rank, world, addresses, job) as group:
        tell("joined")
        values = np.ones(400_000, np.float32)
        stop = np.zeros(1, np.float32)
        while not group.all_reduce(stop, key="stop", op="max").wait()[0]:
            if rank == late:
                time.sleep(nap)
            group.all_reduce(values, key="grad").wait()
            stop[0] = tell.heard()
