"""Arrays as users have them (bfloat16 as its own dtype), and their expected reduction."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from reducer.wire.codes import DType, ReduceOp
from tests.support import oracle

Array = npt.NDArray[Any]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT8 = (np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2))
DTYPES: tuple[np.dtype[Any], ...] = (
    *(np.dtype(name) for name in ("float32", "float64", "float16")),
    BFLOAT16,
    *(np.dtype(name) for name in ("int8", "uint8", "int32", "uint32", "int64", "uint64")),
    *FLOAT8,
)
OPS = ("sum", "mean", "min", "max", "prod")
BITWISE = ("band", "bor", "bxor")


def sample(dtype: np.dtype[Any], shape: int | tuple[int, ...], seed: object) -> Array:
    """Values that stay in range for every op over a few ranks; the same for the same seed."""
    rng = np.random.default_rng(list(repr(seed).encode()))
    if dtype.kind in "iu":
        low = -2 if dtype.kind == "i" else 0
        return rng.integers(low, 3, shape).astype(dtype)
    return rng.normal(1.0, 0.5, shape).astype(dtype)


def ops_of(dtype: np.dtype[Any]) -> tuple[str, ...]:
    return (*OPS, *BITWISE) if dtype.kind in "iu" else OPS


def expected(op: str, parts: list[Array]) -> Array:
    """The fold of the parts in rank order, by tests/support/oracle.py."""
    dtype = parts[0].dtype
    number = DType[dtype.name.upper()]
    carried = [part.view(oracle.NUMPY_DTYPES[number]) for part in parts]
    result = oracle.reduce(ReduceOp[op.upper()], number, carried)
    return result.view(dtype)
