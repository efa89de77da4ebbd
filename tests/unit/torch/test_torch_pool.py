"""The buffers for CUDA tensors: which ones are reused, and how many are kept."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch  # only where it is installed

from reducer_client.torch.staging.pinned_pool import PinnedPool

MIB = 1 << 20


class _Event:
    """A fake CUDA event, as far as the pool uses it."""

    def __init__(self, happened: bool) -> None:
        self._happened = happened

    def query(self) -> bool:
        return self._happened


DONE: Any = _Event(True)
BUSY: Any = _Event(False)


def _pool(limit: int = 1 << 30) -> PinnedPool:
    """A pool of unpinned memory, since pinned memory needs a GPU."""
    return PinnedPool(lambda nbytes: torch.empty(nbytes, dtype=torch.uint8), limit)


def _is_new(pool: PinnedPool, nbytes: int, old: torch.Tensor) -> bool:
    return pool.take(nbytes).data_ptr() != old.data_ptr()


@pytest.mark.parametrize(
    ("nbytes", "size"), [(0, 1), (1, 1), (MIB, 1), (MIB + 1, 2), (25 * MIB, 32), (32 * MIB, 32)]
)
def test_sizes_are_powers_of_two(nbytes: int, size: int) -> None:
    assert _pool().take(nbytes).numel() == size * MIB


@pytest.mark.parametrize(
    ("nbytes", "is_new"), [(8 * MIB, False), (2 * MIB + 1, False), (2 * MIB, True), (9 * MIB, True)]
)
def test_a_buffer_serves_again_for_what_fills_a_quarter_of_it(nbytes: int, is_new: bool) -> None:
    pool = _pool()
    old = pool.take(8 * MIB)
    pool.give(old, DONE)
    assert _is_new(pool, nbytes, old) is is_new


def test_the_smallest_that_fits_is_taken() -> None:
    pool = _pool()
    large, small = pool.take(8 * MIB), pool.take(4 * MIB)
    pool.give(large, DONE)
    pool.give(small, DONE)
    assert not _is_new(pool, 3 * MIB, small)


def test_a_buffer_that_the_device_reads_is_not_taken() -> None:
    pool = _pool()
    old = pool.take(MIB)
    pool.give(old, BUSY)
    assert _is_new(pool, MIB, old)


def test_above_the_limit_the_oldest_idle_buffers_go() -> None:
    pool = _pool(limit=2 * MIB)
    busy, *idle = [pool.take(MIB) for _ in range(4)]
    pool.give(busy, BUSY)
    for buffer in idle:
        pool.give(buffer, DONE)
    assert not _is_new(pool, MIB, idle[2])
    assert all(_is_new(pool, MIB, old) for old in (*idle, busy))
