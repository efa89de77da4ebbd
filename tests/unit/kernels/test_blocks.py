"""Quantised blocks: both sets of kernels, and each instruction set, give the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from reducer.kernels import KernelSet, _native, _numpy
from reducer.kernels._numpy_blocks import blocks_bytes
from reducer.wire.codes import BLOCKS, DType, Flag, ReduceOp
from reducer.wire.sizes import contribution_bytes, result_bytes
from tests.support.blocks import FORMATS, KINDS, LARGEST, Floats, decoded, drawn, quantised
from tests.support.counts import draws
from tests.support.unaligned import unaligned

SEED = 0x0123456789ABCDEF
LIMITS = dict(zip(FORMATS, (127.0, 448.0, 1.0), strict=True))


def outcome(
    kernels: KernelSet, dtype: DType, source: Floats, residual: Floats | None, seed: int | None
) -> tuple[int, bytes, bytes, bytes]:
    out = unaligned(contribution_bytes(dtype, source.size))
    error = None if residual is None else unaligned(residual.tobytes(), 2)
    view = unaligned(source.tobytes(), 2)
    flags = kernels.quantise(dtype, source.size, view, out, error, seed)
    values = decoded(kernels, dtype, source.size, out)
    return flags, bytes(out), bytes(error or b""), values.tobytes()


@pytest.fixture(params=_native.levels())
def native(request: pytest.FixtureRequest) -> Iterator[KernelSet]:
    _native.use_level(request.param)
    yield _native
    _native.use_level(_native.levels()[0])


def all_values(dtype: DType) -> Any:
    """The finite values of the codes in float64, ascending, for scale 1."""
    nibbles = np.arange(16, dtype="u1") * 17
    every = np.resize(nibbles, 128) if dtype == DType.E3M0_BLOCKS else np.arange(256, dtype="u1")
    values = decoded(_numpy, dtype, 256, np.float32(1).tobytes() + every.tobytes())
    return np.unique(values[np.isfinite(values)].astype("f8"))


def test_every_instruction_set_gives_the_bits_of_numpy() -> None:
    random_lengths = np.random.default_rng(0).integers(600, 3000, draws(10, 300))
    for number, count in enumerate([*range(600), *map(int, random_lengths)]):
        kind = list(KINDS)[number % len(KINDS)]
        source, residual = drawn(kind, count), drawn("normal", count)
        dtype = FORMATS[number // len(KINDS) % 3]
        for seed in (None, SEED + number):
            for error in (None, residual):
                expected = outcome(_numpy, dtype, source, error, seed)
                for name in _native.levels():
                    _native.use_level(name)
                    got = outcome(_native, dtype, source, error, seed)
                    assert got == expected, (name, dtype, kind, count, seed)
    _native.use_level(_native.levels()[0])


@pytest.mark.parametrize("dtype", FORMATS)
def test_every_instruction_set_decodes_any_bytes(dtype: DType) -> None:
    rng = np.random.default_rng(dtype)
    for count in (*range(0, 600, 7), 255, 256, 257, 2048, 2049):
        blocks = rng.bytes(contribution_bytes(dtype, count))
        expected = decoded(_numpy, dtype, count, blocks)
        for name in _native.levels():
            _native.use_level(name)
            got = decoded(_native, dtype, count, blocks)
            assert got.tobytes() == expected.tobytes(), (name, count)
    _native.use_level(_native.levels()[0])


def test_sizes_are_those_of_the_wire() -> None:
    for dtype in BLOCKS:
        for count in (0, 1, 2, 255, 256, 257, 511, 512, 100_000):
            assert blocks_bytes(dtype, count) == contribution_bytes(dtype, count)


def test_one_block_by_hand(kernels: KernelSet) -> None:
    source: Floats = np.array([1.0, -0.5, 0.25, 0.004, -1e-9], "<f4")
    scale = np.float32(1) / np.float32(127)
    blocks, _ = quantised(kernels, DType.INT8_BLOCKS, source)
    assert bytes(blocks) == scale.tobytes() + np.array([127, -64, 32, 1, 0], "i1").tobytes()
    scale = np.float32(1) / np.float32(448)
    blocks, _ = quantised(kernels, DType.FLOAT8_E4M3FN_BLOCKS, source)
    assert bytes(blocks) == scale.tobytes() + bytes([0x7E, 0xF6, 0x6E, 0x3E, 0x80])
    blocks, _ = quantised(kernels, DType.E3M0_BLOCKS, source)
    assert bytes(blocks) == np.float32(1).tobytes() + bytes([0x07, 0x8E, 0x05])


@pytest.mark.parametrize("dtype", FORMATS)
def test_nearest_is_the_nearest_of_all_codes(kernels: KernelSet, dtype: DType) -> None:
    source = np.abs(drawn("normal", 256))
    source[:3] = LIMITS[dtype] * np.array([1, 2.0**-7, 1.5 * 2.0**-6])
    source[3:] *= LIMITS[dtype] / (8 * source[3:].max())
    blocks, _ = quantised(kernels, dtype, source)
    got = decoded(kernels, dtype, 256, blocks)
    least = np.abs(all_values(dtype) - source.astype("f8")[:, None]).min(axis=1)
    assert (np.abs(got - source.astype("f8")) <= least).all()


@pytest.mark.parametrize("dtype", FORMATS)
def test_a_block_that_is_not_finite_is_nan_as_a_whole(kernels: KernelSet, dtype: DType) -> None:
    for bad in (np.inf, -np.inf, np.nan):
        for place in (256, 300, 511):
            source = drawn("normal", 600)
            before = drawn("normal", 600)
            residual = before.copy()
            source[place] = bad
            blocks = unaligned(contribution_bytes(dtype, 600))
            assert kernels.quantise(dtype, 600, source, blocks, residual) == Flag.NONFINITE
            got = decoded(kernels, dtype, 600, blocks)
            assert (got[256:512].view("<u4") == 0x7FC00000).all()
            assert np.isfinite(got[:256]).all()
            assert np.isfinite(got[512:]).all()
            assert (residual[256:512] == before[256:512]).all()
            assert (residual[:256] != before[:256]).any()


@pytest.mark.parametrize("dtype", FORMATS)
def test_the_largest_numbers_stay_finite(kernels: KernelSet, dtype: DType) -> None:
    source = np.full(256, LARGEST, "<f4")
    blocks, flags = quantised(kernels, dtype, source)
    assert flags == 0
    assert np.allclose(decoded(kernels, dtype, 256, blocks) / LARGEST, 1, atol=1e-6)


@pytest.mark.parametrize("dtype", FORMATS)
def test_a_small_block_goes_into_the_residual(kernels: KernelSet, dtype: DType) -> None:
    source = np.full(256, 2.0**-101, "<f4")
    residual = np.full(256, 1e-40, "<f4")
    blocks = unaligned(contribution_bytes(dtype, 256))
    assert kernels.quantise(dtype, 256, source, blocks, residual) == 0
    assert not any(blocks)
    assert (residual == source + np.float32(1e-40)).all()


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("seed", [None, SEED])
def test_what_the_blocks_lack_is_in_the_residual(
    kernels: KernelSet, dtype: DType, seed: int | None
) -> None:
    source, residual = drawn("normal", 1000), drawn("any size", 1000) % np.float32(1)
    total = source + residual
    blocks = unaligned(contribution_bytes(dtype, 1000))
    kernels.quantise(dtype, 1000, source, blocks, residual, seed)
    lacks = total.astype("f8") - decoded(kernels, dtype, 1000, blocks)
    assert np.abs(residual - lacks).max() <= 2.0**-24 * np.abs(lacks).max()
    assert 0 < np.abs(lacks).max() < np.abs(total).max() / 2


@pytest.mark.parametrize("dtype", FORMATS)
def test_stochastic_rounding_is_right_in_the_mean(native: KernelSet, dtype: DType) -> None:
    """The mean of many draws is the value, within the deviation of such a mean."""
    limit, times = LIMITS[dtype], draws(2_000, 40_000)
    source = np.linspace(-0.99, 0.99, 256, dtype="<f4") ** 3 * np.float32(limit)
    source[0] = limit
    source[1:9] = np.float32(limit) * 2.0 ** -np.arange(6, 14)
    values, exact = all_values(dtype), source.astype("f8")
    above = np.searchsorted(values, exact).clip(1)
    step = values[above] - values[above - 1]
    deviation = np.sqrt((exact - values[above - 1]) * (values[above] - exact) / times)
    total = np.zeros(256)
    for seed in range(times):
        blocks, _ = quantised(native, dtype, source, seed * 0x9E3779B97F4A7C15 % (1 << 64))
        total += decoded(native, dtype, 256, blocks)
    off = total / times - exact
    assert (np.abs(off) <= 4 * deviation + step / times).all()
    assert abs((off / step).sum()) < 3 * np.sqrt(((deviation / step) ** 2).sum())


def test_random_bits_depend_on_the_place_and_the_seed(kernels: KernelSet) -> None:
    source = np.full(2048, 0.5, "<f4")
    source[::256] = 127
    blocks, _ = quantised(kernels, DType.INT8_BLOCKS, source, SEED)
    whole = decoded(kernels, DType.INT8_BLOCKS, 2048, blocks).reshape(8, 256)[:, 1:]
    assert 0.45 < whole.mean() < 0.55
    assert len({row.tobytes() for row in whole}) == 8
    others = [quantised(kernels, DType.INT8_BLOCKS, source, SEED ^ bit)[0] for bit in (1, 1 << 32)]
    assert len({bytes(blocks), *map(bytes, others)}) == 3


def test_seeds_differ(kernels: KernelSet) -> None:
    seeds = {kernels.blocks_seed(*numbers) for numbers in np.ndindex(5, 5, 5, 5)}
    assert len(seeds) == 5**4
    assert kernels.blocks_seed(1, 2, 3, 4) == 0xEB7354622D65F29E
    big = ((1 << 64) - 1, (1 << 64) - 2, (1 << 24) - 1, 8_191)
    assert kernels.blocks_seed(*big) == _numpy.blocks_seed(*big)


def test_nothing_is_written_beyond_count(kernels: KernelSet) -> None:
    for dtype in sorted(BLOCKS):
        for count in (0, 1, 37, 256, 300):
            source, size = drawn("normal", count), contribution_bytes(dtype, count)
            blocks = bytearray(b"\xa5" * (size + 9))
            values, residual = bytearray(b"\xa5" * (4 * count + 9)), bytearray(4 * count + 9)
            kernels.quantise(dtype, count, source, blocks, residual)
            kernels.dequantise(dtype, count, blocks, values)
            kernels.fold(ReduceOp.SUM, dtype, count, values, [blocks], True)
            assert blocks[size:] == values[4 * count :] == b"\xa5" * 9
            assert not any(residual[4 * count :])
            size = result_bytes(dtype, count)
            out = bytearray(b"\xa5" * (size + 9))
            kernels.finish(ReduceOp.SUM, dtype, count, 1, None, [blocks], out)
            assert out[size:] == b"\xa5" * 9


def test_bad_arguments_are_refused_before_a_byte_is_written(kernels: KernelSet) -> None:
    int8, to_bfloat16 = DType.INT8_BLOCKS, DType.INT8_BLOCKS_TO_BFLOAT16
    values: Any = np.ones(8, "<f4")
    blocks: Any = np.full(12, 7, "u1")
    memory: Any = np.ones(64, "u1")
    with pytest.raises(ValueError, match="out: expected at least 12 bytes, got 11"):
        kernels.quantise(int8, 8, values, blocks[:11])
    with pytest.raises(ValueError, match="source: expected at least 32 bytes, got 28"):
        kernels.quantise(int8, 8, values[:7], blocks)
    with pytest.raises(ValueError, match="residual: expected at least 32 bytes, got 28"):
        kernels.quantise(int8, 8, values, blocks, values[:7])
    with pytest.raises(ValueError, match="out overlaps source"):
        kernels.quantise(int8, 8, memory, memory[20:])
    with pytest.raises(ValueError, match="residual overlaps source"):
        kernels.quantise(int8, 8, values, blocks, values)
    with pytest.raises(ValueError, match="residual overlaps out"):
        kernels.quantise(int8, 8, values, memory, memory[8:])
    with pytest.raises(ValueError, match="out overlaps blocks"):
        kernels.dequantise(int8, 8, memory, memory)
    with pytest.raises(ValueError, match="blocks: expected at least 12 bytes, got 11"):
        kernels.dequantise(int8, 8, blocks[:11], values)
    with pytest.raises(ValueError, match="count must not be negative, got -1"):
        kernels.dequantise(int8, -1, blocks, values)
    for dtype in (DType.INT8, 19):
        with pytest.raises(ValueError, match=f"a dtype of blocks, 13 to 18, got {int(dtype)}"):
            kernels.quantise(dtype, 8, values, blocks)
        with pytest.raises(ValueError, match=f"a dtype of blocks, 13 to 18, got {int(dtype)}"):
            kernels.dequantise(dtype, 8, blocks, values)
    for op in (ReduceOp.MIN, ReduceOp.PROD, ReduceOp.BXOR):
        with pytest.raises(ValueError, match=f"op {int(op)} of dtype 13: blocks have only sum"):
            kernels.acc_itemsize(op, int8)
    with pytest.raises(ValueError, match=r"parts\[0\]: expected at least 12 bytes, got 11"):
        kernels.fold(ReduceOp.SUM, int8, 8, values, [blocks[:11]], True)
    with pytest.raises(ValueError, match="acc: expected at least 32 bytes, got 28"):
        kernels.fold(ReduceOp.SUM, int8, 8, values[:7], [blocks], True)
    with pytest.raises(ValueError, match=r"acc overlaps parts\[0\]"):
        kernels.fold(ReduceOp.SUM, int8, 8, memory, [memory, blocks], True)
    with pytest.raises(ValueError, match=r"out overlaps parts\[0\], but begins"):
        kernels.finish(ReduceOp.SUM, int8, 8, 1, None, [memory], memory[4:])
    with pytest.raises(ValueError, match=r"out overlaps parts\[0\], which is shorter"):
        kernels.finish(ReduceOp.SUM, to_bfloat16, 8, 1, None, [memory], memory)
    with pytest.raises(ValueError, match="out: expected at least 16 bytes, got 15"):
        kernels.finish(ReduceOp.SUM, to_bfloat16, 8, 1, None, [blocks], memory[:15])
    assert (memory == 1).all()
    assert (values == 1).all()
    assert (blocks == 7).all()
