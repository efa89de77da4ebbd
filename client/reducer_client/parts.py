"""Parts: an all-reduce in place whose array fills up, and whose result is used, part by part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Parts:
    """How an array in host memory is filled and emptied while an all-reduce of it is under way.

    For copies from a device and back. The bits of the result are those of the plain call.

    Attributes:
        filled: elements from the start of the array that hold values when the call is made. The
            others follow with ``Work.fill``.
        size: elements of the result in a part; 0 if ``on_part`` is not wanted.
        on_part: function that is called, on the client's thread for ``on_done``, with the number of
            elements from the start of the result that have arrived, after each part but the last.
            The number may be that of the call before.
            The call must have ``on_done``.
    """

    filled: int
    size: int = 0
    on_part: Callable[[int], None] | None = None
