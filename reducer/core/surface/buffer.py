"""A buffer as the core knows it: an object of the shell that the core stores and hands back.

The core never reads a buffer's memory.
"""

from __future__ import annotations

from typing import Protocol


class Buffer(Protocol):
    """`view` is all of the memory."""

    @property
    def view(self) -> memoryview: ...
