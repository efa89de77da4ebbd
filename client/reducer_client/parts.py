"""Calls on arrays that a device fills and empties while the call is under way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from reducer_client.arrays import Array


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


@dataclass(frozen=True)
class DeviceWords:
    """Two words in host memory, by which a device and the client's engine take turns.

    No thread of the program takes part, and no interpreter: the program may wait for the device
    meanwhile. Each word is an array of one uint32, 0 at the start, and stays until the call has
    ended.

    Attributes:
        slices: how many slices of the array are there; the device sets it.
        slice: elements of a slice, the last of which may be shorter. Only an all-reduce in place
            may have several.
        gate: becomes ``DONE`` or ``FAILED`` when the call has ended.
    """

    DONE: ClassVar[int] = 1
    FAILED: ClassVar[int] = 2

    slices: Array
    slice: int
    gate: Array
