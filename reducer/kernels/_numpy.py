"""The kernels in NumPy, written for readability: the reference for the native kernels.

They share no technique with the C code. They work in blocks, so that no temporary array is as large
as a chunk. They are about 20 times slower than C for the 16-bit types: do not benchmark them by
accident.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np

from reducer.kernels._numpy_apply import apply, within
from reducer.kernels._numpy_blocks import (
    blocks_bytes,
    blocks_of,
    blocks_seed,
    dequantise,
    encode,
    quantise,
    values,
)
from reducer.kernels._views import Array, address, blocks, byte_view, elements, overlap
from reducer.kernels.floats import from_float32, to_float32
from reducer.kernels.interface import PART_SHIFT
from reducer.wire.codes import (
    BITWISE,
    BLOCKS,
    FLOATS,
    NOT_IN_NUMPY,
    TO_BFLOAT16,
    DType,
    Flag,
    ReduceOp,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer  # collections.abc.Buffer is new in Python 3.12

__all__ = [
    "NAME",
    "acc_itemsize",
    "apply",
    "blocks_seed",
    "crc32c",
    "dequantise",
    "finish",
    "fold",
    "narrow",
    "quantise",
    "widen",
    "within",
]

NAME = "numpy"

_CRC_BLOCK = 1 << 20  # bytes copied at a time, since google_crc32c takes only bytes

_EXTREMA = frozenset((ReduceOp.MIN, ReduceOp.MAX))
_OPS = frozenset((ReduceOp.SUM, ReduceOp.MEAN, ReduceOp.PROD, *_EXTREMA, *BITWISE))
_BITWISE_UFUNCS = {
    ReduceOp.BAND: np.bitwise_and,
    ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
}

# By wire dtype: the NumPy dtype of the payload, and of the accumulator of sum, mean and prod.
_DTYPES = {
    DType.FLOAT32: ("<f4", "<f4"),
    DType.FLOAT64: ("<f8", "<f8"),
    DType.FLOAT16: ("<f2", "<f8"),
    DType.BFLOAT16: ("<u2", "<f4"),  # the bits, as for every dtype in NOT_IN_NUMPY
    DType.INT8: ("i1", "<i8"),
    DType.UINT8: ("u1", "<u8"),
    DType.INT32: ("<i4", "<i8"),
    DType.UINT32: ("<u4", "<u8"),
    DType.INT64: ("<i8", "<i8"),
    DType.UINT64: ("<u8", "<u8"),
    DType.FLOAT8_E4M3FN: ("u1", "<f4"),
    DType.FLOAT8_E5M2: ("u1", "<f4"),
    **dict.fromkeys(BLOCKS, ("u1", "<f4")),  # the bytes of the blocks
}
_WIRE: dict[int, np.dtype[Any]] = {d: np.dtype(wire) for d, (wire, _) in _DTYPES.items()}
_ACCUMULATOR: dict[int, np.dtype[Any]] = {d: np.dtype(wide) for d, (_, wide) in _DTYPES.items()}
_CANONICAL_NAN = {
    np.dtype("<f2"): 0x7E00,
    np.dtype("<f4"): 0x7FC00000,
    np.dtype("<f8"): 0x7FF8 << 48,
}
_BITS: dict[int, np.dtype[Any]] = {2: np.dtype("<u2"), 4: np.dtype("<u4"), 8: np.dtype("<u8")}


def crc32c(data: Buffer, value: int = 0) -> int:
    view = memoryview(byte_view("data", data).data)
    for start in range(0, len(view), _CRC_BLOCK):
        value = google_crc32c.extend(value, bytes(view[start : start + _CRC_BLOCK]))
    return value


def acc_itemsize(op: int, dtype: int) -> int:
    return _accumulator(op, dtype).itemsize


def fold(op: int, dtype: int, count: int, acc: Buffer, parts: Sequence[Buffer], first: bool) -> int:
    if first and not parts:
        raise ValueError("fold: nothing to begin from: expected a part with first=True, got none")
    total = elements("acc", acc, _accumulator(op, dtype), count, writable=True)
    sources = _parts(dtype, count, parts)
    in_place = first and _begins_in_place(total, sources)
    for number, source in enumerate(sources):
        if overlap(total, source) and not (in_place and number == 0):
            raise ValueError(f"fold: acc overlaps parts[{number}]")
    flags = _contributed(op, dtype, sources, count)
    for block in blocks(count):
        rest = [_at(dtype, source, block) for source in sources]
        with np.errstate(all="ignore"):
            if first:
                total[block] = _widened(op, dtype, rest.pop(0))
            flags |= _fold_block(op, dtype, total[block], rest)
    return flags


def finish(
    op: int,
    dtype: int,
    count: int,
    world: int,
    acc: Buffer | None,
    parts: Sequence[Buffer],
    out: Buffer,
) -> int:
    if acc is None and not parts:
        raise ValueError("finish: nothing to begin from: expected acc or a part, got neither")
    if world < 1:
        raise ValueError(f"finish: world must be at least 1, got {world}")
    kind = _accumulator(op, dtype)
    total = None if acc is None else elements("acc", acc, kind, count)
    sources = _parts(dtype, count, parts)
    target = _result(dtype, count, out)
    for name, source in [("acc", total), *((f"parts[{i}]", s) for i, s in enumerate(sources))]:
        if source is None or not overlap(target, source):
            continue
        if dtype in TO_BFLOAT16 and source is not total:
            raise ValueError(f"finish: out overlaps {name}, which is shorter than out")
        if address(target) != address(source):
            raise ValueError(f"finish: out overlaps {name}, but begins at another address")
    flags = _contributed(op, dtype, sources, count)
    for block in blocks(count):
        rest = [_at(dtype, source, block) for source in sources]
        with np.errstate(all="ignore"):
            if total is None:
                value = _widened(op, dtype, rest.pop(0))
            else:
                value = total[block].copy()
            flags |= _fold_block(op, dtype, value, rest)
            if op == ReduceOp.MEAN:
                value = _divided(value, world)
            if dtype in BLOCKS and dtype not in TO_BFLOAT16:
                at = slice(blocks_bytes(dtype, block.start), blocks_bytes(dtype, block.stop))
                flags |= _store_blocks(dtype, value, target[at])
            else:
                flags |= _store(op, dtype, value, target[block])
    return flags


def narrow(dtype: int, count: int, source: Buffer, out: Buffer) -> int:
    _require_16_bit("narrow", dtype)
    values = elements("source", source, np.dtype("<f4"), count)
    target = elements("out", out, _WIRE[dtype], count, writable=True)
    if overlap(values, target):
        raise ValueError("narrow: source overlaps out")
    flags = 0
    for block in blocks(count):
        with np.errstate(all="ignore"):
            flags |= _store(ReduceOp.SUM, dtype, values[block].copy(), target[block])
    return flags & Flag.NAN


def widen(dtype: int, count: int, source: Buffer, out: Buffer) -> None:
    _require_16_bit("widen", dtype)
    values = elements("source", source, _WIRE[dtype], count)
    target = elements("out", out, np.dtype("<f4"), count, writable=True)
    if overlap(values, target):
        raise ValueError("widen: source overlaps out")
    for block in blocks(count):
        with np.errstate(all="ignore"):
            target[block] = _widened(ReduceOp.SUM, dtype, values[block])


def _accumulator(op: int, dtype: int) -> np.dtype[Any]:
    if dtype not in _WIRE:
        raise ValueError(f"no kernel for dtype {dtype}: expected a DType number, 1 to 18")
    if op in BITWISE and dtype in FLOATS:
        raise ValueError(
            f"no kernel for op {op} of dtype {dtype}: a bitwise op expects an integer dtype"
        )
    if dtype in BLOCKS and op not in (ReduceOp.SUM, ReduceOp.MEAN) and op in _OPS:
        raise ValueError(f"no kernel for op {op} of dtype {dtype}: blocks have only sum and mean")
    if op in _EXTREMA or op in BITWISE:
        return _WIRE[dtype]
    if op in (ReduceOp.SUM, ReduceOp.MEAN, ReduceOp.PROD):
        return _ACCUMULATOR[dtype]
    raise ValueError(f"no kernel for op {op}: expected a ReduceOp number that reduces")


def _require_16_bit(name: str, dtype: int) -> None:
    if dtype not in (DType.FLOAT16, DType.BFLOAT16):
        raise ValueError(f"{name}: expected dtype 3 (float16) or 4 (bfloat16), got {dtype}")


def _parts(dtype: int, count: int, parts: Sequence[Buffer]) -> list[Array]:
    if dtype in BLOCKS:
        return [blocks_of(f"parts[{i}]", dtype, part, count) for i, part in enumerate(parts)]
    wire = _WIRE[dtype]
    return [elements(f"parts[{i}]", part, wire, count) for i, part in enumerate(parts)]


def _result(dtype: int, count: int, out: Buffer) -> Array:
    if dtype in BLOCKS and dtype not in TO_BFLOAT16:
        return blocks_of("out", dtype, out, count, writable=True)
    wire = _WIRE[DType.BFLOAT16 if dtype in TO_BFLOAT16 else dtype]
    return elements("out", out, wire, count, writable=True)


def _at(dtype: int, part: Array, block: slice) -> Array:
    """Elements of a part; those of blocks as float32."""
    return values(dtype, part, block) if dtype in BLOCKS else part[block]


def _begins_in_place(total: Array, sources: list[Array]) -> bool:
    alike = len(sources) > 1 and total.itemsize == sources[0].itemsize
    return alike and address(total) == address(sources[0])


def _contributed(op: int, dtype: int, parts: list[Array], count: int) -> int:
    """NONFINITE and, above PART_SHIFT, the number of the first part that is not finite; else 0."""
    for number, part in enumerate(parts, start=1):
        if any(_not_finite(op, dtype, _at(dtype, part, block)).any() for block in blocks(count)):
            return int(Flag.NONFINITE) | number << PART_SHIFT
    return 0


def _not_finite(op: int, dtype: int, values: Array) -> Array:
    """Mask of the elements that are NaN, or Inf unless the op is min or max."""
    if dtype in NOT_IN_NUMPY:
        values = to_float32(dtype, values)
    if values.dtype.kind != "f":
        return np.zeros(values.shape, bool)
    found: Array = np.isnan(values) if op in _EXTREMA else ~np.isfinite(values)
    return found


def _widened(op: int, dtype: int, part: Array) -> Array:
    """A copy of ``part`` in the accumulator's dtype."""
    if dtype in NOT_IN_NUMPY and op not in _EXTREMA:
        return to_float32(dtype, part)
    return part.astype(_accumulator(op, dtype))


def _fold_block(op: int, dtype: int, total: Array, parts: list[Array]) -> int:
    overflow = False
    for part in parts:
        operand = _widened(op, dtype, part)
        if op in _EXTREMA:
            _fold_extremum(op, dtype, total, operand)
        elif op in BITWISE:
            _BITWISE_UFUNCS[ReduceOp(op)](total, operand, out=total)
        elif total.dtype.kind == "f":
            (np.multiply if op == ReduceOp.PROD else np.add)(total, operand, out=total)
        elif op == ReduceOp.PROD:
            overflow |= _multiply_wrapping(total, operand)
        else:
            overflow |= _add_wrapping(total, operand)
    return int(Flag.OVERFLOW) if overflow else 0


def _fold_extremum(op: int, dtype: int, total: Array, part: Array) -> None:
    choose = np.minimum if op == ReduceOp.MIN else np.maximum
    if dtype in NOT_IN_NUMPY:
        values = to_float32(dtype, total)
        _fold_extremum(op, DType.FLOAT32, values, to_float32(dtype, part))
        total[:] = from_float32(dtype, values)
        return
    chosen = choose(total, part)
    if total.dtype.kind == "f":  # NumPy does not define the order of -0 and +0
        negative = np.signbit(total), np.signbit(part)
        sign = negative[0] | negative[1] if op == ReduceOp.MIN else negative[0] & negative[1]
        zeros = (total == 0) & (part == 0)
        chosen[zeros] = np.where(sign[zeros], -0.0, 0.0)
    total[:] = chosen


def _add_wrapping(total: Array, part: Array) -> bool:
    before = total.copy()
    total += part
    if total.dtype.kind == "u":
        return bool((total < before).any())
    return bool((((before ^ total) & (part ^ total)) < 0).any())


def _multiply_wrapping(total: Array, part: Array) -> bool:
    before = total.copy()
    total *= part
    nonzero = part != 0
    divisor = np.where(nonzero, part, 1)
    wrapped = nonzero & (total // divisor != before)
    if total.dtype.kind == "i":  # min // -1 is the only quotient that overflows
        wrapped |= (part == -1) & (before == np.iinfo(total.dtype).min)
    return bool(wrapped.any())


def _divided(total: Array, world: int) -> Array:
    if total.dtype.kind == "f":
        total /= world
        return total
    quotient: Array = total // np.array(world, total.dtype)
    rounded_down = (total < 0) & (quotient * np.array(world, total.dtype) != total)
    quotient[rounded_down] += 1  # toward zero
    return quotient


def _store(op: int, dtype: int, total: Array, out: Array) -> int:
    """Round ``total`` to the wire dtype, with canonical NaN and wrapped integers; returns flags."""
    if out.dtype.kind == "f":
        nan = np.isnan(total)
        out[:] = total
        out.view(_BITS[out.itemsize])[nan] = _CANONICAL_NAN[out.dtype]
    elif dtype in NOT_IN_NUMPY or dtype in TO_BFLOAT16:
        dtype = DType.BFLOAT16 if dtype in TO_BFLOAT16 else dtype
        narrow_already = op in _EXTREMA
        out[:] = from_float32(dtype, to_float32(dtype, total) if narrow_already else total)
        nan = np.isnan(to_float32(dtype, out))
    else:
        out[:] = total.astype(out.dtype)
        return int(Flag.OVERFLOW) if bool((out.astype(total.dtype) != total).any()) else 0
    flags = int(Flag.NAN) if bool(nan.any()) else 0
    return flags | (int(Flag.NONFINITE) if bool(_not_finite(op, dtype, out).any()) else 0)


def _store_blocks(dtype: int, total: Array, out: Array) -> int:
    """Quantise ``total``; a block that is not finite is NaN as a whole."""
    return int(Flag.NAN | Flag.NONFINITE) if encode(dtype, total, out) else 0
