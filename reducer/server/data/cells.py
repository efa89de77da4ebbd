"""Memory in cells of one size. Each cell returns its pages to the system on its own.

malloc keeps the holes between buffers that stay allocated: a job that freed every second buffer and
then took slightly larger ones used 2.6 times the memory of a lane. malloc_trim returns such holes,
but stops a lane of 256 MiB for 15 ms. Returning the pages of one cell takes 1 us and 0.04 ms for
each MiB.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections import OrderedDict
from typing import Any, Final

_PAGE: Final = mmap.PAGESIZE
# Small cells share a mapping of about this size: a process may have 65,530 mappings
# (vm.max_map_count).
_MAPPED: Final = 1 << 20
# A ctypes array. The array keeps its mapping alive, and views of the array keep the array alive.
Cell = Any


class Store:
    """All cells of one size, in as many mappings as they need."""

    def __init__(self, size: int) -> None:
        self._array = _array_type(size)  # made once: a type is garbage in cycles
        self._size = size
        # A plain dict finds its first entry only after a walk over the removed ones before it.
        self._with_room: OrderedDict[Cells, None] = OrderedDict()

    def take(self) -> Cell:
        """Take an unused cell. Raises MemoryError if the system has no memory."""
        cells = next(iter(self._with_room), None)
        if cells is None:
            cells = Cells(self._size)
            self._with_room[cells] = None
        address = cells.take()
        try:
            cell = self._array.from_address(address)
            cell.cells = cells
            if cells.is_full:
                del self._with_room[cells]
        except BaseException:  # else this mapping would not be found again
            cells.give_back(address)
            self._with_room[cells] = None
            raise
        return cell

    def give_back(self, cell: Cell) -> None:
        """Take back a cell that is no longer used."""
        cells = cell.cells
        cells.give_back(ctypes.addressof(cell))
        if cells.is_empty:
            self._with_room.pop(cells, None)
        else:
            self._with_room[cells] = None


class Cells:
    """One mapping of cells of ``size`` bytes. Raises MemoryError if the system has no memory.

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
            # A huge page would bring back the memory between two cells. Not every kernel has huge
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
        """Take an unused cell, and return its address."""
        cell = self._unused[-1]
        address = self._address + cell * self._size  # first: if this raises, nothing has changed
        self._unused.pop()
        self._is_unused[cell] = 0
        return address

    def give_back(self, address: int) -> None:
        """Return the cell's memory to the system, except pages that it shares with used cells."""
        cell = (address - self._address) // self._size
        self._unused.append(cell)
        self._is_unused[cell] = 1
        begin, end = self._first_page(cell), self._last_page(cell)
        if begin < end:
            with contextlib.suppress(OSError):  # the memory stays with the unused cell
                self._mapping.madvise(mmap.MADV_DONTNEED, begin, end - begin)

    def _first_page(self, cell: int) -> int:
        """Where the cell's first page begins that no used cell shares."""
        page = cell * self._size // _PAGE * _PAGE
        while cell * self._size > page and self._is_unused[cell - 1]:
            cell -= 1
        return max(page, _up(cell * self._size))

    def _last_page(self, cell: int) -> int:
        """Where the cell's last page ends that no used cell shares."""
        behind = cell + 1
        page = _up(behind * self._size)
        while behind < self._count and behind * self._size < page and self._is_unused[behind]:
            behind += 1
        unused = self._length if behind == self._count else behind * self._size
        return min(page, unused // _PAGE * _PAGE)


def _array_type(size: int) -> Any:
    """A ctypes type, for `from_address`: 50 bytes for each array, where `from_buffer` takes 730."""
    fields = {"_type_": ctypes.c_char, "_length_": size, "__slots__": ("cells",)}
    make: Any = type(ctypes.Array)
    return make("Cell", (ctypes.Array,), fields)


def _map(length: int) -> mmap.mmap:
    try:
        return mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"cannot map {length:,} bytes: {error.strerror}") from None


def _up(size: int) -> int:
    """Round up to whole pages."""
    return -(-size // _PAGE) * _PAGE
