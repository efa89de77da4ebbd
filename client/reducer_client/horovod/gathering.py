"""Gathering bytes of which the ranks have different amounts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np

from reducer_client.arrays import Array
from reducer_client.group import Group
from reducer_client.horovod.local import LocalGroup, LocalWork
from reducer_client.work import Work

AnyGroup = Group | LocalGroup
AnyWork = Work[Array] | LocalWork

# What a round costs as if it were so many bytes more: latency, headers, the reducers' bookkeeping.
ROUND_COST = 16 << 10


def gather_bytes(
    group: AnyGroup, blob: Array, lengths: Sequence[int], key: str
) -> tuple[list[AnyWork], Callable[[], list[Array]]]:
    """Start to collect the ranks' flat uint8 arrays, which have these lengths.

    Padded to the longest in one all_gather, or by a broadcast from each rank: whichever moves fewer
    bytes to a rank, with a round counted as ``ROUND_COST`` bytes.

    Returns:
        The works, and what gives the arrays by rank once they are done.
    """
    if pads(lengths):
        return _padded(group, blob, lengths, key)
    return _by_broadcasts(group, blob, lengths, key)


def pads(lengths: Sequence[int]) -> bool:
    """Whether `gather_bytes` pads."""
    rounds = sum(length > 0 for length in lengths)
    padded = len(lengths) * max(lengths) + ROUND_COST
    return padded <= sum(lengths) + rounds * ROUND_COST


def _padded(
    group: AnyGroup, blob: Array, lengths: Sequence[int], key: str
) -> tuple[list[AnyWork], Callable[[], list[Array]]]:
    longest = max(lengths)
    slot = blob
    if blob.size < longest:
        slot = np.zeros(longest, np.uint8)
        slot[: blob.size] = blob
    gathered = np.empty((len(lengths), longest), np.uint8)
    work = group.all_gather(slot, key=key, out=gathered)
    return [work], lambda: [gathered[rank, :length] for rank, length in enumerate(lengths)]


def _by_broadcasts(
    group: AnyGroup, blob: Array, lengths: Sequence[int], key: str
) -> tuple[list[AnyWork], Callable[[], list[Array]]]:
    whole = np.empty(sum(lengths), np.uint8)
    ends = list(accumulate(lengths))
    parts = [whole[end - length : end] for end, length in zip(ends, lengths, strict=True)]
    works: list[AnyWork] = []
    for rank, part in enumerate(parts):
        if part.size:
            source = blob if rank == group.rank else part
            works.append(group.broadcast(source, rank, key=f"{key}/{rank}", out=part))
    return works, lambda: parts
