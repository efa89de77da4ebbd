"""Fusion buffers: many small arrays sent as one key.

The plan depends only on the arrays' dtypes, sizes and order, so all ranks make the same plan.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reducer_client.arrays import Array, target_array

# Bytes. Larger fusion buffers are no faster and take more memory.
DEFAULT_FUSION_THRESHOLD = 128 << 20


@dataclass
class FusionBuffer:
    """One buffer of the plan: the positions of its arrays in the call, their dtype and total size.

    ``count`` is the number of elements.
    """

    dtype: np.dtype[Any]
    members: list[int]
    count: int

    def pack(self, arrays: Sequence[Array]) -> Array:
        """Copy the members, one after another, into a new flat array of ``count`` elements."""
        fused = np.empty(self.count, self.dtype)
        for view, member in zip(self.views(fused, arrays), self.members, strict=True):
            np.copyto(view, arrays[member])
        return fused

    def unpack(self, fused: Array, arrays: Sequence[Array]) -> None:
        """Copy the parts of a fused array back into the members."""
        for view, member in zip(self.views(fused, arrays), self.members, strict=True):
            np.copyto(arrays[member], view)

    def views(self, fused: Array, arrays: Sequence[Array]) -> list[Array]:
        """Each member's part of a fused array, as a view with the member's shape."""
        views = []
        start = 0
        for member in self.members:
            like = arrays[member]
            views.append(fused[start : start + like.size].reshape(like.shape))
            start += like.size
        return views


class Results:
    """The results of a call with many arrays: views of the fusion buffers, or copies in ``out``.

    Raises TypeError or ValueError if ``out`` does not fit.
    """

    def __init__(
        self,
        sources: Sequence[Array],
        buffers: list[FusionBuffer],
        out: Sequence[object] | None,
    ) -> None:
        self.buffers = buffers
        self._sources = sources
        self._fused: list[Array | None] = [None] * len(buffers)
        self._lock = threading.Lock()
        self._copies = out is not None
        self.arrays: list[Array] = [np.empty(0)] * len(sources)
        if out is not None:
            if len(out) != len(sources):
                raise ValueError(f"out: expected {len(sources)} arrays, got {len(out)}")
            self.arrays = [
                target_array(target, source.shape, source.dtype)
                for target, source in zip(out, sources, strict=True)
            ]

    def arrive_in(self, index: int, fused: Array) -> None:
        """The results of a fusion buffer will be in this array."""
        if self._copies:
            self._fused[index] = fused
            return
        buffer = self.buffers[index]
        for member, view in zip(buffer.members, buffer.views(fused, self._sources), strict=True):
            self.arrays[member] = view

    def unpack(self) -> None:
        """Copy the results to ``out``, if there is one. Only the first call does."""
        with self._lock:
            for index, fused in enumerate(self._fused):
                if fused is not None:
                    self.buffers[index].unpack(fused, self.arrays)
                    self._fused[index] = None


def plan_fusion(arrays: Sequence[Array], threshold: int) -> list[FusionBuffer]:
    """Assign the arrays to buffers of at most ``threshold`` bytes, ordered by first member.

    An array above the threshold has a buffer of its own. Raises ValueError for a threshold that is
    not positive.
    """
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
