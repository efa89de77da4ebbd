"""The buffer pool: sizes, reuse, bounds, and that unsent memory is never handed out."""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import os
import random

import pytest

from reducer.server.data.buffers import (
    IDLE_SECONDS,
    LOOKED_AT,
    TRIMMED_AT_ONCE,
    BufferPool,
    size_class,
)
from reducer.server.data.cells import Store
from reducer.server.data.shell import LaneShell
from reducer.wire.errors import InternalError
from reducer.wire.header import HEADER_SIZE, pack_header
from tests.support.bare_lane import BUDGET, KERNELS, Sink, bare_lane, hello, receive
from tests.support.cluster import anonymous


@pytest.mark.parametrize("length", [4096, 4097, 5120, 65_535, 65_536, 65_537, 1 << 20, 4_194_304])
def test_a_class_wastes_little(length: int) -> None:
    """A job's reservation does not cover the quarter that was wasted once."""
    assert length <= size_class(length) <= length * 33 // 32


def test_powers_of_two_waste_nothing() -> None:
    assert all(size_class(1 << power) == 1 << power for power in range(12, 23))


def test_a_class_of_a_class_is_itself() -> None:
    for length in range(4096, 70_000, 37):
        assert size_class(size_class(length)) == size_class(length)


def test_room_for_the_next_header_and_alignment() -> None:
    pool = BufferPool(1 << 30)
    for length in (1, 5000, 65_536):
        buffer = pool.take(length)
        assert len(buffer.view) >= length + HEADER_SIZE
        assert ctypes.addressof(ctypes.c_char.from_buffer(buffer.view)) % 64 == 0


def test_reuse_and_counts() -> None:
    pool = BufferPool(1 << 20)
    first = pool.take(10_000)
    assert (pool.out, pool.out_bytes) == (1, 10_240)
    pool.give_back(first)
    assert (pool.out, pool.out_bytes, pool.cached_bytes) == (0, 0, 10_240)
    assert pool.take(9_999) is first
    assert pool.allocated == 1
    assert pool.cached_bytes == 0


def test_a_buffer_is_given_back_once() -> None:
    pool = BufferPool(1 << 20)
    buffer = pool.take(4096)
    pool.give_back(buffer)
    with pytest.raises(InternalError, match="4,096 bytes was given back twice"):
        pool.give_back(buffer)
    assert (pool.out, pool.cached_bytes) == (0, 4096)
    assert pool.take(4096) is not pool.take(4096)


def test_a_tick_looks_at_a_part_of_what_is_not_sent() -> None:
    """Regression: 200,000 unsent results of slow readers took 16 ms of each tick."""
    pool = BufferPool(1 << 30)
    count = LOOKED_AT + 10
    buffers = [pool.take(1) for _ in range(count)]
    shares = [buffer.share(1) for buffer in buffers]
    for buffer in buffers:
        pool.give_back(buffer)
    shares.clear()
    pool.tick(0.0, 1 << 30)
    assert pool.unsent == 10
    pool.tick(0.1, 1 << 30)
    assert not pool.unsent


def test_what_was_sent_does_not_wait_behind_what_is_not() -> None:
    """Regression: 14,700 unread small results took a lane to 1.5 times its budget."""
    pool = BufferPool(1 << 30)
    pins = [pool.take(1) for _ in range(3 * LOOKED_AT)]
    unread = [buffer.share(1) for buffer in pins]
    for buffer in pins:
        pool.give_back(buffer)
    for _ in range(50):
        buffer = pool.take(1 << 20)
        unsent = buffer.share(1)
        pool.give_back(buffer)
        del unsent
    assert pool.allocated == len(pins) + 1 and pool.unsent == len(unread) + 1


def test_what_was_sent_is_looked_for_before_there_is_more_than_the_limit() -> None:
    """Each buffer has a new size, so none can be reused."""
    limit = 16 << 20
    pool = BufferPool(limit)
    for number in range(60):
        buffer = pool.take((1 << 20) + number * 32_768)
        unsent = buffer.share(1)
        pool.give_back(buffer)
        del unsent
        assert pool.out_bytes + pool._unsent_bytes + pool.cached_bytes <= limit


def test_memory_that_is_still_sent_is_not_reused() -> None:
    """The event loop keeps slices of slices, and no reference to the original view."""
    pool = BufferPool(1 << 20)
    buffer = pool.take(4096)
    unsent = buffer.share(4096)[100:][200:]
    pool.give_back(buffer)
    assert pool.unsent == 1
    assert pool.take(4096) is not buffer
    pool.tick(0.0, 1 << 30)
    assert pool.unsent == 1
    del unsent
    pool.tick(0.1, 1 << 30)
    assert pool.unsent == 0
    assert pool.take(4096) is buffer


def test_a_buffer_that_is_still_sent_gets_other_memory_before_it_changes() -> None:
    pool = BufferPool(1 << 20)
    buffer = pool.take(4096)
    buffer.view[:3] = b"old"
    before = buffer.view
    pool.prepare_change(buffer)
    assert buffer.view is before and pool.out == 1
    unsent = buffer.share(4096)[:3]
    pool.prepare_change(buffer)
    buffer.view[:3] = b"new"
    assert (bytes(unsent), pool.out, pool.unsent) == (b"old", 1, 1)
    assert not buffer.busy
    del unsent, before
    pool.tick(0.0, 1 << 30)
    pool.give_back(buffer)
    assert (pool.out, pool.unsent, pool.cached_bytes) == (0, 0, 2 * 4096)


def test_the_cache_gives_way_at_the_limit() -> None:
    pool = BufferPool(100_000)
    small = [pool.take(4096) for _ in range(20)]
    for buffer in small:
        pool.give_back(buffer)
    assert pool.cached_bytes == 20 * 4096
    pool.take(65_536)
    assert pool.cached_bytes + pool.out_bytes <= 100_000


def test_taking_never_fails_over_the_limit() -> None:
    pool = BufferPool(4096)
    held = [pool.take(4096) for _ in range(3)]
    for buffer in held:
        pool.give_back(buffer)
    assert pool.cached_bytes <= 4096


def test_a_fall_of_the_limit_shrinks_the_cache_in_parts() -> None:
    """Regression: buffers filled all of --memory, and records came on top: 1.4 times --memory."""
    limit = 256 << 20
    pool = BufferPool(limit)
    for buffer in [pool.take(1 << 20) for _ in range(256)]:
        pool.give_back(buffer)
    pool.tick(0.0, limit)
    assert pool.cached_bytes == limit
    kept = pool.take(1 << 20)  # so that the pool is not idle
    pool.tick(0.1, limit // 2)
    assert limit - TRIMMED_AT_ONCE - (1 << 20) <= pool.cached_bytes + pool.out_bytes < limit
    before = pool.cached_bytes + pool.out_bytes
    other = pool.take(3 << 20)  # a size that is not cached
    assert before - (4 << 20) <= pool.cached_bytes + pool.out_bytes <= before
    for _ in range(256 // (TRIMMED_AT_ONCE >> 20)):
        pool.tick(0.2, limit // 2)
    assert pool.cached_bytes + pool.out_bytes <= limit // 2
    pool.give_back(kept)
    pool.give_back(other)
    assert pool.cached_bytes + pool.out_bytes <= limit // 2


@pytest.mark.parametrize("size", [20_000, 100_000, 600_000])
def test_every_second_buffer_gives_its_memory_back(size: int) -> None:
    """Regression: malloc kept holes too small for the next size: 2.3 times the limit."""
    limit = 32 << 20
    pool = BufferPool(limit)
    before = anonymous(os.getpid())
    kept = []
    for wanted in (size, 107 * size // 100, 220 * size // 100, 450 * size // 100):
        filled = []
        while pool.out_bytes + size_class(wanted) <= limit:
            filled.append(pool.take(wanted))
            filled[-1].view[:] = bytes(len(filled[-1].view))
        kept += filled[::2]
        for buffer in filled[1::2]:
            pool.give_back(buffer)
    assert pool.allocated > len(kept)
    assert anonymous(os.getpid()) - before < 1.3 * limit


def test_cells_that_share_a_page_keep_what_is_in_them() -> None:
    pool = BufferPool(0)  # caches nothing
    buffers = [pool.take(4096) for _ in range(500)]
    for number, buffer in enumerate(buffers):
        buffer.view[:] = bytes([number % 251]) * len(buffer.view)
    order = list(range(500))
    random.Random(1).shuffle(order)
    while order:
        pool.give_back(buffers[order.pop()])
        for number in order[::7]:
            buffer = buffers[number]
            assert buffer.view == bytes([number % 251]) * len(buffer.view)


def test_an_idle_pool_returns_its_memory() -> None:
    pool = BufferPool(1 << 20)
    buffer = pool.take(4096)
    pool.tick(1_000.0, 1 << 20)
    pool.give_back(buffer)
    pool.tick(1_000.0 + IDLE_SECONDS / 2, 1 << 20)
    assert pool.cached_bytes
    pool.tick(1_000.1 + IDLE_SECONDS, 1 << 20)
    assert not pool.cached_bytes


class NoAdvice(mmap.mmap):
    def madvise(self, *args: int) -> None:
        raise OSError("injected")


def test_a_cell_that_the_system_does_not_take_back_can_be_taken_again() -> None:
    """Regression: the error ended the run, or the tick and with it the lane."""
    store = Store(1 << 18)
    cells = store.take().cells
    cells._mapping = NoAdvice(-1, 1 << 20)
    for _ in range(8):
        store.give_back(store.take())


def test_a_tick_tells_the_pool_how_much_runs_have_reserved_for_their_records() -> None:
    async def limits() -> tuple[int, int]:
        lane, pool = bare_lane(4 << 20), BufferPool(BUDGET)
        shell = LaneShell(lane, KERNELS, pool, 10.0)
        connection = shell.connection()
        connection.connection_made(Sink())
        header, payload = hello(0, 1, 64 << 10)
        receive(connection, memoryview(pack_header(header, KERNELS.crc32c) + payload))
        shell.tick()
        return pool._limit, lane.room_for_chunks

    limit, room = asyncio.run(limits())
    assert limit == room < BUDGET
