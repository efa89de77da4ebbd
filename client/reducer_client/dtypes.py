"""The wire numbers of NumPy dtypes and reduce operations."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np

from reducer.wire.codes import BITWISE, FLOATS, ITEM_SIZES, NOT_IN_NUMPY, DType, ReduceOp

Op = Literal["sum", "mean", "min", "max", "prod", "band", "bor", "bxor"]
WireDtype = Literal["float32", "float16", "bfloat16"]
AnyDtype = np.dtype[Any]

OPS: dict[str, ReduceOp] = {name: ReduceOp[name.upper()] for name in get_args(Op)}
# Operations on NumPy's bool, a byte of 0 or 1. The maximum is "or", the minimum is "and".
_BOOL_OPS: dict[ReduceOp, ReduceOp] = {
    ReduceOp.SUM: ReduceOp.MAX,
    ReduceOp.MAX: ReduceOp.MAX,
    ReduceOp.BOR: ReduceOp.MAX,
    ReduceOp.PROD: ReduceOp.MIN,
    ReduceOp.MIN: ReduceOp.MIN,
    ReduceOp.BAND: ReduceOp.MIN,
    ReduceOp.BXOR: ReduceOp.BXOR,
}

# By (kind, size), because NumPy has two dtypes of 8-byte integers that compare equal.
_NATIVE: dict[tuple[str, int], DType] = {
    ("f", 4): DType.FLOAT32,
    ("f", 8): DType.FLOAT64,
    ("f", 2): DType.FLOAT16,
    ("i", 1): DType.INT8,
    ("u", 1): DType.UINT8,
    ("i", 4): DType.INT32,
    ("u", 4): DType.UINT32,
    ("i", 8): DType.INT64,
    ("u", 8): DType.UINT64,
}
_NAMED: dict[str, DType] = {dtype.name.lower(): dtype for dtype in NOT_IN_NUMPY}
SUPPORTED = ", ".join(DType(d).name.lower() for d in ITEM_SIZES)


def find_dtype(dtype: AnyDtype) -> DType | None:
    """The wire dtype of a NumPy dtype, or None if reducers cannot sum the dtype."""
    found = _NATIVE.get((dtype.kind, dtype.itemsize)) if dtype.isnative else None
    # The name comes last, because NumPy takes microseconds to make it.
    return _NAMED.get(dtype.name) if found is None else found


def reducible_dtype(dtype: AnyDtype, declared: str | None = None) -> DType:
    """The wire dtype for a reduction of an array of this dtype.

    ``declared="bfloat16"`` says that 16-bit integers hold bfloat16. ``"float8_e4m3fn"`` and
    ``"float8_e5m2"`` say the same of 8-bit integers.

    Raises TypeError, which lists the supported dtypes, for any other dtype.
    """
    if declared is not None:
        meant = _NAMED.get(declared)
        if meant is None or dtype.kind not in "iuV" or dtype.itemsize != ITEM_SIZES[meant]:
            raise TypeError(
                f"dtype={declared!r} for an array of {dtype}: expected one of {', '.join(_NAMED)}, "
                "and an array of integers of the same width"
            )
        return meant
    found = find_dtype(dtype)
    if found is None:
        raise TypeError(f"arrays of {dtype} cannot be reduced; supported: {SUPPORTED}")
    return found


def find_op(op: str) -> ReduceOp:
    """The wire number of an operation. Raises ValueError, which lists all operations."""
    try:
        return OPS[op]
    except KeyError:
        raise ValueError(f"op={op!r}: expected one of {', '.join(OPS)}") from None


def find_reduction(op: str, dtype: AnyDtype, declared: str | None = None) -> tuple[ReduceOp, DType]:
    """The wire numbers of an operation and of the array's dtype. Bool travels as uint8.

    Raises TypeError if the dtype cannot be reduced or not with this operation (floats have no
    bitwise operations, bool has no mean), and ValueError if there is no such operation.
    """
    code = find_op(op)
    if dtype.kind == "b" and declared is None:
        if code not in _BOOL_OPS:
            raise TypeError(
                f"op={op!r} of bool: expected sum, max or bor (each means or), prod, min or band "
                "(each means and), or bxor; for a mean give integers or floats: "
                "array.astype('float32')"
            )
        return _BOOL_OPS[code], DType.UINT8
    wire = reducible_dtype(dtype, declared)
    if code in BITWISE and wire in FLOATS:
        raise TypeError(f"op={op!r} of {wire.name.lower()}: expected integers or bool")
    return code, wire


def narrow_to(dtype: DType, wire_dtype: str | None) -> tuple[DType, bool]:
    """(dtype on the wire, whether the client narrows float32 to that dtype).

    Raises ValueError for another ``wire_dtype``, and TypeError if the array is not float32.
    """
    if wire_dtype is None or wire_dtype == dtype.name.lower():
        return dtype, False
    if wire_dtype not in ("float16", "bfloat16", "float32"):
        raise ValueError(f"wire_dtype={wire_dtype!r}: expected float16, bfloat16 or None")
    if dtype is not DType.FLOAT32:
        raise TypeError(
            f"wire_dtype={wire_dtype!r} for an array of {dtype.name.lower()}: expected float32, "
            "the only dtype that can be narrowed"
        )
    return DType[wire_dtype.upper()], True
