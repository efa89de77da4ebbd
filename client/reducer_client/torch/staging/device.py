"""What the staging needs of a device: streams, events, and memory that host and device share.

Laws of a device, as of CUDA:
 - A stream runs its work in the order in which it was queued. Streams run beside each other, in any
   order, except that an event makes one wait for another.
 - Queueing returns at once. The host knows that work has been done only from an event.
 - Memory that a tensor has returned may be used again by later work of the stream on which the
   tensor was made, unless ``keep`` named another stream.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch


class Event(Protocol):
    """A place in a stream, set by the last ``record``."""

    def record(self, stream: Any) -> None: ...
    def query(self) -> bool:
        """Whether the work before the event has been done."""

    def synchronize(self) -> None:
        """Let this thread sleep until the work before the event has been done."""


class Stream(Protocol):
    """A queue of work."""

    def wait_event(self, event: Any) -> None:
        """Work that is queued from now on waits for the event as it is recorded now."""


class Device(Protocol):
    """One device. Any thread may call it."""

    def current_stream(self) -> Stream:
        """The stream on which the calling thread's program queues its work."""

    def new_stream(self) -> Stream: ...
    def new_event(self) -> Event: ...
    def on(self, stream: Stream) -> AbstractContextManager[Any]:
        """Context in which the stream is the current one."""

    def queue(self, stream: Stream, work: Callable[[], None]) -> None:
        """Queue the copies and kernels of ``work``."""

    def keep(self, tensor: torch.Tensor, stream: Stream) -> None:
        """Keep the tensor's memory, once it is returned, until the stream's work has been done."""

    def pinned(self, nbytes: int) -> torch.Tensor:
        """Page-locked host memory, as uint8, which the device reads and writes."""

    def can_order(self) -> bool:
        """Whether the device has `queue_write` and `queue_wait`."""

    def queue_write(self, stream: Stream, word: torch.Tensor, value: int) -> None:
        """Queue a write to a pinned int32. The host then also sees all copies before it."""

    def queue_wait(self, stream: Stream, word: torch.Tensor) -> None:
        """Let later work of the stream wait until a pinned int32 is 1 or more."""

    def check_start(self) -> None:
        """Raise RuntimeError if no copy can be queued now, such as while a graph is captured."""
