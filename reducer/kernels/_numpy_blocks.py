"""Quantised blocks in NumPy (PROTOCOL.md, section 5), the reference for C.

A code without its sign is an index in a table of values. Rounding searches this table: to nearest
by the middles between values, stochastic by the distances to the two neighbours, in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from reducer.kernels._views import Array, elements, overlap
from reducer.kernels.floats import to_float32
from reducer.wire.codes import BLOCK_ELEMENTS, DType, Flag

if TYPE_CHECKING:
    from typing_extensions import Buffer  # collections.abc.Buffer is new in Python 3.12

__all__ = ["blocks_bytes", "blocks_of", "blocks_seed", "dequantise", "encode", "quantise", "values"]

_FLOAT32 = np.dtype("<f4")
_BYTE = np.dtype("u1")
_NAN = np.array(0x7FC00000, "<u4").view("<f4")  # the canonical one
_LEAST = np.float32(2.0**-100)  # a block of smaller elements becomes 0
_SCALE_BYTES = 4
_LOW_32 = (1 << 32) - 1
_LOW_64 = (1 << 64) - 1


@dataclass(frozen=True)
class _Format:
    """``values``: of the codes from 0 on, ascending; the last one is the limit.

    ``sign``: the bit of the sign; 0 if codes are in two's complement. ``random_bits``: how many of
    32 random bits decide.
    """

    values: Array
    sign: int
    random_bits: int
    ties_to_even: bool = True
    codes_in_byte: int = 1

    @property
    def limit(self) -> Any:
        return np.float32(self.values[-1])

    def block_bytes(self, count: int) -> int:
        return _SCALE_BYTES + -(-count // self.codes_in_byte)

    def nearest(self, y: Array) -> Array:
        middles = (self.values[:-1] + self.values[1:]) / 2
        magnitudes = np.abs(y.astype("<f8"))
        indices = np.searchsorted(middles, magnitudes)  # for a tie, the lower one
        ties = np.append(middles, np.inf)[indices] == magnitudes
        indices += ties & (indices % 2 == 1) if self.ties_to_even else ties
        return self._signed(indices, y)

    def stochastic(self, y: Array, random: Array) -> Array:
        random = random >> (32 - self.random_bits)
        whole = 1 << self.random_bits
        if not self.sign:
            floor = np.floor(y + random.astype("<f4") / np.float32(whole))
            return self._signed(np.minimum(np.abs(floor), self.limit).astype(int), floor)
        magnitudes = np.abs(y.astype("<f8"))
        last = len(self.values) - 1
        indices = np.searchsorted(self.values, magnitudes, side="right") - 1
        below, above = self.values[indices], self.values[np.minimum(indices + 1, last)]
        with np.errstate(invalid="ignore"):  # at the limit there is no neighbour above
            steps = np.rint((magnitudes - below) / (above - below) * whole)
        indices += (steps + random >= whole) & (indices < last)
        return self._signed(indices, y)

    def _signed(self, indices: Array, y: Array) -> Array:
        if not self.sign:
            return np.where(y < 0, -indices, indices).astype("i1").view(_BYTE)
        return (indices | np.where(np.signbit(y), self.sign, 0)).astype(_BYTE)

    def decoded(self, codes: Array) -> Array:
        """float32 values of ``codes``."""
        if not self.sign:
            return codes.view("i1").astype(_FLOAT32)
        table = np.append(self.values, np.nan)  # e4m3fn has NaN behind the largest value
        magnitudes = table[codes & (self.sign - 1)]
        signed: Array = np.where(codes & self.sign, -magnitudes, magnitudes).astype(_FLOAT32)
        return signed


def _values_of_e4m3fn() -> Array:
    return to_float32(DType.FLOAT8_E4M3FN, np.arange(0x7F, dtype=_BYTE)).astype("<f8")


_INT8 = _Format(np.arange(128.0), sign=0, random_bits=24)
_E4M3FN = _Format(_values_of_e4m3fn(), sign=0x80, random_bits=20)
_E3M0 = _Format(
    np.array([0.0, *(2.0 ** (level - 7) for level in range(1, 8))]),
    sign=0x8,
    random_bits=23,
    ties_to_even=False,
    codes_in_byte=2,
)
_FORMATS: dict[int, _Format] = {
    DType.INT8_BLOCKS: _INT8,
    DType.FLOAT8_E4M3FN_BLOCKS: _E4M3FN,
    DType.E3M0_BLOCKS: _E3M0,
    DType.INT8_BLOCKS_TO_BFLOAT16: _INT8,
    DType.FLOAT8_E4M3FN_BLOCKS_TO_BFLOAT16: _E4M3FN,
    DType.E3M0_BLOCKS_TO_BFLOAT16: _E3M0,
}


def blocks_bytes(dtype: int, count: int) -> int:
    """Bytes of ``count`` elements."""
    form = _FORMATS[dtype]
    whole, rest = divmod(count, BLOCK_ELEMENTS)
    return whole * form.block_bytes(BLOCK_ELEMENTS) + (form.block_bytes(rest) if rest else 0)


def blocks_seed(key: int, round: int, chunk: int, rank: int) -> int:
    return _mix64(_mix64(_mix64(key) ^ round) ^ (chunk << 16 | rank))


def blocks_of(name: str, dtype: int, data: Buffer, count: int, writable: bool = False) -> Array:
    """The bytes of ``count`` elements; raises as ``elements`` does."""
    needed = blocks_bytes(dtype, max(count, 0))
    return elements(name, data, _BYTE, count if count < 0 else needed, writable)


def quantise(
    dtype: int,
    count: int,
    source: Buffer,
    out: Buffer,
    residual: Buffer | None = None,
    seed: int | None = None,
) -> int:
    _require_blocks("quantise", dtype)
    array = elements("source", source, _FLOAT32, count)
    target = blocks_of("out", dtype, out, count, writable=True)
    if overlap(array, target):
        raise ValueError("quantise: out overlaps source")
    if residual is None:
        return encode(dtype, array, target, seed)
    error = elements("residual", residual, _FLOAT32, count, writable=True)
    for name, other in (("source", array), ("out", target)):
        if overlap(error, other):
            raise ValueError(f"quantise: residual overlaps {name}")
    with np.errstate(all="ignore"):
        total = array + error
        flags = encode(dtype, total, target, seed)
        for block in _slices(count):
            if np.isfinite(total[block]).all():
                error[block] = total[block] - values(dtype, target, block)
    return flags


def dequantise(dtype: int, count: int, blocks: Buffer, out: Buffer) -> None:
    _require_blocks("dequantise", dtype)
    raw = blocks_of("blocks", dtype, blocks, count)
    target = elements("out", out, _FLOAT32, count, writable=True)
    if overlap(raw, target):
        raise ValueError("dequantise: out overlaps blocks")
    for block in _slices(count):
        target[block] = values(dtype, raw, block)


def encode(dtype: int, array: Array, out: Array, seed: int | None = None) -> int:
    """Write the blocks of a float32 array to bytes. Returns NONFINITE or 0."""
    form = _FORMATS[dtype]
    flags = 0
    for block in _slices(array.size):
        at = out[blocks_bytes(dtype, block.start) : blocks_bytes(dtype, block.stop)]
        with np.errstate(all="ignore"):
            finite = _encode_block(form, array[block], block.start, seed, at)
        flags |= 0 if finite else int(Flag.NONFINITE)
    return flags


def values(dtype: int, raw: Array, span: slice) -> Array:
    """The float32 values of elements that begin with a block and end with one, or with ``raw``."""
    form = _FORMATS[dtype]
    found = np.empty(span.stop - span.start, _FLOAT32)
    for block in _slices(found.size):
        start, stop = (blocks_bytes(dtype, span.start + at) for at in (block.start, block.stop))
        scale = raw[start : start + _SCALE_BYTES].view(_FLOAT32)
        codes = _unpacked(form, raw[start + _SCALE_BYTES : stop], block.stop - block.start)
        with np.errstate(all="ignore"):
            found[block] = form.decoded(codes) * scale
    found[np.isnan(found)] = _NAN
    return found


def _encode_block(form: _Format, x: Array, first: int, seed: int | None, out: Array) -> bool:
    """Returns whether the block is finite."""
    out[:] = 0
    scale = out[:_SCALE_BYTES].view(_FLOAT32)
    largest = np.abs(x).max()
    if not np.isfinite(largest):
        scale[0] = _NAN
        return False
    if largest < _LEAST:
        return True
    scale[0] = largest / form.limit
    if np.isinf(scale[0] * form.limit):
        scale[0] = np.nextafter(scale[0], np.float32(0))
    y = x * (form.limit / largest)
    if seed is None:
        codes = form.nearest(y)
    else:
        codes = form.stochastic(y, _random(seed, np.arange(first, first + x.size)))
    out[_SCALE_BYTES:] = _packed(form, codes)
    return True


def _packed(form: _Format, codes: Array) -> Array:
    if form.codes_in_byte == 1:
        return codes
    half = -(-codes.size // 2)
    halves: Array = np.resize(np.append(codes, np.zeros(1, _BYTE)), (2, half))
    packed: Array = halves[0] | halves[1] << 4
    return packed


def _unpacked(form: _Format, packed: Array, count: int) -> Array:
    if form.codes_in_byte == 1:
        return packed
    return np.concatenate((packed & 15, packed >> 4))[:count]


def _random(seed: int, indices: Array) -> Array:
    """32 random bits for each element."""
    low, high = seed & _LOW_32, seed >> 32
    return _mix32(_mix32((low + indices.astype("<u8") * 0x9E3779B9) & _LOW_32) ^ high)


def _mix32(h: Array) -> Array:
    """The finalizer of MurmurHash3, on 32 bits in uint64."""
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & _LOW_32
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & _LOW_32
    mixed: Array = h ^ (h >> 16)
    return mixed


def _mix64(h: int) -> int:
    """The finalizer of SplitMix64."""
    h = ((h ^ (h >> 30)) * 0xBF58476D1CE4E5B9) & _LOW_64
    h = ((h ^ (h >> 27)) * 0x94D049BB133111EB) & _LOW_64
    return h ^ (h >> 31)


def _slices(count: int) -> Iterator[slice]:
    return (slice(at, min(at + BLOCK_ELEMENTS, count)) for at in range(0, count, BLOCK_ELEMENTS))


def _require_blocks(name: str, dtype: int) -> None:
    if dtype not in _FORMATS:
        raise ValueError(f"{name}: expected a dtype of blocks, 13 to 18, got {dtype}")
