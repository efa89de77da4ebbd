"""Submissions: the requests of this rank with their arrays and handles."""

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
    """A request with its data. The arrays belong to this layer until the handle is done.

    ``source`` is the caller's array. ``out`` receives the result; it may be ``source``, and None
    means a new array. ``since`` is the time of submission on the monotonic clock.
    """

    request: Request
    handle: OperationHandle
    source: Array
    out: Array | None = None
    since: float = field(default_factory=monotonic)

    @property
    def stored(self) -> Array:
        """The source, as integers if NumPy lacks its dtype."""
        return _stored(self.source, self.request.dtype)

    def target(self) -> Array:
        """A contiguous array for the engine to write the result to: ``out`` if possible."""
        if self.out is not None and self.out.flags.c_contiguous and self.out.flags.aligned:
            return _stored(self.out, self.request.dtype)
        return np.empty(self.source.shape, stored_dtype(self.request.dtype))

    def result(self, found: Array) -> Array:
        """Return ``found`` as the caller's result: in ``out``, or with the dtype of the source."""
        if self.out is None:
            return found.view(self.source.dtype)
        if not np.may_share_memory(self.out, found):
            np.copyto(self.out, found.view(self.out.dtype))
        return self.out


def _stored(array: Array, dtype: str) -> Array:
    wanted: np.dtype[Any] = stored_dtype(dtype)
    return array if array.dtype == wanted else array.view(wanted)
