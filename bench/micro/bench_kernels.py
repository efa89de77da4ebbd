"""Kernels: GB/s of input for each dtype, on a chunk of 128 KiB and 4 contributions."""

from __future__ import annotations

import pytest

from bench.micro.measure import Measure
from reducer.kernels import KernelSet, _numpy, load
from reducer.wire.codes import ITEM_SIZES, DType, ReduceOp

SIZE = 128 << 10
WORLD = 4
OPS = (ReduceOp.SUM, ReduceOp.MIN)
PLAIN = [DType(dtype) for dtype in ITEM_SIZES]


@pytest.fixture(scope="module")
def kernels() -> KernelSet:
    return load("native")


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


@pytest.mark.parametrize("size", [80, 64 << 10, 1 << 20])
def test_crc32c(measure: Measure, kernels: KernelSet, size: int) -> None:
    data = bytes(range(16)) * (size // 16)
    assert measure(lambda: kernels.crc32c(data), size=size) == _numpy.crc32c(data)
