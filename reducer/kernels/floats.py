"""Floats that NumPy lacks, held as their bits: bfloat16 and the two float8 formats of OCP OFP8.

Written for readability, as the NumPy kernels are. float32 represents each of these values exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reducer.wire.codes import DType

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class _Float8:
    """``limit``: the first magnitude that is not finite; ``nan``: the canonical NaN."""

    exponent_bits: int
    bias: int
    limit: int
    nan: int

    def magnitudes(self) -> Array:
        """The values of codes 0 to 127 as if the format had no Inf or NaN; ascending float64."""
        mantissa_bits = 7 - self.exponent_bits
        codes = np.arange(128)
        exponents, fractions = codes >> mantissa_bits, codes & ((1 << mantissa_bits) - 1)
        hidden = np.where(exponents > 0, 1 << mantissa_bits, 0)
        scale = np.maximum(exponents, 1) - self.bias - mantissa_bits
        values: Array = np.ldexp((hidden + fractions).astype("<f8"), scale)
        return values

    @property
    def has_infinity(self) -> bool:
        return self.limit < self.nan

    def decode(self, bits: Array) -> Array:
        values = self.magnitudes()
        values[self.limit :] = np.nan
        if self.has_infinity:
            values[self.limit] = np.inf
        magnitudes = values[bits & 0x7F]
        signed: Array = np.where(bits & 0x80, -magnitudes, magnitudes).astype("<f4")
        return signed

    def encode(self, values: Array) -> Array:
        levels = self.magnitudes()[: self.limit + 1]
        between = (levels[:-1] + levels[1:]) / 2
        magnitudes = np.abs(values.astype("<f8"))
        codes = np.searchsorted(between, magnitudes)  # for a tie, the lower level
        tie = np.append(between, np.inf)[codes] == magnitudes
        codes += tie & (codes < self.limit) & (codes % 2 == 1)
        signed = codes | np.where(np.signbit(values), 0x80, 0)
        nan = np.isnan(values) | ((codes == self.limit) & (not self.has_infinity))
        bits: Array = np.where(nan, self.nan, signed).astype("u1")
        return bits


_FLOAT8 = {
    DType.FLOAT8_E4M3FN: _Float8(exponent_bits=4, bias=7, limit=0x7F, nan=0x7F),
    DType.FLOAT8_E5M2: _Float8(exponent_bits=5, bias=15, limit=0x7C, nan=0x7E),
}


def to_float32(dtype: int, bits: Array) -> Array:
    """The values of ``bits`` as a new array."""
    if dtype == DType.BFLOAT16:
        return (bits.astype("<u4") << 16).view("<f4")
    return _FLOAT8[DType(dtype)].decode(bits)


def from_float32(dtype: int, values: Array) -> Array:
    """The bits of ``values`` rounded to nearest, ties to even, with canonical NaN.

    A value beyond the largest finite number becomes Inf, or NaN if the dtype has no Inf.
    """
    if dtype != DType.BFLOAT16:
        return _FLOAT8[DType(dtype)].encode(values)
    wide = values.view("<u4").astype("<u8")  # room for the carry
    bits = (wide + 0x7FFF + ((wide >> 16) & 1)) >> 16
    bits[np.isnan(values)] = 0x7FC0
    narrow: Array = bits.astype("<u2")
    return narrow
