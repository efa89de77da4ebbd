"""Page-locked host memory, which is slow to make and is therefore used again."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from reducer_client.torch.staging.device import Event

# Size of the smallest buffer. Sizes are powers of two, so that a bucket of changed size finds a
# free buffer. Torch's cache of pinned memory also rounds up to powers of two.
_LEAST_BYTES = 1 << 20
# Idle buffers above this total, which is 32 buckets of DDP, return to torch's shared cache.
_IDLE_BYTES = 1 << 30


class PinnedPool:
    """Page-locked byte buffers, reused when the device has read them.

    Args:
        allocate: function that makes a buffer of a number of bytes.
        limit: total bytes of idle buffers to keep.
        least: bytes of the smallest buffer.
    """

    def __init__(
        self,
        allocate: Callable[[int], torch.Tensor],
        limit: int = _IDLE_BYTES,
        least: int = _LEAST_BYTES,
    ) -> None:
        self._allocate = allocate
        self._least = least
        self._limit = limit
        self._lock = threading.Lock()
        self._free: list[tuple[torch.Tensor, Event]] = []

    def take(self, nbytes: int) -> torch.Tensor:
        """A pinned uint8 tensor of at least ``nbytes``, of the next power of two or twice that."""
        size = max(self._least, 1 << (nbytes - 1).bit_length())
        with self._lock:
            for fitting in (size, 2 * size):
                for index, (buffer, idle) in enumerate(self._free):
                    if buffer.numel() == fitting and idle.query():
                        del self._free[index]
                        return buffer
        return self._allocate(size)

    def give(self, buffer: torch.Tensor, idle: Event) -> None:
        """Return a buffer, which is free when the event ``idle`` has happened.

        Above the limit the oldest free buffers are dropped.
        """
        with self._lock:
            self._free.append((buffer, idle))
            surplus = sum(buffer.numel() for buffer, _ in self._free) - self._limit
            kept = []
            for entry in self._free:
                if surplus > 0 and entry[1].query():
                    surplus -= entry[0].numel()
                else:
                    kept.append(entry)
            self._free = kept
