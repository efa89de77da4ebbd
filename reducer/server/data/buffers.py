"""Pooled, aligned buffers for contributions, accumulators and results.

Law: a buffer that was given back is handed out again only when nothing refers to its memory. The
event loop keeps slices of memoryviews that it has not fully sent. Every `share()` is therefore a
new view of the exporter, and the exporter's reference count shows when all views are gone.
"""

from __future__ import annotations

from collections import deque
from sys import getrefcount
from typing import Final

from reducer.server.data.cells import Store
from reducer.wire.errors import InternalError
from reducer.wire.header import HEADER_SIZE

_ALIGN: Final = 64  # a cache line, and the width of an AVX-512 register
SMALLEST: Final = 4096
# After this many seconds without a buffer in use, the memory goes back to the system.
IDLE_SECONDS: Final = 10.0
# How much a tick gives back, in bytes: 3 ms. Each buffer counts as so many bytes more than it has:
# its own cost is 1 us, while the pages of a MiB take 40 us.
TRIMMED_AT_ONCE: Final = 64 << 20
BUFFER_COST: Final = 24 << 10
# How many unsent buffers a tick looks at, shared equally by the sizes; the others follow at the
# next ticks. A `take` looks at fewer, of its own size only.
LOOKED_AT: Final = 2_000
LOOKED_AT_IN_NEED: Final = 16


class PooledBuffer:
    """`view` is the whole writable capacity. The core only stores and returns the object.

    `is_out`: the pool has handed it out. `crc`: the CRC-32C of its first `summed` bytes.
    """

    __slots__ = ("_base", "_exporter", "_store", "crc", "is_out", "size_class", "summed", "view")

    def __init__(self, size_class: int, store: Store) -> None:
        self.size_class = size_class
        self.is_out = False
        self.crc = self.summed = 0
        self._store = store
        self._exporter = store.take()
        self.view = memoryview(self._exporter).cast("B")
        self._base = self._references()

    def discard(self) -> None:
        """Return the memory to the system. The buffer must not be used any more."""
        self._store.give_back(self._exporter)

    def share(self, length: int) -> memoryview:
        """A view for one transport; `busy` is true while it exists."""
        return memoryview(self._exporter).cast("B")[:length]

    @property
    def busy(self) -> bool:
        """Whether a shared view, or a slice of a shared view, still exists."""
        return self._references() > self._base

    def exchange(self, other: PooledBuffer) -> None:
        """Exchange the memory with another buffer of the same size class."""
        self._exporter, other._exporter = other._exporter, self._exporter
        self.view, other.view = other.view, self.view
        self._base, other._base = other._base, self._base

    def _references(self) -> int:
        """Count references of the exporting object.

        Call sites add different numbers of references, so compare only counts from the same call
        site.
        """
        return getrefcount(self._exporter)


def size_class(length: int) -> int:
    """The least m x 2^k of at least ``length`` with m from 32 to 63: 3 % waste at most."""
    if length <= SMALLEST:
        return SMALLEST
    step = 1 << ((length - 1).bit_length() - 6)
    return -(-length // step) * step


def _cell_size(size_class: int) -> int:
    """The size of a cell, with room to read the next header together with the payload."""
    return -(-(size_class + HEADER_SIZE) // _ALIGN) * _ALIGN


class BufferPool:
    """Buffers by size class; ``limit`` bounds the bytes in use, unsent and cached together.

    `take` never fails because of the limit: the core has reserved room for every byte. Near the
    limit only the cache shrinks. The limit falls when a run reserves memory for its records; ticks
    then shrink the cache in parts. If the system has no memory, MemoryError is raised and nothing
    is counted.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._stores: dict[int, Store] = {}  # by size class, never removed
        self._free: dict[int, list[PooledBuffer]] = {}
        self._unsent: dict[int, deque[PooledBuffer]] = {}
        self._last_out = 0.0
        self.allocated = 0
        self.out = 0
        self.out_bytes = 0
        self.cached_bytes = 0
        self._unsent_bytes = 0

    @property
    def unsent(self) -> int:
        """Buffers that were given back while a transport still sends from them."""
        return sum([len(queue) for queue in self._unsent.values()])

    def take(self, length: int) -> PooledBuffer:
        """A buffer for ``length`` bytes and one header behind them; its contents are undefined."""
        wanted = size_class(length)
        stack = self._free.get(wanted)
        if not stack and self._unsent:
            self._look(wanted, LOOKED_AT_IN_NEED)
            stack = self._free.get(wanted)
        if stack:
            self.cached_bytes -= wanted
            buffer = stack.pop()
        else:
            buffer = self._allocate(wanted)
        buffer.is_out = True
        buffer.summed = 0
        self.out += 1
        self.out_bytes += wanted
        return buffer

    def _allocate(self, wanted: int) -> PooledBuffer:
        if self.out_bytes + self._unsent_bytes + wanted > self._limit:
            self._look_at_all()
        left = self._limit - self.out_bytes - self._unsent_bytes - wanted
        if self.cached_bytes > left:  # after a fall of the limit no more than `wanted` at once
            self._trim(max(0, left, self.cached_bytes - wanted))
        store = self._stores.get(wanted)
        if store is None:
            store = self._stores[wanted] = Store(_cell_size(wanted))
        buffer = PooledBuffer(wanted, store)
        self.allocated += 1
        return buffer

    def give_back(self, buffer: PooledBuffer) -> None:
        """Take a buffer back. Raises InternalError for a second time: two chunks would share it."""
        if not buffer.is_out:
            raise InternalError(f"a buffer of {buffer.size_class:,} bytes was given back twice")
        buffer.is_out = False
        self.out -= 1
        self.out_bytes -= buffer.size_class
        if buffer.busy:
            self._unsent.setdefault(buffer.size_class, deque()).append(buffer)
            self._unsent_bytes += buffer.size_class
        else:
            self._cache(buffer)

    def prepare_change(self, buffer: PooledBuffer) -> None:
        """The buffer is about to be changed: what a transport still sends from it stays as it is.

        The buffer gets other memory with the same bytes, if it is busy. Raises MemoryError.
        """
        buffer.summed = 0
        if not buffer.busy:
            return
        other = self.take(buffer.size_class)
        other.view[:] = buffer.view
        buffer.exchange(other)
        self.give_back(other)

    def tick(self, now: float, limit: int) -> None:
        """Collect buffers that have been sent. Above ``limit``, and when idle, return memory to
        the system.
        """
        self._limit = limit
        self._look_at_all()
        if self.out:
            self._last_out = now
        is_idle = now - self._last_out > IDLE_SECONDS
        target = 0 if is_idle else max(0, limit - self.out_bytes - self._unsent_bytes)
        self._trim(target, TRIMMED_AT_ONCE)

    def _look_at_all(self) -> None:
        if self._unsent:
            most = max(1, LOOKED_AT // len(self._unsent))
            for size in list(self._unsent):
                self._look(size, most)

    def _look(self, size: int, most: int) -> None:
        """Collect buffers of one size that have been sent; looks at `most` of them."""
        queue = self._unsent.get(size)
        if queue is None:
            return
        for _ in range(min(len(queue), most)):
            buffer = queue.popleft()
            if buffer.busy:
                queue.append(buffer)
            else:
                self._unsent_bytes -= size
                self._cache(buffer)
        if not queue:
            del self._unsent[size]

    def _cache(self, buffer: PooledBuffer) -> None:
        held = self.out_bytes + self._unsent_bytes + self.cached_bytes
        if held + buffer.size_class > self._limit:
            buffer.discard()
            return
        self._free.setdefault(buffer.size_class, []).append(buffer)
        self.cached_bytes += buffer.size_class

    def _trim(self, target: int, most: int | None = None) -> None:
        """Drop cached buffers, the largest first, until at most ``target`` bytes are cached.

        ``most``: what the dropped buffers may cost; without it there is no such limit.
        """
        if self.cached_bytes <= target:
            return
        cost = 0
        for wanted in sorted(self._free, reverse=True):
            stack = self._free[wanted]
            while stack and self.cached_bytes > target and (most is None or cost < most):
                stack.pop().discard()
                self.cached_bytes -= wanted
                cost += wanted + BUFFER_COST
            if not stack:
                del self._free[wanted]
