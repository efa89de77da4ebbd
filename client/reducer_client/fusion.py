"""Fusion buffers: many small arrays as one key.

The plan depends on the arrays' dtypes, sizes and order alone, so that all ranks make the same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reducer_client.arrays import Array

# The largest round that is worth waiting for: beyond it nothing is gained, and memory is.
DEFAULT_FUSION_THRESHOLD = 128 << 20


@dataclass
class FusionBuffer:
    """Which arrays (by position in the call) travel together; all have one dtype."""

    dtype: np.dtype[Any]
    members: list[int]
    count: int

    def pack(self, arrays: Sequence[Array]) -> Array:
        """A new flat array of ``count`` elements with the members one after the other."""
        fused = np.empty(self.count, self.dtype)
        for view, member in zip(self.views(fused, arrays), self.members, strict=True):
            np.copyto(view, arrays[member])
        return fused

    def views(self, fused: Array, arrays: Sequence[Array]) -> list[Array]:
        """The members' places in a fused array, in their own shapes."""
        places = []
        start = 0
        for member in self.members:
            like = arrays[member]
            places.append(fused[start : start + like.size].reshape(like.shape))
            start += like.size
        return places


def plan_fusion(arrays: Sequence[Array], threshold: int) -> list[FusionBuffer]:
    """Buffers of at most ``threshold`` bytes (one larger array goes alone), by first member."""
    if threshold <= 0:
        raise ValueError(f"fusion_threshold={threshold}: expected bytes above 0")
    buffers: list[FusionBuffer] = []
    open_by_dtype: dict[np.dtype[Any], FusionBuffer] = {}
    for index, array in enumerate(arrays):
        buffer = open_by_dtype.get(array.dtype)
        if buffer is None or (buffer.count + array.size) * array.itemsize > threshold:
            buffer = FusionBuffer(array.dtype, [], 0)
            buffers.append(buffer)
            open_by_dtype[array.dtype] = buffer
        buffer.members.append(index)
        buffer.count += array.size
    return buffers
