"""The engine's casts against NumPy."""

from __future__ import annotations

import engine_parts
import numpy as np
import numpy.typing as npt
import pytest

from reducer.wire.codes import DType

F32 = npt.NDArray[np.float32]
U16 = npt.NDArray[np.uint16]


def samples() -> F32:
    """Every float16 and bfloat16, the ties between them, their neighbours, and random bits."""
    halves = np.arange(1 << 16, dtype=np.uint16)
    as_f16 = halves.view(np.float16).astype(np.float32).view(np.uint32)
    as_bf16 = halves.astype(np.uint32) << 16
    random = np.random.default_rng(5).integers(0, 1 << 32, 200_003, dtype=np.uint32)
    offsets = [0, 1, 0xFFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001]
    parts = [base + np.uint32(o) for base in (as_f16, as_bf16) for o in offsets]
    return np.concatenate([*parts, random]).view(np.float32)


def expected_f16(wide: F32) -> U16:
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = wide.astype(np.float16).view(np.uint16)
    return np.where(np.isnan(wide), np.uint16(0x7E00), narrow)


def expected_bf16(wide: F32) -> U16:
    """The nearer of the two bfloat16 around a value; for a tie, the even one."""
    bits = wide.view(np.uint32)
    low = bits & 0xFFFF
    high = bits >> 16
    up = (low > 0x8000) | ((low == 0x8000) & (high % 2 == 1))
    return np.where(np.isnan(wide), 0x7FC0, high + up).astype(np.uint16)


@pytest.mark.parametrize(
    ("dtype", "expected"), [(DType.FLOAT16, expected_f16), (DType.BFLOAT16, expected_bf16)]
)
def test_narrow(dtype: DType, expected: type) -> None:
    wide = samples()
    narrow = np.empty(wide.size, np.uint16)
    engine_parts.narrow(dtype, wide, narrow)
    np.testing.assert_array_equal(narrow, expected(wide))


@pytest.mark.parametrize("count", range(20))
def test_narrow_of_every_tail(count: int) -> None:
    wide = samples()[1000 : 1000 + count].copy()
    narrow = np.empty(count, np.uint16)
    engine_parts.narrow(DType.FLOAT16, wide, narrow)
    np.testing.assert_array_equal(narrow, expected_f16(wide))


def test_widen_is_exact() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16)
    wide = np.empty(halves.size, np.float32)
    engine_parts.widen(DType.BFLOAT16, halves, wide)
    np.testing.assert_array_equal(wide.view(np.uint32), halves.astype(np.uint32) << 16)
    engine_parts.widen(DType.FLOAT16, halves, wide)
    np.testing.assert_array_equal(wide, halves.view(np.float16).astype(np.float32))
