"""Sums and means of quantised blocks: both sets of kernels, on each instruction set."""

from __future__ import annotations

import numpy as np
import pytest

from reducer.kernels import PART_SHIFT, KernelSet, _numpy
from reducer.wire.codes import BLOCKS, TO_BFLOAT16, DType, Flag, ReduceOp
from reducer.wire.sizes import result_bytes
from tests.support.blocks import FORMATS, LARGEST, decoded, drawn, quantised
from tests.support.unaligned import unaligned


def contributions(dtype: DType, world: int, count: int, kind: str = "normal") -> list[memoryview]:
    parts = [drawn(kind, count + rank)[:count] for rank in range(world)]
    return [quantised(_numpy, dtype, part)[0] for part in parts]


def finish(
    kernels: KernelSet, op: ReduceOp, dtype: DType, count: int, parts: list[memoryview]
) -> tuple[bytes, int]:
    out = unaligned(result_bytes(dtype, count))
    flags = kernels.finish(op, dtype, count, len(parts), None, parts, out)
    return bytes(out), flags


@pytest.mark.parametrize("dtype", sorted(BLOCKS))
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.MEAN])
def test_sums_are_exact_bit_for_bit(kernels: KernelSet, op: ReduceOp, dtype: DType) -> None:
    for world, count in [(1, 300), (2, 0), (3, 257), (5, 2_049), (4, 5_000)]:
        parts = contributions(dtype, world, count)
        total = decoded(_numpy, dtype, count, parts[0]).copy()
        for part in parts[1:]:
            total += decoded(_numpy, dtype, count, part)
        if op == ReduceOp.MEAN:
            total /= np.float32(world)
        got, flags = finish(kernels, op, dtype, count, parts)
        assert flags == 0
        if dtype in TO_BFLOAT16:
            expected = unaligned(2 * count)
            _numpy.narrow(DType.BFLOAT16, count, total, expected)
        else:
            expected, _ = quantised(_numpy, dtype, total)
        assert got == bytes(expected), (world, count)


@pytest.mark.parametrize("dtype", sorted(BLOCKS))
def test_splitting_the_parts_changes_no_bit(kernels: KernelSet, dtype: DType) -> None:
    world, count = 5, 4_500
    parts = contributions(dtype, world, count, "any size")
    whole = finish(_numpy, ReduceOp.MEAN, dtype, count, parts)
    for folded in range(1, world + 1):
        acc = unaligned(4 * count)
        kernels.fold(ReduceOp.MEAN, dtype, count, acc, parts[:1], True)
        kernels.fold(ReduceOp.MEAN, dtype, count, acc, parts[1:folded], False)
        out = unaligned(result_bytes(dtype, count))
        kernels.finish(ReduceOp.MEAN, dtype, count, world, acc, parts[folded:], out)
        assert bytes(out) == whole[0], folded


@pytest.mark.parametrize("dtype", sorted(BLOCKS))
def test_the_first_part_that_is_not_finite_is_named(kernels: KernelSet, dtype: DType) -> None:
    count = 2_500
    for bad in (1, 2):
        sources = [drawn("normal", count) for _ in range(4)]
        sources[bad][2_400] = sources[3][10] = np.nan
        parts = [quantised(_numpy, dtype, source)[0] for source in sources]
        acc = unaligned(4 * count)
        expected = Flag.NONFINITE | (bad + 1) << PART_SHIFT
        assert kernels.fold(ReduceOp.SUM, dtype, count, acc, parts, True) == expected
        assert finish(kernels, ReduceOp.SUM, dtype, count, parts)[1] == expected | Flag.NAN


@pytest.mark.parametrize("dtype", sorted(BLOCKS))
def test_a_sum_that_grows_too_large_is_nobody_s(kernels: KernelSet, dtype: DType) -> None:
    source = np.full(300, LARGEST, "<f4")
    source[:256] = 1
    parts = [quantised(_numpy, dtype, source)[0]] * 2
    got, flags = finish(kernels, ReduceOp.SUM, dtype, 300, parts)
    if dtype in TO_BFLOAT16:
        assert flags == Flag.NONFINITE  # Inf
    else:
        assert flags == Flag.NONFINITE | Flag.NAN
        values = decoded(kernels, dtype, 300, got)
        assert np.isnan(values[256:]).all()
        assert np.allclose(values[:256], 2)


def test_codes_and_scales_that_nobody_should_send(kernels: KernelSet) -> None:
    def named(dtype: DType, block: bytes) -> int:
        acc = unaligned(4 * (len(block) - 4))
        return kernels.fold(ReduceOp.SUM, dtype, len(block) - 4, acc, [memoryview(block)], True)

    one, huge, inf = (np.float32(v).tobytes() for v in (1, LARGEST / 101, np.inf))
    culprit = Flag.NONFINITE | 1 << PART_SHIFT
    assert named(DType.FLOAT8_E4M3FN_BLOCKS, one + b"\x00\x7e\xfe") == 0
    assert named(DType.FLOAT8_E4M3FN_BLOCKS, one + b"\x00\x7f\xfe") == culprit
    assert named(DType.FLOAT8_E4M3FN_BLOCKS, one + b"\x00\x7e\xff") == culprit
    assert named(DType.INT8_BLOCKS, one + b"\x80\x7f") == 0
    assert named(DType.INT8_BLOCKS, huge + b"\x40\x9c") == 0  # 64, -100
    assert named(DType.INT8_BLOCKS, huge + b"\x40\x80") == culprit
    assert named(DType.INT8_BLOCKS, inf + b"\x00\x00") == culprit
    assert decoded(kernels, DType.INT8_BLOCKS, 2, one + b"\x80\x7f").tolist() == [-128, 127]


@pytest.mark.parametrize("dtype", FORMATS)
def test_a_result_may_begin_where_a_part_or_the_accumulator_begins(
    kernels: KernelSet, dtype: DType
) -> None:
    count = 5_000
    parts = contributions(dtype, 3, count)
    expected, _ = finish(_numpy, ReduceOp.SUM, dtype, count, parts)
    for place in range(3):
        copies = [unaligned(bytes(part)) for part in parts]
        kernels.finish(ReduceOp.SUM, dtype, count, 3, None, copies, copies[place])
        assert bytes(copies[place]) == expected
    acc = unaligned(4 * count)
    kernels.fold(ReduceOp.SUM, dtype, count, acc, parts, True)
    kernels.finish(ReduceOp.SUM, dtype, count, 3, acc, [], acc)
    assert bytes(acc[: len(expected)]) == expected
