"""Buffers at addresses that no type is aligned to."""

from __future__ import annotations

import numpy as np


def unaligned(data: bytes | int, offset: int = 1) -> memoryview:
    """A writable copy of ``data`` (or that many zero bytes), ``offset`` bytes after a multiple of
    64."""
    data = bytes(data)
    raw = np.zeros(len(data) + 128, np.uint8)
    start = -raw.__array_interface__["data"][0] % 64 + offset
    view = memoryview(raw)[start : start + len(data)]
    view[:] = data
    return view
