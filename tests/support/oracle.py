"""The expected result of a reduction, bit for bit, written without any of our kernels.

Arrays are as on the wire: float16 as numpy float16, bfloat16 and float8 as their bits.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from reducer.wire.codes import DType, ReduceOp

Array = np.ndarray[Any, np.dtype[Any]]

NUMPY_DTYPES: dict[DType, type] = {
    DType.FLOAT32: np.float32,
    DType.FLOAT64: np.float64,
    DType.FLOAT16: np.float16,
    DType.BFLOAT16: np.uint16,
    DType.INT8: np.int8,
    DType.UINT8: np.uint8,
    DType.INT32: np.int32,
    DType.UINT32: np.uint32,
    DType.INT64: np.int64,
    DType.UINT64: np.uint64,
    DType.FLOAT8_E4M3FN: np.uint8,
    DType.FLOAT8_E5M2: np.uint8,
}
FLOAT8: dict[DType, tuple[Any, int]] = {  # with the canonical NaN
    DType.FLOAT8_E4M3FN: (ml_dtypes.float8_e4m3fn, 0x7F),
    DType.FLOAT8_E5M2: (ml_dtypes.float8_e5m2, 0x7E),
}
FLOATS = (DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16, *FLOAT8)
OPS = (ReduceOp.SUM, ReduceOp.MEAN, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PROD)
BITWISE = {
    ReduceOp.BAND: np.bitwise_and,
    ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
}


def ops_of(dtype: DType) -> tuple[ReduceOp, ...]:
    return OPS if dtype in FLOATS else (*OPS, *BITWISE)


def sample(rng: np.random.Generator, dtype: DType, count: int) -> Array:
    """Values of every magnitude for floats; of the whole range for integers."""
    if dtype not in FLOATS:
        kind = NUMPY_DTYPES[dtype]
        info = np.iinfo(kind)
        return rng.integers(info.min, info.max, count, dtype=kind, endpoint=True)
    values = rng.normal(size=count) * 10.0 ** rng.integers(-4, 4, count)
    if dtype == DType.BFLOAT16:
        return to_bfloat16(values.astype(np.float32))
    if dtype in FLOAT8:
        return to_float8(dtype, np.clip(values, -9, 9).astype(np.float32))
    return values.astype(NUMPY_DTYPES[dtype])


def to_bfloat16(values: Array) -> Array:
    """float32 to bfloat16 bits: to nearest, ties to even, one canonical NaN."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    rounded[np.isnan(values)] = 0x7FC0
    return rounded.astype(np.uint16)


def from_bfloat16(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_float8(dtype: DType, values: Array) -> Array:
    kind, nan = FLOAT8[dtype]
    bits = values.astype(kind).view(np.uint8)
    bits[np.isnan(from_float8(dtype, bits))] = nan
    return bits


def from_float8(dtype: DType, bits: Array) -> Array:
    return bits.view(FLOAT8[dtype][0]).astype(np.float32)


def reduce(op: ReduceOp, dtype: DType, arrays: Sequence[Array]) -> Array:
    """The result of `arrays` in rank order."""
    with np.errstate(all="ignore"):
        if dtype in FLOATS:
            return _reduce_floats(op, dtype, arrays)
        return _reduce_integers(op, dtype, arrays)


def _reduce_floats(op: ReduceOp, dtype: DType, arrays: Sequence[Array]) -> Array:
    if dtype == DType.BFLOAT16:
        wide = [from_bfloat16(a) for a in arrays]
    elif dtype in FLOAT8:
        wide = [from_float8(dtype, a) for a in arrays]
    elif dtype == DType.FLOAT16:
        wide = [a.astype(np.float64) for a in arrays]
    else:
        wide = list(arrays)
    total = wide[0].copy()
    for part in wide[1:]:
        total = _step(op, total, part)
    if op == ReduceOp.MEAN:
        total = (total / total.dtype.type(len(arrays))).astype(total.dtype)
    if dtype == DType.BFLOAT16:
        return to_bfloat16(total)
    if dtype in FLOAT8:
        return to_float8(dtype, total)
    result = total.astype(NUMPY_DTYPES[dtype])
    result[np.isnan(result)] = np.array(np.nan, result.dtype)
    return result


def _step(op: ReduceOp, total: Array, part: Array) -> Array:
    if op in (ReduceOp.SUM, ReduceOp.MEAN):
        return total + part
    if op == ReduceOp.PROD:
        return total * part
    if op == ReduceOp.MIN:
        picked = np.minimum(total, part)
        negative = np.signbit(total) | np.signbit(part)
    else:
        picked = np.maximum(total, part)
        negative = np.signbit(total) & np.signbit(part)
    zeros = (total == 0) & (part == 0)
    picked[zeros] = np.where(negative[zeros], -0.0, 0.0).astype(picked.dtype)
    return picked


def _reduce_integers(op: ReduceOp, dtype: DType, arrays: Sequence[Array]) -> Array:
    kind = NUMPY_DTYPES[dtype]
    if op == ReduceOp.MIN:
        return np.minimum.reduce(arrays)
    if op == ReduceOp.MAX:
        return np.maximum.reduce(arrays)
    if op in BITWISE:
        return functools.reduce(BITWISE[op], arrays)
    wide: Any = np.uint64 if np.issubdtype(kind, np.unsignedinteger) else np.int64
    total = arrays[0].astype(wide)
    for part in arrays[1:]:
        total = total * part.astype(wide) if op == ReduceOp.PROD else total + part.astype(wide)
    if op == ReduceOp.MEAN:
        total = _truncated(total, len(arrays))
    return total.astype(kind)


def _truncated(total: Array, world: int) -> Array:
    if total.dtype == np.uint64:
        return total // np.uint64(world)
    quotient = total // np.int64(world)
    inexact = quotient * np.int64(world) != total
    return quotient + (inexact & (total < 0)).astype(np.int64)
