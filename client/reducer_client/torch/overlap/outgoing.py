"""Which full buckets are on their way, and which wait.

backward() fills bucket 0 first, and the next forward pass needs the last bucket first. So whenever
the network is free, the full bucket of the highest number should go. Rank 0 computes this order
from the times of its last steps, and tells the others, who use it in the next step.

Law: all ranks send the buckets of a step in the same order. Otherwise each rank would wait for
buckets that other ranks hold back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

import numpy as np

from reducer_client.arrays import Array
from reducer_client.group import Group, wait_all_or_end
from reducer_client.torch.hook.ddp import ReductionState
from reducer_client.torch.overlap.bucket import Bucket
from reducer_client.work import Work

# The order is computed in each of the first steps, and then in some.
_FIRST_STEPS = 10
_EVERY = 16


class Outgoing:
    """Sends full buckets in the order of all ranks.

    Args:
        prioritizes: whether the order of the next forward pass counts, or only that of backward().
        on_end: called with a bucket whose exchange has ended, on any thread.
        on_failure: called with the error if a bucket could not be sent.
    """

    def __init__(
        self,
        group: Group,
        state: ReductionState,
        prioritizes: bool,
        on_end: Callable[[Bucket], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._group = group
        self._state = state
        self._prioritizes = prioritizes
        self._on_end = on_end
        self._on_failure = on_failure
        self._lock = threading.RLock()
        self._sizes: list[int] = []
        self._order: list[int] = []  # of each step
        self._unsent: list[int] = []  # the buckets that were not sent, last first
        self._full: dict[int, Bucket] = {}
        self._filled_at: dict[int, float] = {}  # in this step, during backward()
        self._steps = 0
        self._link = _Link()
        self._told: Work[Array] | None = None

    def plan(self, buckets: Sequence[Bucket]) -> None:
        """These are the buckets of each step."""
        self._sizes = [bucket.nbytes for bucket in buckets]
        self._order = list(range(len(buckets)))

    def add(self, bucket: Bucket) -> None:
        """Send a full bucket, now or later. Raises ReducerErrors."""
        with self._lock:
            try:
                if not self._filled_at:
                    self._begin_step()
                self._full[bucket.index] = bucket
                self._filled_at[bucket.index] = time.monotonic()
                self._send()
                if len(self._filled_at) == len(self._sizes):
                    self._end_step()
            except Exception as error:
                self._on_failure(error)
                raise

    def _begin_step(self) -> None:
        if self._told is not None:
            told, self._told = self._told, None
            self._order = wait_all_or_end(self._group, lambda: [told])[0].tolist()
        self._unsent = [*reversed(self._order), *self._unsent]

    def _end_step(self) -> None:
        """backward() has ended: find the order for the next step."""
        filled_at, self._filled_at = self._filled_at, {}
        self._steps += 1
        self._link.begin_step()
        is_due = self._steps <= _FIRST_STEPS or not self._steps % _EVERY
        if self._prioritizes and is_due and self._link.seconds_per_byte is not None:
            seconds = [size * self._link.seconds_per_byte for size in self._sizes]
            order = find_order([filled_at[index] for index in range(len(seconds))], seconds)
        else:
            order = self._order
        if self._prioritizes and is_due:
            told = np.array(order, np.int64)
            key = f"{self._state.prefix}/sent"
            self._told = self._group.broadcast(told, key=key, out=told)

    def _send(self) -> None:
        while self._unsent and self._unsent[-1] in self._full:
            bucket = self._full.pop(self._unsent.pop())
            self._link.begin(bucket.nbytes, time.monotonic())
            bucket.send(self._state, self._end)

    def _end(self, bucket: Bucket) -> None:
        with self._lock:
            self._link.end(time.monotonic())
        self._on_end(bucket)


class _Link:
    """Measures how long the exchange of a byte takes, in the longest busy time of a step."""

    def __init__(self) -> None:
        self.seconds_per_byte: float | None = None
        self._most = 0  # bytes of the busy time that was measured
        self._flying = 0
        self._since = 0.0
        self._bytes = 0

    def begin_step(self) -> None:
        self._most = 0

    def begin(self, nbytes: int, now: float) -> None:
        if not self._flying:
            self._since, self._bytes = now, 0
        self._flying += 1
        self._bytes += nbytes

    def end(self, now: float) -> None:
        self._flying -= 1
        if not self._flying and self._bytes > self._most:
            self._most = self._bytes
            self.seconds_per_byte = (now - self._since) / self._bytes


def find_order(filled_at: Sequence[float], seconds: Sequence[float]) -> list[int]:
    """The order in which a network sends buckets if it always takes the last full one.

    Args:
        filled_at: when each bucket is full, in seconds.
        seconds: how long the network needs for each bucket.
    """
    arriving = sorted(range(len(filled_at)), key=lambda index: filled_at[index], reverse=True)
    full: list[int] = []  # a heap of negative indices
    order: list[int] = []
    now = 0.0
    while full or arriving:
        if not full:
            now = max(now, filled_at[arriving[-1]])
        while arriving and filled_at[arriving[-1]] <= now:
            heappush(full, -arriving.pop())
        order.append(-heappop(full))
        now += seconds[order[-1]]
    return order
