"""The wire numbers of NumPy dtypes and reduce operations."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from reducer.wire.codes import BITWISE, BLOCKS, FLOATS, ITEM_SIZES, NOT_IN_NUMPY, DType, ReduceOp
from reducer.wire.sizes import contribution_bytes, result_bytes
from reducer_client.quantized import BLOCKS_NAMES, BlocksName, Quantized

Op = Literal["sum", "mean", "avg", "min", "max", "prod", "band", "bor", "bxor"]
NarrowName = Literal["float16", "bfloat16"]
WireDtype = Literal["float32"] | NarrowName | BlocksName | Quantized
NARROW_NAMES: tuple[NarrowName, ...] = get_args(NarrowName)
AnyDtype = np.dtype[Any]

_ALIASES = {"avg": "mean"}
OPS: dict[str, ReduceOp] = {
    name: ReduceOp[_ALIASES.get(name, name).upper()] for name in get_args(Op)
}
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
        raise ValueError(f"op={op!r}: expected one of {', '.join(OPS)}{_meant(op, OPS)}") from None


def _meant(given: object, names: Iterable[str]) -> str:
    close = get_close_matches(str(given), list(names), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


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


class Wire(NamedTuple):
    """How an array is sent: ``wide`` if its float32 are narrowed to ``dtype`` on the way."""

    dtype: DType
    wide: bool = False
    stochastic: bool = False  # the rounding to blocks

    @property
    def quantised(self) -> bool:
        return self.dtype in BLOCKS

    def bytes(self, count: int) -> int:
        """Bytes of an all-reduce of ``count`` elements on the wire: sent and received."""
        return contribution_bytes(self.dtype, count) + result_bytes(self.dtype, count)


def check_wire_dtype(wire_dtype: object) -> None:
    """Raise ValueError, which lists what there is, for an unknown ``wire_dtype``."""
    names = ("float32", *NARROW_NAMES, *BLOCKS_NAMES)
    if wire_dtype is None or isinstance(wire_dtype, Quantized) or wire_dtype in names:
        return
    raise ValueError(
        f"wire_dtype={wire_dtype!r}: expected one of {', '.join(names)}, a "
        f"reducer_client.Quantized, or None{_meant(wire_dtype, names)}"
    )


def is_quantised(wire_dtype: WireDtype | None) -> bool:
    """Whether this is a name of quantised blocks, or a ``Quantized``."""
    return isinstance(wire_dtype, Quantized) or wire_dtype in BLOCKS_NAMES


def narrow_to(op: ReduceOp, dtype: DType, wire_dtype: WireDtype | None) -> Wire:
    """How an array of ``dtype`` is sent for this operation.

    Raises ValueError for an unknown ``wire_dtype``, and TypeError if the array is not float32 or
    the operation cannot be quantised.
    """
    check_wire_dtype(wire_dtype)
    if wire_dtype is None or wire_dtype == dtype.name.lower():
        return Wire(dtype)
    if dtype is not DType.FLOAT32:
        raise TypeError(
            f"wire_dtype={wire_dtype!r} for an array of {dtype.name.lower()}: expected float32, "
            "the only dtype that can be narrowed"
        )
    if not isinstance(wire_dtype, Quantized) and wire_dtype not in BLOCKS_NAMES:
        return Wire(DType[wire_dtype.upper()], wide=True)
    if op not in (ReduceOp.SUM, ReduceOp.MEAN):
        raise TypeError(
            f"wire_dtype={wire_dtype!r} with op={op.name.lower()!r}: expected op sum or mean, or "
            f"wire_dtype {' or '.join(NARROW_NAMES)}"
        )
    blocks = wire_dtype if isinstance(wire_dtype, Quantized) else Quantized(wire_dtype)
    return Wire(blocks.code, wide=True, stochastic=blocks.rounding == "stochastic")
