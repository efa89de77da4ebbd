"""Gathers byte arrays whose lengths differ between ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np

from reducer_client.arrays import Array
from reducer_client.group import Group
from reducer_client.single_rank import SingleRankGroup, SingleRankWork
from reducer_client.work import Work

AnyGroup = Group | SingleRankGroup
AnyWork = Work[Array] | SingleRankWork
# Works, and a function that returns the arrays by rank when the works are done.
Gathering = tuple[list[AnyWork], Callable[[], list[Array]]]

# The fixed cost of a round (latency, headers, bookkeeping of the reducers), expressed in bytes.
ROUND_COST = 16 << 10


def gather_bytes(group: AnyGroup, blob: Array, lengths: Sequence[int], key: str) -> Gathering:
    """Start to gather the ranks' flat uint8 arrays. ``lengths`` has the size of each rank's array.

    The arrays are gathered either by one all_gather, padded to the longest array, or by one
    broadcast from each rank. The way with fewer received bytes is taken, where each round counts as
    ``ROUND_COST`` bytes.
    """
    if pads(lengths):
        return _padded(group, blob, lengths, key)
    return _by_broadcasts(group, blob, lengths, key)


def pads(lengths: Sequence[int]) -> bool:
    """Whether `gather_bytes` pads the arrays and uses one all_gather."""
    rounds = sum(length > 0 for length in lengths)
    padded = len(lengths) * max(lengths) + ROUND_COST
    return padded <= sum(lengths) + rounds * ROUND_COST


def _padded(group: AnyGroup, blob: Array, lengths: Sequence[int], key: str) -> Gathering:
    longest = max(lengths)
    block = blob
    if blob.size < longest:
        block = np.zeros(longest, np.uint8)
        block[: blob.size] = blob
    gathered = np.empty((len(lengths), longest), np.uint8)
    work = group.all_gather(block, key=key, out=gathered)
    return [work], lambda: [gathered[rank, :length] for rank, length in enumerate(lengths)]


def _by_broadcasts(group: AnyGroup, blob: Array, lengths: Sequence[int], key: str) -> Gathering:
    whole = np.empty(sum(lengths), np.uint8)
    ends = list(accumulate(lengths))
    parts = [whole[end - length : end] for end, length in zip(ends, lengths, strict=True)]
    works: list[AnyWork] = []
    for rank, part in enumerate(parts):
        if part.size:
            source = blob if rank == group.rank else part
            works.append(group.broadcast(source, rank, key=f"{key}/{rank}", out=part))
    return works, lambda: parts
