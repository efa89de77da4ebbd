"""The law of the sum in exact arithmetic: Python integers and IEEE floats, no NumPy.

``reduce_bits`` says what a result must be, bit for bit. It shares no code with the kernels, and
is slow: some microseconds an element.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Sequence

from reducer.kernels import PART_SHIFT
from reducer.wire.codes import DType, Flag, ReduceOp

# struct's code for one element; types that Python lacks are passed as bits
CODES = {
    DType.FLOAT32: "f",
    DType.FLOAT64: "d",
    DType.FLOAT16: "e",
    DType.BFLOAT16: "H",
    DType.INT8: "b",
    DType.UINT8: "B",
    DType.INT32: "i",
    DType.UINT32: "I",
    DType.INT64: "q",
    DType.UINT64: "Q",
    DType.FLOAT8_E4M3FN: "B",
    DType.FLOAT8_E5M2: "B",
}
FLOAT8 = (DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2)
FLOATS = (DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16, *FLOAT8)
SIGNED = (DType.INT8, DType.INT32, DType.INT64)
CANONICAL_NAN = {
    DType.FLOAT32: struct.pack("<I", 0x7FC00000),
    DType.FLOAT64: struct.pack("<Q", 0x7FF8000000000000),
    DType.FLOAT16: struct.pack("<H", 0x7E00),
    DType.BFLOAT16: struct.pack("<H", 0x7FC0),
    DType.FLOAT8_E4M3FN: b"\x7f",
    DType.FLOAT8_E5M2: b"\x7e",
}
# significant bits, the exponent of the smallest denormal, the largest number
_PRECISION = {
    DType.FLOAT16: (11, -24, 65504.0),
    DType.BFLOAT16: (8, -133, 2.0**128 - 2.0**120),
    DType.FLOAT8_E4M3FN: (4, -9, 448.0),
    DType.FLOAT8_E5M2: (3, -16, 57344.0),
}


def _float8_value(dtype: DType, bits: int) -> float:
    """Decode a float8 by OCP OFP8: table 1 has the widths, table 2 the codes of NaN and Inf."""
    e4m3 = dtype == DType.FLOAT8_E4M3FN
    sign = -1.0 if bits & 0x80 else 1.0
    exponent, mantissa = divmod(bits & 0x7F, 8 if e4m3 else 4)
    if e4m3 and bits & 0x7F == 0x7F:
        return math.nan
    if not e4m3 and exponent == 31:
        return math.nan if mantissa else sign * math.inf
    whole, of = (mantissa, 8) if e4m3 else (mantissa, 4)
    fraction = whole / of if exponent == 0 else 1 + whole / of
    return sign * fraction * 2.0 ** (max(exponent, 1) - (7 if e4m3 else 15))


_FLOAT8_VALUES = {dtype: [_float8_value(dtype, bits) for bits in range(256)] for dtype in FLOAT8}
_FLOAT8_BITS = {
    dtype: {(value, math.copysign(1, value)): bits for bits, value in enumerate(values)}
    for dtype, values in _FLOAT8_VALUES.items()
}


def reduce_bits(op: int, dtype: DType, contributions: Sequence[bytes]) -> tuple[bytes, int]:
    """The result of ``contributions`` in rank order, and the flags that the kernels must return."""
    columns = zip(*(_values(dtype, part) for part in contributions), strict=True)
    reduce_element = _reduce_float if dtype in FLOATS else _reduce_integer
    elements = [reduce_element(op, dtype, column) for column in columns]
    flags = 0
    for _, flag in elements:
        flags |= flag
    for rank, part in enumerate(contributions):
        if dtype in FLOATS and any(not _passes(op, value) for value in _values(dtype, part)):
            flags |= Flag.NONFINITE | (rank + 1) << PART_SHIFT
            break
    return b"".join(element for element, _ in elements), int(flags)


def _passes(op: int, value: float) -> bool:
    """Whether the value is an ordinary number for the op."""
    return math.isfinite(value) or (op in (ReduceOp.MIN, ReduceOp.MAX) and not math.isnan(value))


def _values(dtype: DType, part: bytes) -> list[float] | list[int]:
    values = [value for (value,) in struct.iter_unpack("<" + CODES[dtype], part)]
    if dtype == DType.BFLOAT16:
        return [struct.unpack("<f", struct.pack("<I", bits << 16))[0] for bits in values]
    if dtype in FLOAT8:
        return [_FLOAT8_VALUES[dtype][bits] for bits in values]
    return values


def _reduce_float(op: int, dtype: DType, column: Sequence[float]) -> tuple[bytes, int]:
    in_float32 = dtype in (DType.FLOAT32, DType.BFLOAT16, *FLOAT8)
    # a float64 operation rounded to float32 is the float32 operation: 53 >= 2 x 24 + 2 bits
    step: Callable[[float], float] = (lambda x: ctypes.c_float(x).value) if in_float32 else float
    total = column[0]
    for value in column[1:]:
        if op in (ReduceOp.MIN, ReduceOp.MAX):
            total = _extremum(op, total, value)
        else:
            total = step(total * value if op == ReduceOp.PROD else total + value)
    if op == ReduceOp.MEAN:
        total = step(total / len(column))
    if dtype in _PRECISION and not math.isnan(total):
        total = _round_once(total, *_PRECISION[dtype])
    if math.isnan(total) or (math.isinf(total) and dtype == DType.FLOAT8_E4M3FN):
        return CANONICAL_NAN[dtype], int(Flag.NAN | Flag.NONFINITE)
    flags = 0 if _passes(op, total) else int(Flag.NONFINITE)
    if dtype == DType.BFLOAT16:
        return struct.pack("<f", total)[2:], flags
    if dtype in FLOAT8:
        return bytes([_FLOAT8_BITS[dtype][total, math.copysign(1, total)]]), flags
    return struct.pack("<" + CODES[dtype], total), flags


def _extremum(op: int, a: float, b: float) -> float:
    if math.isnan(a) or math.isnan(b):
        return math.nan
    first, last = sorted((a, b), key=lambda x: (x, math.copysign(1.0, x)))
    return first if op == ReduceOp.MIN else last


def _round_once(value: float, bits: int, lowest: int, largest: float) -> float:
    """Round to nearest, ties to even, to a multiple of 2**lowest with ``bits`` significant bits."""
    if value == 0:
        return value
    if abs(value) > 2 * largest:
        return math.copysign(math.inf, value)
    quantum = max(math.frexp(value)[1] - bits, lowest)  # its logarithm: ldexp is exact
    rounded = math.ldexp(round(math.ldexp(value, -quantum)), quantum)  # round(): half to even
    return math.copysign(rounded if abs(rounded) <= largest else math.inf, value)


def _reduce_integer(op: int, dtype: DType, column: Sequence[int]) -> tuple[bytes, int]:
    signed = dtype in SIGNED
    total, overflow = column[0], False
    for value in column[1:]:
        exact = {
            ReduceOp.MIN: min(total, value),
            ReduceOp.MAX: max(total, value),
            ReduceOp.PROD: total * value,
            ReduceOp.BAND: total & value,
            ReduceOp.BOR: total | value,
            ReduceOp.BXOR: total ^ value,
        }.get(ReduceOp(op), total + value)
        total = _wrapped(exact, 64, signed)
        overflow |= total != exact
    if op == ReduceOp.MEAN:
        total = abs(total) // len(column) * (-1 if total < 0 else 1)
    result = _wrapped(total, 8 * struct.calcsize("<" + CODES[dtype]), signed)
    overflow |= result != total
    return struct.pack("<" + CODES[dtype], result), int(Flag.OVERFLOW) if overflow else 0


def _wrapped(value: int, bits: int, signed: bool) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if signed and value >> (bits - 1) else value
