"""A device on the CPU whose work runs in any order that its streams and events allow.

The device implements ``reducer_client.torch.staging.device.Device``. Its tensors are CPU tensors,
and its work is queued functions. `step` runs one piece of work, of a stream chosen by the seed, so
work that does not wait for what it needs finds wrong bytes in some schedule.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import torch


class DeadlockError(Exception):
    """Nothing can run, and something waits."""


class SimulatedEvent:
    """Counts its records; a stream waits for the record that was the last one at the time."""

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device
        self.recorded = 0
        self.happened = 0

    def record(self, stream: SimulatedStream) -> None:
        if self._device.omits("record"):
            return
        self.recorded += 1
        stream.queue.append((None, self._happen(self.recorded)))

    def query(self) -> bool:
        return self._device.omits("query") or self.happened >= self.recorded

    def synchronize(self) -> None:
        if self._device.omits("synchronize"):
            return
        while self.happened < self.recorded:
            self._device.meanwhile()

    def _happen(self, number: int) -> Callable[[], None]:
        def happen() -> None:
            self.happened = max(self.happened, number)

        return happen


class SimulatedStream:
    """Pieces of work, each with a condition; None means that it may run at once."""

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device
        self.speed = device.random.random() ** 3 + 0.01  # some streams are much slower than others
        self.queue: deque[tuple[Callable[[], bool] | None, Callable[[], None]]] = deque()

    def wait_event(self, event: SimulatedEvent) -> None:
        if self._device.omits("wait_event"):
            return
        number = event.recorded
        self.queue.append((lambda: event.happened >= number, lambda: None))

    def is_ready(self) -> bool:
        if not self.queue:
            return False
        condition, _ = self.queue[0]
        return condition is None or condition()


class SimulatedDevice:
    """See this module.

    Args:
        omitted: call that does nothing, as "method@caller", to see that a test fails without it.

    Attributes:
        calls: the calls of streams, events and memory so far, as "method@caller".
        meanwhile: runs something while a thread of the host waits for an event; by default `step`.
    """

    def __init__(self, seed: int, omitted: str = "") -> None:
        self.random = Random(seed)
        self.calls: set[str] = set()
        self.meanwhile: Callable[[], None] = self.step
        self._omitted = omitted
        self._streams: list[SimulatedStream] = []
        self._kept: dict[int, set[SimulatedStream]] = {}
        # By stream and size: memory that was returned, and the events until which it is kept.
        self._returned: list[tuple[SimulatedStream, torch.Tensor, list[SimulatedEvent]]] = []
        self.current = self.new_stream()

    # --- Device ---

    def current_stream(self) -> SimulatedStream:
        return self.current

    def new_stream(self) -> SimulatedStream:
        self._streams.append(SimulatedStream(self))
        return self._streams[-1]

    def new_event(self) -> SimulatedEvent:
        return SimulatedEvent(self)

    @contextmanager
    def on(self, stream: SimulatedStream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def queue(self, stream: SimulatedStream, work: Callable[[], None]) -> None:
        stream.queue.append((None, work))

    def keep(self, tensor: torch.Tensor, stream: SimulatedStream) -> None:
        if not self.omits("keep"):
            self._kept.setdefault(tensor.data_ptr(), set()).add(stream)

    def pinned(self, nbytes: int) -> torch.Tensor:
        return torch.full((nbytes,), 0xEE, dtype=torch.uint8)

    def can_order(self) -> bool:
        return True

    def queue_write(self, stream: SimulatedStream, word: torch.Tensor, value: int) -> None:
        if not self.omits("queue_write"):
            stream.queue.append((None, lambda: word.fill_(value)))

    def queue_wait(self, stream: SimulatedStream, word: torch.Tensor) -> None:
        if not self.omits("queue_wait"):
            stream.queue.append((lambda: int(word) >= 1, lambda: None))

    def check_start(self) -> None: ...

    # --- the program's memory ---

    def allocate(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """Memory for the current stream, used again as soon as CUDA's rules allow."""
        for index, (stream, flat, events) in enumerate(self._returned):
            fits = flat.numel() == numel and flat.dtype is dtype
            if stream is self.current and fits and all(e.happened >= e.recorded for e in events):
                del self._returned[index]
                return flat
        return torch.zeros(numel, dtype=dtype)

    def free(self, flat: torch.Tensor) -> None:
        """Return memory of the current stream."""
        events = []
        for stream in self._kept.pop(flat.data_ptr(), ()):
            event = SimulatedEvent(self)
            event.recorded = 1
            stream.queue.append((None, event._happen(1)))
            events.append(event)
        self._returned.append((self.current, flat, events))

    # --- the schedule ---

    def step(self) -> None:
        """Run a piece of work. Raises DeadlockError if none may run."""
        ready = [stream for stream in self._streams if stream.is_ready()]
        if not ready:
            raise DeadlockError
        (stream,) = self.random.choices(ready, [stream.speed for stream in ready])
        stream.queue[0][1]()
        stream.queue.popleft()  # when the work has been done: `synchronize` looks at the queue

    def synchronize(self) -> None:
        """Run all work."""
        while any(stream.queue for stream in self._streams):
            self.step()

    def omits(self, method: str) -> bool:
        call = f"{method}@{sys._getframe(2).f_code.co_name}"
        self.calls.add(call)
        return call == self._omitted


class ThreadedDevice(SimulatedDevice):
    """A device that works by itself, on a thread, while the program goes on."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.meanwhile = self.wait_briefly
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._work, name="simulated-device")
        self._thread.start()

    def synchronize(self) -> None:
        while any(stream.queue for stream in self._streams):
            self.wait_briefly()

    def wait_briefly(self) -> None:
        self._ends.wait(0.0005)

    def close(self) -> None:
        self._ends.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._ends.is_set():
            try:
                self.step()
            except DeadlockError:
                self.wait_briefly()


class ImmediateDevice(SimulatedDevice):
    """A device whose work runs when it is queued, for programs that use the tensors directly."""

    def __init__(self) -> None:
        super().__init__(0)

    def queue(self, stream: Any, work: Callable[[], None]) -> None:
        self.synchronize()
        work()

    def omits(self, method: str) -> bool:
        return method in ("wait_event", "record", "synchronize", "query", "keep")
