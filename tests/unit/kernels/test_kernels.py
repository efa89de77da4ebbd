"""Every kernel, on each instruction set of this machine and in NumPy, equals exact arithmetic.

Without the native kernels these tests fail; they do not skip.
"""

from __future__ import annotations

import random
import re
import struct
from functools import cache
from itertools import product
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

from reducer.kernels import PART_SHIFT, KernelSet, _native, _numpy, load
from reducer.wire.codes import ITEM_SIZES, DType, Flag, ReduceOp
from tests.support import oracle
from tests.support.counts import draws
from tests.support.exact import FLOAT8, FLOATS, SIGNED, reduce_bits
from tests.support.unaligned import unaligned

OPS = [ReduceOp.SUM, ReduceOp.MEAN, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PROD]
BITWISE = [ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR]
INTEGERS = [DType(d) for d in ITEM_SIZES if d not in FLOATS]
PLAIN = [DType(d) for d in ITEM_SIZES]
CASES = [*product(OPS, PLAIN), *product(BITWISE, INTEGERS)]
WORLDS = (1, 2, 3, 5, 8)
LENGTHS = (0, 1, 3, 63, 64, 65, draws(257, 1000))

# -0, Inf, NaNs with payloads (one of them signalling), denormals, the largest
SPECIAL = {
    DType.FLOAT16: "0000 8000 7C00 FC00 7C01 FE55 0001 8001 03FF 7BFF FBFF",
    DType.BFLOAT16: "0000 8000 7F80 FF80 7F81 FFD5 0001 8001 007F 7F7F FF7F",
    DType.FLOAT32: "00000000 80000000 7F800000 FF800000 7F800001 FFC12345 00000001 80000001 "
    "007FFFFF 7F7FFFFF FF7FFFFF",
    DType.FLOAT64: "0000000000000000 8000000000000000 7FF0000000000000 FFF0000000000000 "
    "7FF0000000000001 FFF8000000000055 0000000000000001 8000000000000001 "
    "000FFFFFFFFFFFFF 7FEFFFFFFFFFFFFF FFEFFFFFFFFFFFFF",
    DType.FLOAT8_E4M3FN: "00 80 7F FF 7F FF 01 81 07 7E FE",
    DType.FLOAT8_E5M2: "00 80 7C FC 7D FF 01 81 03 7B FB",
}
ONE = {
    DType.FLOAT16: 0x3C00,
    DType.BFLOAT16: 0x3F80,
    DType.FLOAT8_E4M3FN: 0x38,
    DType.FLOAT8_E5M2: 0x3C,
    DType.FLOAT32: 0x3F800000,
    DType.FLOAT64: 0x3FF0 << 48,
}


def generator(*seed: object) -> np.random.Generator:
    return np.random.default_rng(list(repr(seed).encode()))


def contribution(rng: np.random.Generator, dtype: DType, count: int) -> bytes:
    """``count`` elements, mostly ordinary, some special."""
    item = ITEM_SIZES[dtype]
    unsigned = np.dtype(f"<u{item}")
    bits = np.frombuffer(rng.bytes(item * count), unsigned)  # any bits
    if dtype in FLOATS:
        special = np.array([int(bits, 16) for bits in SPECIAL[dtype].split()], unsigned)
        bits = np.where(rng.random(count) < 0.1, rng.choice(special, count), bits)
    elif rng.random() < 0.7:  # small, so no overflow
        bits = bits >> rng.choice(np.array((4, 8 * item - 4), unsigned), count)
    if dtype in FLOATS and rng.random() < 0.7:  # of similar size, so that every operand matters
        if dtype == DType.BFLOAT16:
            ordinary = (rng.normal(size=count).astype("<f4").view("<u4") >> 16).astype(unsigned)
        elif dtype in FLOAT8:
            signs = rng.choice(np.array((0, 0x80), unsigned), count)
            ordinary = signs | rng.integers(0x20, 0x48, count, unsigned)
        else:
            ordinary = rng.normal(size=count).astype(f"<f{item}").view(unsigned)
        bits = np.where(rng.random(count) < 0.9, ordinary, bits)
    return bits.tobytes()


def finish(kernels: KernelSet, op: int, dtype: DType, parts: list[bytes]) -> tuple[bytes, int]:
    count = len(parts[0]) // ITEM_SIZES[dtype]
    out = unaligned(len(parts[0]))
    views = [unaligned(part) for part in parts]
    flags = kernels.finish(op, dtype, count, len(parts), None, views, out)
    return bytes(out), flags


@cache
def drawn(
    op: ReduceOp, dtype: DType, world: int, count: int
) -> tuple[list[bytes], tuple[bytes, int]]:
    """Contributions, and the result of NumPy's kernels."""
    rng = generator(op, dtype, world, count)
    parts = [contribution(rng, dtype, count) for _ in range(world)]
    return parts, finish(_numpy, op, dtype, parts)


def together(said: list[tuple[int, int]]) -> int:
    """The flags of several calls for one chunk, each with the number of earlier parts."""
    flags = 0
    for _, got in said:
        flags |= got & 0xFFFF
    first = [begun + (got >> PART_SHIFT) for begun, got in said if got >> PART_SHIFT]
    return flags | min(first, default=0) << PART_SHIFT


@cache
def cases() -> list[tuple[ReduceOp, DType, list[bytes], tuple[bytes, int]]]:
    """(op, dtype, contributions, expected result)."""
    made = []
    for (op, dtype), world, count in product(CASES, WORLDS, LENGTHS):
        rng = generator(op, dtype, world, count)
        parts = [contribution(rng, dtype, count) for _ in range(world)]
        made.append((op, dtype, parts, reduce_bits(op, dtype, parts)))
    return made


def test_results_are_exact_bit_for_bit(kernels: KernelSet) -> None:
    for op, dtype, parts, expected in cases():
        got = finish(kernels, op, dtype, parts)
        assert got == expected, (op, dtype, len(parts), len(parts[0]))


def test_cases_hold_every_flag() -> None:
    seen = {(dtype in FLOATS, flags & 0xFFFF) for _, dtype, _, (_, flags) in cases()}
    not_a_number = Flag.NAN | Flag.NONFINITE
    floats = {(True, 0), (True, not_a_number), (True, Flag.NONFINITE)}
    assert seen == floats | {(False, 0), (False, Flag.OVERFLOW)}


@pytest.mark.parametrize(("op", "dtype"), CASES)
def test_splitting_the_parts_changes_no_bit(kernels: KernelSet, op: ReduceOp, dtype: DType) -> None:
    rng = random.Random(f"{op} {dtype}")
    beyond_numpys_block = [(2, 20_011)] if kernels is _numpy else []
    for world, count in [(2, 65), (5, 4097), *beyond_numpys_block]:
        parts, whole = drawn(op, dtype, world, count)
        assert finish(kernels, op, dtype, parts) == whole
        for folded in range(1, world + 1):
            acc = unaligned(count * kernels.acc_itemsize(op, dtype))
            views = [unaligned(part) for part in parts]
            out = unaligned(len(parts[0]))
            begun = rng.randint(1, folded)
            said = [
                (0, kernels.fold(op, dtype, count, acc, views[:begun], True)),
                (begun, kernels.fold(op, dtype, count, acc, views[begun:folded], False)),
                (folded, kernels.finish(op, dtype, count, world, acc, views[folded:], out)),
            ]
            assert (bytes(out), together(said)) == whole, (world, folded, begun)


@pytest.mark.parametrize(("op", "dtype"), CASES)
def test_out_may_be_an_operand(kernels: KernelSet, op: ReduceOp, dtype: DType) -> None:
    count, size = 4097, 4097 * ITEM_SIZES[dtype]
    parts, whole = drawn(op, dtype, 3, count)
    for target in range(3):
        views = [unaligned(part) for part in parts]
        flags = kernels.finish(op, dtype, count, 3, None, views, views[target])
        assert (bytes(views[target]), flags) == whole
        untouched = [i for i in range(3) if i != target]
        assert all(bytes(views[i]) == parts[i] for i in untouched)
    acc = unaligned(count * kernels.acc_itemsize(op, dtype))
    views = [unaligned(part) for part in parts]
    said = [(0, kernels.fold(op, dtype, count, acc, views[:2], True))]
    said += [(2, kernels.finish(op, dtype, count, 3, acc, views[2:], acc))]
    assert (bytes(acc[:size]), together(said)) == whole


@pytest.mark.parametrize(("op", "dtype"), CASES)
def test_the_first_part_may_be_the_accumulator_of_a_dtype_that_has_no_wider_one(
    kernels: KernelSet, op: ReduceOp, dtype: DType
) -> None:
    if kernels.acc_itemsize(op, dtype) != ITEM_SIZES[dtype]:
        acc = unaligned(b"\x3c" * 65 * kernels.acc_itemsize(op, dtype))
        before = bytes(acc)
        with pytest.raises(ValueError, match=r"acc overlaps parts\[0\]"):
            kernels.fold(op, dtype, 65, acc, [acc, bytes(len(acc))], True)
        assert bytes(acc) == before
        return
    count = 4097
    for world in (2, 3):
        parts, whole = drawn(op, dtype, world, count)
        views = [unaligned(part) for part in parts]
        out = unaligned(len(parts[0]))
        said = [(0, kernels.fold(op, dtype, count, views[0], views, True))]
        said += [(0, kernels.finish(op, dtype, count, world, views[0], [], out))]
        assert (bytes(out), together(said)) == whole
    with pytest.raises(ValueError, match=r"acc overlaps parts\[0\]"):
        kernels.fold(op, dtype, count, views[0], views[:1], True)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", OPS)
def test_one_bad_element_is_found_and_its_part_named(
    kernels: KernelSet, op: int, dtype: DType
) -> None:
    """At any place, in any part, and with the parts folded in any way."""
    item = ITEM_SIZES[dtype]
    ones = ONE[dtype].to_bytes(item, "little") * 4099
    bad = [int(bits, 16) for bits in SPECIAL[dtype].split()[2:6]]
    least = 2 if op in (ReduceOp.MIN, ReduceOp.MAX) else 0  # for which Inf is an ordinary number
    for count, at, bits, culprit in product((37, 4099), (0, 20, 2047, 4098), bad[least:], range(3)):
        if at >= count:
            continue
        parts = [bytearray(ones[: count * item]) for _ in range(3)]
        parts[culprit][at * item : at * item + item] = bits.to_bytes(item, "little")
        _, flags = finish(kernels, op, dtype, [bytes(part) for part in parts])
        assert (flags >> PART_SHIFT, flags & Flag.NONFINITE) == (culprit + 1, Flag.NONFINITE)
        views = [unaligned(bytes(part)) for part in parts]
        acc, out = unaligned(count * kernels.acc_itemsize(op, dtype)), unaligned(count * item)
        said = [(0, kernels.fold(op, dtype, count, acc, views[:2], True))]
        said += [(2, kernels.finish(op, dtype, count, 3, acc, views[2:], out))]
        assert together(said) == flags
        if kernels.acc_itemsize(op, dtype) == item:
            said = [(0, kernels.fold(op, dtype, count, views[0], views[:2], True))]
            said += [(2, kernels.finish(op, dtype, count, 3, views[0], views[2:], out))]
            assert together(said) == flags


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_sum_that_grows_too_large_is_nobody_s(kernels: KernelSet, dtype: DType) -> None:
    largest = int(SPECIAL[dtype].split()[-2], 16).to_bytes(ITEM_SIZES[dtype], "little")
    beyond = Flag.NONFINITE | (Flag.NAN if dtype == DType.FLOAT8_E4M3FN else 0)
    for count in (1, 33, 2049):
        for world in (2, 3):
            _, flags = finish(kernels, ReduceOp.SUM, dtype, [largest * count] * world)
            assert flags == beyond
        result, flags = finish(kernels, ReduceOp.MAX, dtype, [largest * count] * 3)
        assert (result, flags) == (largest * count, 0)


def test_nothing_is_written_beyond_count(kernels: KernelSet) -> None:
    for op, dtype, count in product(OPS, PLAIN, (0, 1, 37)):
        size = count * ITEM_SIZES[dtype]
        acc = bytearray(b"\xa5" * (count * kernels.acc_itemsize(op, dtype) + 9))
        out = bytearray(b"\xa5" * (size + 9))
        parts = [bytes(size + 3)] * 2
        kernels.fold(op, dtype, count, acc, parts, True)
        kernels.finish(op, dtype, count, 3, acc, parts[:1], out)
        assert acc[-9:] == out[-9:] == b"\xa5" * 9


def test_float64_becomes_float16_in_one_rounding(kernels: KernelSet) -> None:
    """Every tie between neighbours, and the float64 values next to the tie."""
    magnitudes = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    step_beyond_largest = 65536.0
    following = np.append(magnitudes[1:], step_beyond_largest)
    ties = (magnitudes + following) / 2
    tiny = np.array([5e-324, 2.0**-126, 2.0**-140, 1e300, np.inf, 3.5e38])
    values = np.concatenate(
        [magnitudes, ties, np.nextafter(ties, 0), np.nextafter(ties, 1e9), tiny]
    )
    values = np.concatenate([values, -values])
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16)
    out = unaligned(2 * values.size)
    acc = unaligned(values.tobytes())
    flags = kernels.finish(ReduceOp.SUM, DType.FLOAT16, values.size, 1, acc, [], out)
    assert flags == Flag.NONFINITE  # no part: some values round to Inf
    assert bytes(out) == expected.tobytes()


@pytest.mark.parametrize("dtype", FLOAT8)
def test_float8_of_every_two_values(kernels: KernelSet, dtype: DType) -> None:
    every = np.arange(256, dtype=np.uint8)
    parts = [np.repeat(every, 256), np.tile(every, 256)]
    for op in (ReduceOp.SUM, ReduceOp.MEAN, ReduceOp.PROD):
        got, _ = finish(kernels, op, dtype, [part.tobytes() for part in parts])
        assert got == oracle.reduce(op, dtype, parts).tobytes(), op
    acc = unaligned(4 * 256)
    kernels.fold(ReduceOp.SUM, dtype, 256, acc, [unaligned(every.tobytes())], True)
    values = oracle.from_float8(dtype, every)
    numbers = ~np.isnan(values)
    got_values = np.frombuffer(acc, np.float32)
    assert got_values[numbers].tobytes() == values[numbers].tobytes()
    assert np.isnan(got_values[~numbers]).all()


@pytest.mark.parametrize("dtype", FLOAT8)
def test_float32_becomes_float8_in_one_rounding(kernels: KernelSet, dtype: DType) -> None:
    """All ties of every exponent and their neighbours; also denormals, Inf and NaNs."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    bits = (upper[:, None] + np.array([0, 1, 0x8000, 0xFFFF], np.uint32)).ravel()
    out = unaligned(bits.size)
    acc = unaligned(bits.tobytes())
    flags = kernels.finish(ReduceOp.SUM, dtype, bits.size, 1, acc, [], out)
    assert flags == Flag.NAN | Flag.NONFINITE
    with np.errstate(all="ignore"):
        assert bytes(out) == oracle.to_float8(dtype, bits.view(np.float32)).tobytes()


def test_narrow_rounds_every_tie_to_even(kernels: KernelSet) -> None:
    for dtype, infinity in ((DType.FLOAT16, 0x7C00), (DType.BFLOAT16, 0x7F80)):
        bits = np.arange(infinity, dtype=np.uint16)
        values = unaligned(4 * infinity)
        kernels.widen(dtype, infinity, unaligned(bits.tobytes()), values)
        exact = np.frombuffer(values, np.float32).astype(np.float64)
        following = np.append(exact[1:], 2 * exact[-1] - exact[-2])
        ties = ((exact + following) / 2).astype(np.float32)
        for source, want in (
            (ties, bits + (bits & 1)),
            (np.nextafter(ties, np.float32(0)), bits),
            (np.nextafter(ties, np.float32(np.inf)), bits + 1),
            (-ties, (bits + (bits & 1)) | 0x8000),
        ):
            out = unaligned(2 * infinity)
            assert kernels.narrow(dtype, infinity, unaligned(source.tobytes()), out) == 0
            assert bytes(out) == want.astype("<u2").tobytes()


def test_narrow_undoes_widen(kernels: KernelSet) -> None:
    bits = np.arange(1 << 16, dtype="<u2")
    for dtype, magnitude_of_infinity, nan in (
        (DType.FLOAT16, 0x7C00, 0x7E00),
        (DType.BFLOAT16, 0x7F80, 0x7FC0),
    ):
        wide, back = unaligned(4 << 16), unaligned(2 << 16)
        kernels.widen(dtype, 1 << 16, unaligned(bits.tobytes()), wide)
        assert kernels.narrow(dtype, 1 << 16, wide, back) == Flag.NAN
        expected = np.where(bits & 0x7FFF > magnitude_of_infinity, nan, bits).astype("<u2")
        assert bytes(back) == expected.tobytes()
        if dtype == DType.FLOAT16:
            finite = bits[bits & 0x7FFF <= magnitude_of_infinity]
            at = np.frombuffer(wide, "<f4")[bits & 0x7FFF <= magnitude_of_infinity]
            assert at.tobytes() == finite.view("<f2").astype("<f4").tobytes()


def test_integer_mean_truncates_toward_zero(kernels: KernelSet) -> None:
    parts = [struct.pack("<3i", -7, 7, -2_000_000_000), struct.pack("<3i", 0, 0, -2_000_000_001)]
    assert finish(kernels, ReduceOp.MEAN, DType.INT32, parts) == (
        struct.pack("<3i", -3, 3, -2_000_000_000),
        0,
    )


@pytest.mark.parametrize("world", [1, 2, 3, 7, 8191, 8192, 2**48 - 1, 2**48, 2**48 + 1, 2**62 + 1])
@pytest.mark.parametrize("dtype", [DType.INT64, DType.UINT64])
def test_integer_mean_of_sums_of_any_size(kernels: KernelSet, dtype: DType, world: int) -> None:
    """Sums next to a multiple of the world, grouped by size: a large one slows its block."""
    rng = random.Random(world)
    code = {DType.INT64: "q", DType.UINT64: "Q"}[dtype]
    for width in (8, 21, 31, 44, 45, 47, 48, 49, 53, 63):
        near = [rng.randrange(1 << width) // world * world for _ in range(500)]
        sums = [0, 1, (1 << width) - 1, *(total + by for total in near for by in (-1, 0, 1))]
        sums = [min(max(total, 0), (1 << width) - 1) for total in sums]
        if dtype in SIGNED:
            sums += [-total for total in sums] + [-(1 << width)]
        acc = unaligned(struct.pack(f"<{len(sums)}{code}", *sums))
        out = unaligned(len(acc))
        assert kernels.finish(ReduceOp.MEAN, dtype, len(sums), world, acc, [], out) == 0
        means = [abs(total) // world * (-1 if total < 0 else 1) for total in sums]
        assert list(struct.unpack(f"<{len(sums)}{code}", out)) == means, width


@pytest.mark.parametrize("dtype", INTEGERS)
def test_overflow_is_flagged_and_wraps(kernels: KernelSet, dtype: DType) -> None:
    item = ITEM_SIZES[dtype]
    largest = (1 << (8 * item - (dtype in SIGNED))) - 1
    count = 100
    for position in (0, 50, 99):  # in a vector, and in the tail
        values = [0] * count
        values[position] = largest
        ones = [0] * count
        fine = [value.to_bytes(item, "little") for value in values]
        ones[position] = 1
        parts = [b"".join(fine), b"".join(one.to_bytes(item, "little") for one in ones)]
        result, flags = finish(kernels, ReduceOp.SUM, dtype, parts)
        assert flags == Flag.OVERFLOW
        wrapped = (largest + 1).to_bytes(item + 1, "little")[:item]
        assert result[position * item : position * item + item] == wrapped
        assert finish(kernels, ReduceOp.SUM, dtype, parts[:1]) == (parts[0], 0)


def test_sums_of_float16_do_not_depend_on_order(kernels: KernelSet) -> None:
    rng = random.Random(1)
    parts = [struct.pack("<64e", *(rng.gauss(0, 3000) for _ in range(64))) for _ in range(64)]
    first = finish(kernels, ReduceOp.SUM, DType.FLOAT16, parts)
    for _ in range(5):
        rng.shuffle(parts)
        assert finish(kernels, ReduceOp.SUM, DType.FLOAT16, parts) == first


def test_crc32c_equals_an_independent_one(kernels: KernelSet) -> None:
    data = random.Random(2).randbytes(410_000)
    assert kernels.crc32c(b"123456789") == 0xE3069283
    assert kernels.crc32c(b"") == 0
    stretches = [255, 767, 768, 769, 12_287, 12_288, 12_289, 100_000, 196_607, 196_608, 196_609]
    for size in [*range(70), *stretches, 2 * 196_608 + 12_288 + 768 + 9]:
        expected = google_crc32c.value(data[:size])
        view = unaligned(data[:size])
        assert kernels.crc32c(view) == expected, size
        cut = size // 3
        assert kernels.crc32c(view[cut:], kernels.crc32c(view[:cut])) == expected, size


def test_bad_buffers_are_refused_before_a_byte_is_written(kernels: KernelSet) -> None:
    good, out = np.zeros(8, np.float32), np.ones(8, np.float32)
    whole = np.zeros(64, np.uint8)
    total, f32 = ReduceOp.SUM, DType.FLOAT32
    short = good[:7]
    read_only = bytes(32)
    strided = np.zeros(16, np.float32)[::2]
    refused: list[tuple[type[Exception], str, tuple[object, ...]]] = [
        (ValueError, r"parts\[1\]: expected at least 32 bytes, got 28", ([good, short], out)),
        (ValueError, "out: expected at least 32 bytes, got 28", ([good], out[:7])),
        (BufferError, "out: expected a writable", ([good], read_only)),
        (BufferError, r"parts\[0\]: expected a C-contiguous", ([strided], out)),
        (BufferError, "out: expected a writable C-contiguous", ([good], strided)),
        (TypeError, "buffer|bytes-like", ([good, 7], out)),
        (ValueError, "nothing to begin from", ([], out)),
        (ValueError, r"out overlaps parts\[0\]", ([whole[:32]], whole[4:36])),
    ]
    for error, message, (parts, target) in refused:
        with pytest.raises(error, match=message):
            kernels.finish(total, f32, 8, 1, None, parts, target)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="acc: expected at least 64 bytes, got 32"):
        kernels.fold(total, DType.FLOAT16, 8, good, [bytes(16)], True)
    with pytest.raises(ValueError, match=r"acc overlaps parts\[0\]"):
        kernels.fold(total, f32, 8, whole, [whole], False)
    with pytest.raises(ValueError, match="nothing to begin from"):
        kernels.fold(total, f32, 8, whole, [], True)
    with pytest.raises(ValueError, match="world must be at least 1, got 0"):
        kernels.finish(ReduceOp.MEAN, f32, 8, 0, None, [good], out)
    with pytest.raises(ValueError, match="count must not be negative, got -1"):
        kernels.finish(total, f32, -1, 1, None, [good], out)
    with pytest.raises(ValueError, match="no kernel for dtype 19"):
        kernels.acc_itemsize(total, 19)
    for op in (0, 6, 10, -1):
        with pytest.raises(ValueError, match=f"no kernel for op {op}: expected a ReduceOp"):
            kernels.finish(op, f32, 8, 1, None, [good], out)
    for op, dtype in product(BITWISE, FLOATS):
        with pytest.raises(
            ValueError, match=f"no kernel for op {op} of dtype {dtype}: a bitwise op"
        ):
            kernels.finish(op, dtype, 1, 1, None, [good], out)
    for cast in (kernels.narrow, kernels.widen):
        with pytest.raises(ValueError, match="expected dtype 3"):
            cast(f32, 8, good, out)
        with pytest.raises(ValueError, match="source overlaps out"):
            cast(DType.FLOAT16, 8, whole, whole)
    assert (out == 1).all()
    assert not good.any()
    assert not whole.any()


def test_accumulators_have_the_sizes_of_the_law(kernels: KernelSet) -> None:
    sizes = dict.fromkeys((DType.FLOAT32, DType.BFLOAT16, *FLOAT8), 4)
    for dtype in ITEM_SIZES:
        for op in (ReduceOp.SUM, ReduceOp.MEAN, ReduceOp.PROD):
            assert kernels.acc_itemsize(op, dtype) == sizes.get(dtype, 8)
        for op in (ReduceOp.MIN, ReduceOp.MAX):
            assert kernels.acc_itemsize(op, dtype) == ITEM_SIZES[dtype]
    for op, dtype in product(BITWISE, INTEGERS):
        assert kernels.acc_itemsize(op, dtype) == ITEM_SIZES[dtype]


def test_load_takes_the_native_kernels() -> None:
    assert load().NAME == "native"
    assert load("native") is _native
    assert load("numpy") is _numpy
    assert _numpy.NAME == "numpy"


def test_the_kernels_have_all_levels_of_this_processor() -> None:
    """A build that knows too few instruction sets gives the right bits, but slowly."""
    needs = {"avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl"}, "avx2": {"avx2", "f16c"}}
    flags = set(re.findall(r"\w+", Path("/proc/cpuinfo").read_text()))
    expected = [level for level, needed in needs.items() if needed <= flags]
    assert _native.levels() == [*expected, "baseline"]
