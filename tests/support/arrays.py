"""Arrays for tests and an oracle of reductions that shares no code with the product."""

from __future__ import annotations

from functools import reduce
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES: tuple[np.dtype[Any], ...] = (
    *(np.dtype(name) for name in ("float32", "float64", "float16")),
    BFLOAT16,
    *(np.dtype(name) for name in ("int8", "uint8", "int32", "uint32", "int64", "uint64")),
)
OPS = ("sum", "mean", "min", "max", "prod")

_WIDE = {"float16": np.float64, "bfloat16": np.float32}
_FOLDS = {
    "sum": np.add,
    "mean": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


def sample(dtype: np.dtype[Any], shape: int | tuple[int, ...], seed: object) -> Array:
    """Values that stay in range for every op over a few ranks; the same for the same seed."""
    rng = np.random.default_rng(list(repr(seed).encode()))
    if dtype.kind in "iu":
        low = -2 if dtype.kind == "i" else 0
        return rng.integers(low, 3, shape).astype(dtype)
    return rng.normal(1.0, 0.5, shape).astype(dtype)


def expected(op: str, parts: list[Array]) -> Array:
    """The fold of the parts in rank order, as the laws of the sum say; no integer overflow."""
    dtype = parts[0].dtype
    with np.errstate(all="ignore"):
        if op in ("min", "max"):
            return np.asarray(reduce(_FOLDS[op], parts))
        wide = _wide_dtype(dtype)
        total = reduce(_FOLDS[op], [part.astype(wide) for part in parts])
        if op == "mean":
            total = _divide(total, len(parts))
        return np.asarray(total).astype(dtype)


def _divide(total: Array, world_size: int) -> Array:
    if total.dtype.kind == "u":
        return np.asarray(total // np.asarray(world_size, total.dtype))
    if total.dtype.kind == "i":
        return np.asarray(np.sign(total) * (np.abs(total) // world_size))
    return np.asarray(total / np.asarray(world_size, total.dtype))


def _wide_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.kind in "iu":
        return np.dtype("int64" if dtype.kind == "i" else "uint64")
    return np.dtype(_WIDE.get(dtype.name, dtype))
