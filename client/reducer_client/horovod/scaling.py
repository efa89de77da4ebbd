"""Scale factors before and after a reduction, with the precision of Horovod.

Integers are multiplied in float64 and truncated toward zero. float16 and bfloat16 are multiplied in
float32 and rounded to the nearest value. float32 and float64 are multiplied in their own dtype.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from reducer_client.arrays import Array

# Dtypes that NumPy lacks, and the unsigned integers that hold their bits.
_STORED: dict[str, type[np.generic]] = {
    "bfloat16": np.uint16,
    "float8_e4m3fn": np.uint8,
    "float8_e5m2": np.uint8,
}


def stored_dtype(dtype: str) -> np.dtype[Any]:
    """The NumPy dtype of arrays that hold ``dtype``."""
    return np.dtype(_STORED.get(dtype, dtype))


def is_stored(dtype: str) -> bool:
    """Whether unsigned integers hold the bits of ``dtype``."""
    return dtype in _STORED


def check_scalable(dtype: str) -> None:
    """Raise TypeError for a dtype that cannot be scaled."""
    if (is_stored(dtype) and dtype != "bfloat16") or dtype == "bool":
        raise TypeError(
            f"{dtype} with a scale factor: expected integers, float16, bfloat16, float32 or float64"
        )


def scale_into(target: Array, source: Array, factor: float, dtype: str) -> None:
    """Compute ``target = source * factor``; both may be the same array, of dtype `stored_dtype`.

    NaN and Inf are kept, and finite values may become Inf, without a warning.
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
    """Round float32 to the nearest bfloat16, ties to even. NaN stays NaN."""
    bits = wide.view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16
    return np.where(np.isnan(wide), np.uint32(0x7FC0), rounded).astype(np.uint16)
