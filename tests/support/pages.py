"""Memory between two pages that the process may not access."""

from __future__ import annotations

import ctypes
import mmap
import os
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

_NONE, _READ, _WRITE = 0, mmap.PROT_READ, mmap.PROT_WRITE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Fenced:
    """`array` is a copy that ends, or begins, at the border of such a page.

    An access one byte beyond the border ends the process (a system call fails with EFAULT). The
    context manager frees the pages.
    """

    def __init__(self, values: npt.NDArray[Any], *, at_end: bool) -> None:
        page = mmap.PAGESIZE
        self._inner = max(1, -(-values.nbytes // page)) * page
        self._whole = self._inner + 2 * page
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        start = _libc.mmap(None, self._whole, _NONE, flags, -1, 0)
        assert start not in (None, ctypes.c_void_p(-1).value), os.strerror(ctypes.get_errno())
        self._start: int = start
        self._allow(_READ | _WRITE)
        begin = start + page + (self._inner - values.nbytes if at_end else 0)
        memory = (ctypes.c_ubyte * values.nbytes).from_address(begin)
        self.array: npt.NDArray[Any] = np.frombuffer(memory, values.dtype)
        self.array[:] = values

    def forbid_writing(self) -> None:
        self._allow(_READ)

    def forbid(self) -> None:
        """Forbid all access from now on."""
        self._allow(_NONE)

    def allow(self) -> None:
        self._allow(_READ | _WRITE)

    def _allow(self, access: int) -> None:
        if _libc.mprotect(self._start + mmap.PAGESIZE, self._inner, access) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def __enter__(self) -> Fenced:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _libc.munmap(self._start, self._whole)
