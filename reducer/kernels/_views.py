"""Buffers as NumPy arrays, for the NumPy kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from typing_extensions import Buffer  # collections.abc.Buffer is new in Python 3.12

Array = npt.NDArray[Any]

_BLOCK = 16_384  # elements: the widest accumulator block, 128 KiB, stays in the L2 cache


def byte_view(name: str, data: Buffer, writable: bool = False) -> Array:
    view = memoryview(data)
    if not view.c_contiguous or (writable and view.readonly):
        kind = "writable C-contiguous" if writable else "C-contiguous"
        raise BufferError(f"{name}: expected a {kind} buffer")
    return np.frombuffer(view, np.uint8)


def elements(
    name: str, data: Buffer, dtype: np.dtype[Any], count: int, writable: bool = False
) -> Array:
    if count < 0:
        raise ValueError(f"count must not be negative, got {count}")
    raw = byte_view(name, data, writable)
    needed = count * dtype.itemsize
    if raw.size < needed:
        raise ValueError(f"{name}: expected at least {needed} bytes, got {raw.size}")
    return raw[:needed].view(dtype)


def address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def overlap(a: Array, b: Array) -> bool:
    return address(a) < address(b) + b.nbytes and address(b) < address(a) + a.nbytes


def blocks(count: int) -> Iterator[slice]:
    return (slice(at, min(at + _BLOCK, count)) for at in range(0, count, _BLOCK))
