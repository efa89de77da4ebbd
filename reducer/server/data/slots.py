"""Memory in slots of one size. Each slot returns its pages to the system on its own.

malloc keeps the holes between buffers that stay allocated: a job that freed every second buffer and
then took slightly larger ones used 2.6 times the memory of a lane. malloc_trim returns such holes,
but stops a lane of 256 MiB for 15 ms. Returning the pages of one slot takes 1 us and 0.04 ms for
each MiB.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections import OrderedDict
from typing import Any, Final

_PAGE: Final = mmap.PAGESIZE
# Small slots share a mapping of about this size: a process may have 65,530 mappings
# (vm.max_map_count).
_MAPPED: Final = 1 << 20
# A ctypes array. The array keeps its mapping alive, and views of the array keep the array alive.
Slot = Any


class Store:
    """All slots of one size, in as many mappings as they need."""

    def __init__(self, size: int) -> None:
        self._array = _array_type(size)  # made once: a type is garbage in cycles
        self._size = size
        # A plain dict finds its first entry only after a walk over the removed ones before it.
        self._with_room: OrderedDict[Slots, None] = OrderedDict()

    def take(self) -> Slot:
        """Take an unused slot. Raises MemoryError if the system has no memory."""
        slots = next(iter(self._with_room), None)
        if slots is None:
            slots = Slots(self._size)
            self._with_room[slots] = None
        address = slots.take()
        try:
            slot = self._array.from_address(address)
            slot.slots = slots
            if slots.is_full:
                del self._with_room[slots]
        except BaseException:  # else this mapping would not be found again
            slots.give_back(address)
            self._with_room[slots] = None
            raise
        return slot

    def give_back(self, slot: Slot) -> None:
        """Take back a slot that is no longer used."""
        slots = slot.slots
        slots.give_back(ctypes.addressof(slot))
        if slots.is_empty:
            self._with_room.pop(slots, None)
        else:
            self._with_room[slots] = None


class Slots:
    """One mapping of slots of ``size`` bytes. Raises MemoryError if the system has no memory.

    The mapping goes with the last reference to it. Its memory is returned before that, because
    munmap may fail at the limit of mappings.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._count = max(1, _MAPPED // size)
        self._length = _up(self._count * size)
        self._mapping = _map(self._length)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))
        if self._count > 1:
            # A huge page would bring back the memory between two slots. Not every kernel has huge
            # pages.
            with contextlib.suppress(OSError):
                self._mapping.madvise(mmap.MADV_NOHUGEPAGE)
        self._unused = list(reversed(range(self._count)))
        self._is_unused = bytearray(b"\1" * self._count)

    @property
    def is_full(self) -> bool:
        return not self._unused

    @property
    def is_empty(self) -> bool:
        return len(self._unused) == self._count

    def take(self) -> int:
        """Take an unused slot, and return its address."""
        slot = self._unused[-1]
        address = self._address + slot * self._size  # first: if this raises, nothing has changed
        self._unused.pop()
        self._is_unused[slot] = 0
        return address

    def give_back(self, address: int) -> None:
        """Return the slot's memory to the system, except pages that it shares with used slots."""
        slot = (address - self._address) // self._size
        self._unused.append(slot)
        self._is_unused[slot] = 1
        begin, end = self._first_page(slot), self._last_page(slot)
        if begin < end:
            with contextlib.suppress(OSError):  # the memory stays with the unused slot
                self._mapping.madvise(mmap.MADV_DONTNEED, begin, end - begin)

    def _first_page(self, slot: int) -> int:
        """Where the slot's first page begins that no used slot shares."""
        page = slot * self._size // _PAGE * _PAGE
        while slot * self._size > page and self._is_unused[slot - 1]:
            slot -= 1
        return max(page, _up(slot * self._size))

    def _last_page(self, slot: int) -> int:
        """Where the slot's last page ends that no used slot shares."""
        behind = slot + 1
        page = _up(behind * self._size)
        while behind < self._count and behind * self._size < page and self._is_unused[behind]:
            behind += 1
        unused = self._length if behind == self._count else behind * self._size
        return min(page, unused // _PAGE * _PAGE)


def _array_type(size: int) -> Any:
    """A ctypes type, for `from_address`: 50 bytes for each array, where `from_buffer` takes 730."""
    fields = {"_type_": ctypes.c_char, "_length_": size, "__slots__": ("slots",)}
    make: Any = type(ctypes.Array)
    return make("Slot", (ctypes.Array,), fields)


def _map(length: int) -> mmap.mmap:
    try:
        return mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no mapping of {length:,} bytes: {error.strerror}") from None


def _up(size: int) -> int:
    """Round up to whole pages."""
    return -(-size // _PAGE) * _PAGE
