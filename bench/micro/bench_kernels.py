"""Kernels: GB/s of input for each dtype, on a chunk of 128 KiB and 4 contributions."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from bench.micro.measure import Measure
from reducer.kernels import KernelSet, _numpy, load
from reducer.wire.codes import BLOCKS, ITEM_SIZES, TO_BFLOAT16, DType, ReduceOp
from reducer.wire.sizes import contribution_bytes, result_bytes

SIZE = 128 << 10
WORLD = 4
OPS = (ReduceOp.SUM, ReduceOp.MIN)
PLAIN = [DType(dtype) for dtype in ITEM_SIZES]
FORMATS = sorted(BLOCKS - TO_BFLOAT16)
SIZES = (SIZE, 64 << 20)  # of float32: in the cache of a core, and beyond it


def contributions(dtype: DType) -> list[bytes]:
    """Small numbers of the dtype."""
    item = ITEM_SIZES[dtype]
    return [bytes([rank + 1, *bytes(item - 1)]) * (SIZE // item) for rank in range(WORLD)]


@pytest.mark.parametrize("dtype", PLAIN, ids=lambda dtype: dtype.name.lower())
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name.lower())
def test_fold(measure: Measure, kernels: KernelSet, op: ReduceOp, dtype: DType) -> None:
    count = SIZE // ITEM_SIZES[dtype]
    parts = contributions(dtype)
    acc = bytearray(count * kernels.acc_itemsize(op, dtype))
    measure(lambda: kernels.fold(op, dtype, count, acc, parts, True), size=WORLD * SIZE)
    expected = bytearray(len(acc))
    _numpy.fold(op, dtype, count, expected, parts, True)
    assert acc == expected


@pytest.mark.parametrize("dtype", PLAIN, ids=lambda dtype: dtype.name.lower())
@pytest.mark.parametrize("op", [*OPS, ReduceOp.MEAN], ids=lambda op: op.name.lower())
def test_finish(measure: Measure, kernels: KernelSet, op: ReduceOp, dtype: DType) -> None:
    count = SIZE // ITEM_SIZES[dtype]
    parts = contributions(dtype)
    out = bytearray(SIZE)
    measure(lambda: kernels.finish(op, dtype, count, WORLD, None, parts, out), size=WORLD * SIZE)
    expected = bytearray(SIZE)
    _numpy.finish(op, dtype, count, WORLD, None, parts, expected)
    assert out == expected


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16], ids=lambda d: d.name.lower())
def test_narrow(measure: Measure, kernels: KernelSet, dtype: DType) -> None:
    source, out = contributions(DType.FLOAT32)[0], bytearray(SIZE // 2)
    measure(lambda: kernels.narrow(dtype, SIZE // 4, source, out), size=SIZE)
    expected = bytearray(SIZE // 2)
    _numpy.narrow(dtype, SIZE // 4, source, expected)
    assert out == expected


@cache
def gradient(size: int, seed: int = 0) -> Any:
    """Float32 in ``size`` bytes."""
    return np.random.default_rng(seed).standard_normal(size // 4, np.float32)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic", "residual"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", FORMATS, ids=lambda dtype: dtype.name.lower())
def test_quantise(
    measure: Measure, kernels: KernelSet, dtype: DType, size: int, rounding: str
) -> None:
    """GB/s of float32."""
    source, count = gradient(size), size // 4
    out = bytearray(contribution_bytes(dtype, count))
    residual = bytearray(size) if rounding == "residual" else None
    seed = 1 if rounding == "stochastic" else None
    measure(lambda: kernels.quantise(dtype, count, source, out, residual, seed), size=size)
    if size == SIZE and residual is None:
        expected = bytearray(len(out))
        _numpy.quantise(dtype, count, source, expected, None, seed)
        assert out == expected


def block_parts(dtype: DType, count: int) -> list[bytes]:
    parts = []
    for rank in range(WORLD):
        part = bytearray(contribution_bytes(dtype, count))
        load().quantise(dtype, count, gradient(4 * count, rank), part)
        parts.append(bytes(part))
    return parts


@pytest.mark.parametrize("dtype", FORMATS, ids=lambda dtype: dtype.name.lower())
def test_dequantise(measure: Measure, kernels: KernelSet, dtype: DType) -> None:
    """GB/s of float32."""
    part, out = block_parts(dtype, SIZE // 4)[0], bytearray(SIZE)
    measure(lambda: kernels.dequantise(dtype, SIZE // 4, part, out), size=SIZE)
    expected = bytearray(SIZE)
    _numpy.dequantise(dtype, SIZE // 4, part, expected)
    assert out == expected


@pytest.mark.parametrize("dtype", [DType.FLOAT32, *FORMATS], ids=lambda dtype: dtype.name.lower())
def test_add(measure: Measure, kernels: KernelSet, dtype: DType) -> None:
    """Fold one part into an accumulator: elements for each second, as GB/s of float32."""
    count = SIZE // 4
    part = block_parts(dtype, count)[0] if dtype in BLOCKS else gradient(SIZE).tobytes()
    acc = bytearray(SIZE)
    measure(lambda: kernels.fold(ReduceOp.SUM, dtype, count, acc, [part], False), size=SIZE)


@pytest.mark.parametrize("dtype", sorted(BLOCKS), ids=lambda dtype: dtype.name.lower())
def test_finish_blocks(measure: Measure, kernels: KernelSet, dtype: DType) -> None:
    """GB/s of the float32 that the contributions stand for."""
    count, op = SIZE // 4, ReduceOp.MEAN
    parts = block_parts(dtype, count)
    out = bytearray(result_bytes(dtype, count))
    measure(lambda: kernels.finish(op, dtype, count, WORLD, None, parts, out), size=WORLD * SIZE)
    expected = bytearray(len(out))
    _numpy.finish(op, dtype, count, WORLD, None, parts, expected)
    assert out == expected


@pytest.mark.parametrize("size", [80, 64 << 10, 1 << 20])
def test_crc32c(measure: Measure, kernels: KernelSet, size: int) -> None:
    data = bytes(range(16)) * (size // 16)
    assert measure(lambda: kernels.crc32c(data), size=size) == _numpy.crc32c(data)
