"""Memory as the core knows it: a token of the shell, stored and handed back, never read."""

from __future__ import annotations

from typing import Protocol


class Buffer(Protocol):
    """`view` is all of the memory."""

    @property
    def view(self) -> memoryview: ...
