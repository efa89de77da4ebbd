"""Memory that this process has allocated, from the figures of the C library.

Resident memory also includes freed memory that the allocator keeps, which depends on its version.
"""

from __future__ import annotations

import ctypes


class _Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
            "fordblks", "keepcost",
        )
    ]  # fmt: skip


def allocated() -> int | None:
    """Bytes in use by ``malloc``; None unless the C library is glibc 2.33 or later."""
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:
        return None
    mallinfo2.restype = _Mallinfo2
    info = mallinfo2()
    used: int = info.uordblks + info.hblkhd
    return used
