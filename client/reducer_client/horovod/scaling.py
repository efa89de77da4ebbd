"""Scale factors: before the reduction and after it, in the precision that Horovod takes.

Integers are multiplied in float64 and cut off toward zero, float16 and bfloat16 in float32 and
rounded to the nearest, float32 and float64 as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from reducer_client.arrays import Array

# What NumPy has no dtype for, as the bits of unsigned integers.
_STORED: dict[str, type[np.generic]] = {
    "bfloat16": np.uint16,
    "float8_e4m3fn": np.uint8,
    "float8_e5m2": np.uint8,
}


def stored_dtype(dtype: str) -> np.dtype[Any]:
    """The NumPy dtype of the arrays that hold ``dtype``."""
    return np.dtype(_STORED.get(dtype, dtype))


def is_stored(dtype: str) -> bool:
    """Whether integers hold the bits of ``dtype``."""
    return dtype in _STORED


def check_scalable(dtype: str) -> None:
    """TypeError for a dtype that cannot be multiplied here."""
    if (is_stored(dtype) and dtype != "bfloat16") or dtype == "bool":
        raise TypeError(f"{dtype} with a scale factor: expected another dtype, or no factor")


def scale_into(target: Array, source: Array, factor: float, dtype: str) -> None:
    """``target = source * factor``, both stored as `stored_dtype`; they may be the same array.

    NaN and Inf go through, and finite values may become Inf, without a warning.
    """
    if factor == 1.0:
        np.copyto(target, source)
        return
    with np.errstate(invalid="ignore", over="ignore"):
        if dtype == "bfloat16":
            wide = (source.astype(np.uint32) << 16).view(np.float32)
            np.copyto(target, _to_bfloat16(wide * np.float32(factor)))
        elif source.dtype == np.float16:
            np.copyto(target, source.astype(np.float32) * np.float32(factor), casting="same_kind")
        elif source.dtype.kind == "f":
            np.multiply(source, source.dtype.type(factor), out=target)
        else:
            np.copyto(target, source.astype(np.float64) * factor, casting="unsafe")


def _to_bfloat16(wide: Array) -> Array:
    """To the nearest, ties to even; a NaN stays one."""
    bits = wide.view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16
    return np.where(np.isnan(wide), np.uint32(0x7FC0), rounded).astype(np.uint16)
