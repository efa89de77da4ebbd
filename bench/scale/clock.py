"""Simulated time: runs actions in the order of their times."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

Action = Callable[..., None]


class StuckError(Exception):
    """The simulation reached its time limit before its end."""


class Clock:
    """The clock; `now` is in seconds. Actions with the same time run in the order of submission."""

    def __init__(self) -> None:
        self.now = 0.0
        self.stopped = False
        self._numbers = count()
        self._queue: list[tuple[float, int, Action, tuple[Any, ...]]] = []

    def at(self, time: float, action: Action, *arguments: Any) -> None:
        heapq.heappush(self._queue, (time, next(self._numbers), action, arguments))

    def run(self, limit: float) -> None:
        """Run until an action sets `stopped`; raises StuckError beyond `limit` seconds."""
        self.stopped = False
        queue = self._queue
        while not self.stopped:
            if not queue or queue[0][0] > limit:
                raise StuckError(f"not finished after {self.now:.3f} of {limit:.3f} s")
            self.now, _, action, arguments = heapq.heappop(queue)
            action(*arguments)


class Core:
    """One CPU core: jobs one after the other, each with a price in seconds.

    A job may spend more time while it runs; the next job begins after that time.
    """

    def __init__(self, clock: Clock) -> None:
        self.busy = 0.0  # seconds
        self._clock = clock
        self._jobs: deque[tuple[float, Action, tuple[Any, ...]]] = deque()
        self._free_at = 0.0
        self._running = False

    def submit(self, seconds: float, action: Action, *arguments: Any) -> None:
        """Spend `seconds` when the core is free, then act."""
        self._jobs.append((seconds, action, arguments))
        if not self._running:
            self._running = True
            self._begin()

    def spend(self, seconds: float) -> float:
        """Spend more time inside an action; returns the time when the work is done."""
        self.busy += seconds
        self._free_at = max(self._free_at, self._clock.now) + seconds
        return self._free_at

    def _begin(self) -> None:
        seconds, action, arguments = self._jobs.popleft()
        self._clock.at(self.spend(seconds), self._finish, action, arguments)

    def _finish(self, action: Action, arguments: tuple[Any, ...]) -> None:
        action(*arguments)
        if self._free_at > self._clock.now:
            self._clock.at(self._free_at, self._next)
        else:
            self._next()

    def _next(self) -> None:
        if self._jobs:
            self._begin()
        else:
            self._running = False
