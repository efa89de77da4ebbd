"""Checks the residuals of calls with error feedback."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reducer_client.arrays import Array
from reducer_client.dtypes import Wire


def feedback_of(residual: object, wire: Wire, source: Array, target: Array | None) -> Array | None:
    """The residual of a call, if there is one; raises TypeError or ValueError if it is wrong."""
    if residual is None:
        return None
    if not wire.quantised:
        raise ValueError(
            "residual: expected a wire_dtype that is quantised, such as 'int8'; the array is sent "
            f"as {wire.dtype.name.lower()}"
        )
    return _checked(residual, source, target)


def feedbacks_of(
    residuals: Sequence[Array] | None, wires: list[Wire], sources: list[Array]
) -> list[Array]:
    """The residuals of all arrays, or an empty list."""
    if residuals is None:
        return []
    if len(residuals) != len(sources):
        raise ValueError(f"residuals: expected one for each array, {len(sources)}")
    for residual, wire, source in zip(residuals, wires, sources, strict=True):
        feedback_of(residual, wire, source, None)
    return list(residuals)


def _checked(residual: object, source: Array, target: Array | None) -> Array:
    if not isinstance(residual, np.ndarray) or residual.dtype != np.float32:
        got = residual.dtype if isinstance(residual, np.ndarray) else type(residual).__name__
        raise TypeError(f"residual: expected a NumPy array of float32, got {got}")
    if residual.shape != source.shape:
        raise ValueError(f"residual: expected shape {source.shape}, got {residual.shape}")
    flags = residual.flags
    if not (flags.writeable and flags.c_contiguous and flags.aligned):
        raise ValueError("residual: expected a writable, C-contiguous, aligned array")
    if any(each is not None and np.may_share_memory(residual, each) for each in (source, target)):
        raise ValueError("residual: expected its own memory, got the memory of array or out")
    return residual
