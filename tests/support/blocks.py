"""Contributions in quantised blocks, as the kernels write and read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from reducer.kernels import KernelSet
from reducer.wire.codes import DType
from reducer.wire.sizes import contribution_bytes
from tests.support.unaligned import unaligned

Floats: TypeAlias = Any  # an array of float32; to mypy, no array has the buffer protocol

FORMATS = (DType.INT8_BLOCKS, DType.FLOAT8_E4M3FN_BLOCKS, DType.E3M0_BLOCKS)
LARGEST = float(np.finfo("f4").max)
ODD_VALUES = np.array(
    [0.0, -0.0, 1.0, -1.0, 1e-45, -1e-40, 2.0**-100, 2.0**-101, LARGEST, -LARGEST], "f4"
)


def _normal(rng: np.random.Generator, count: int) -> Any:
    return rng.normal(size=count)


KINDS: dict[str, Callable[[np.random.Generator, int], Any]] = {
    "normal": _normal,
    "any size": lambda rng, count: _normal(rng, count) * 10.0 ** rng.integers(-44, 38),
    "powers of two": lambda rng, count: 2.0 ** rng.integers(-140, 120, count),
    "ties": lambda rng, count: rng.integers(-254, 255, count) / 2,
    "odd values": lambda rng, count: rng.choice(ODD_VALUES, count),
    "any bits": lambda rng, count: rng.integers(0, 1 << 32, count, "u4").view("f4"),
}


def drawn(kind: str, count: int) -> Floats:
    rng = np.random.default_rng([count, *kind.encode()])
    with np.errstate(all="ignore"):
        return KINDS[kind](rng, count).astype("<f4")


def quantised(
    kernels: KernelSet, dtype: DType, source: Floats, seed: int | None = None
) -> tuple[memoryview, int]:
    out = unaligned(contribution_bytes(dtype, source.size))
    view = unaligned(source.tobytes(), 2)
    return out, kernels.quantise(dtype, source.size, view, out, None, seed)


def decoded(kernels: KernelSet, dtype: DType, count: int, blocks: memoryview | bytes) -> Floats:
    out = unaligned(4 * count, 3)
    kernels.dequantise(dtype, count, unaligned(bytes(blocks)), out)
    return np.frombuffer(out, "<f4")
