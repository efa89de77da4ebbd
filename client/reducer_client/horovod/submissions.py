"""Submissions: what this rank has asked for, its arrays and its handle."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import numpy as np

from reducer_client.arrays import Array
from reducer_client.horovod.handles import OperationHandle
from reducer_client.horovod.requests import Request
from reducer_client.horovod.scaling import stored_dtype


@dataclass(eq=False)
class Submission:
    """A request with its data, which belongs to the layer until the handle is done.

    ``source`` is the caller's array; ``out``, where the result goes, may be the same one, and None
    makes a new one. ``since`` is of the monotonic clock.
    """

    request: Request
    handle: OperationHandle
    source: Array
    out: Array | None = None
    since: float = field(default_factory=monotonic)

    @property
    def stored(self) -> Array:
        """The source, with integers for what NumPy cannot calculate with."""
        return _stored(self.source, self.request.dtype)

    def target(self) -> Array:
        """An array of the result's shape for the engine to write into: ``out`` if it can be."""
        if self.out is not None and self.out.flags.c_contiguous and self.out.flags.aligned:
            return _stored(self.out, self.request.dtype)
        return np.empty(self.source.shape, stored_dtype(self.request.dtype))

    def result(self, found: Array) -> Array:
        """``found``, an array of the stored or the caller's dtype, as the caller gets it."""
        if self.out is None:
            return found.view(self.source.dtype)
        if not np.may_share_memory(self.out, found):
            np.copyto(self.out, found.view(self.out.dtype))
        return self.out


def _stored(array: Array, dtype: str) -> Array:
    wanted: np.dtype[Any] = stored_dtype(dtype)
    return array if array.dtype == wanted else array.view(wanted)
