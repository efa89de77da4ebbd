"""Ranks that submit their keys in orders of their own, on a lane with the least room."""

from __future__ import annotations

import numpy as np

import reducer_client
from reducer.core.limits.budget import SHARES_BESIDE_RANKS, share_of
from tests.soak import Figures, Say
from tests.support.cluster import Daemon, peak_resident, usage
from tests.support.ranks import run_ranks
from tests.support.weighed import Weighed

MEBIBYTE = 1 << 20
WORLD = 4
KEYS = 8
# Whole chunks of 1 MiB; the least room that 4 ranks can have: one
# chunk of credit and one of grant for each (PROTOCOL.md, section 7).
WHOLE_CHUNKS = [(0, MEBIBYTE)]
LEAST_MEMORY = (WORLD + SHARES_BESIDE_RANKS) * share_of(2 * MEBIBYTE)
_TURN_SECONDS = 3.0  # far more than a turn takes


def _any_order(rank: int, world: int, addresses: list[str], job: str, turns: int) -> None:
    order = np.random.default_rng(rank)
    arrays = [np.full(2 * MEBIBYTE, rank + key, np.float32) for key in range(KEYS)]
    targets = [np.empty_like(array) for array in arrays]
    with reducer_client.connect(
        addresses, job=job, rank=rank, world_size=world, chunk_table=WHOLE_CHUNKS
    ) as group:
        for _ in range(turns):
            works = {
                key: group.all_reduce(arrays[key], key=f"key{key}", out=targets[key])
                for key in order.permutation(KEYS)
            }
            for key, work in works.items():
                result = work.wait(100)
                assert result[0] == result[-1] == sum(r + key for r in range(world))


def turns(count: int) -> int:
    """`count` turns of 8 keys of 8 MiB end; the most bytes by which the lane's process grew.

    Without grants they stop at once: tests/unit/sim/test_flow_control.py.
    """
    with (
        Daemon("--memory", str(LEAST_MEMORY), "--credit", str(MEBIBYTE)) as daemon,
        Weighed(daemon) as held,
    ):
        (lane,) = daemon.lane_pids()
        before = usage(lane).resident
        limit = 60 + _TURN_SECONDS * count
        run_ranks(WORLD, _any_order, [daemon.address], "orders", count, timeout=limit)
        grown = peak_resident(lane) - before
    assert held.most <= LEAST_MEMORY, f"the lane's buffers held {held.most:,} bytes"
    return grown


def run(count: int, seed: int, say: Say) -> Figures:
    """`count` turns: no deadlock, and no byte over the budget and a tenth."""
    grown = turns(count)
    assert grown < 1.1 * LEAST_MEMORY, f"the lane took {grown:,} bytes more than at its start"
    return {
        "turns": f"{count:,} of {KEYS} keys of 8 MiB on {WORLD} ranks",
        "lane at most": f"{grown / MEBIBYTE:.1f} MiB of {LEAST_MEMORY / MEBIBYTE:.0f}",
    }
