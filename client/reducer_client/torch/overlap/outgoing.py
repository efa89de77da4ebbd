"""Which full buckets are on their way, and which wait.

backward() fills bucket 0 first, and the next forward pass needs the last bucket first. A step sends
its head, the buckets for which there is time during backward(), as they are filled. The other
buckets follow in the order in which the forward pass needs them. Rank 0 measures how many buckets
the head should have, and tells the others, who use it in the next step.

A group sends chunks by priority, but has up to 512 KiB of each round in flight to each reducer.
With several reducers, this is all of a bucket, which would then go before buckets that are needed
sooner. So during backward(), buckets wait here while the bytes in flight exceed a limit, the credit
of ByteScheduler. Afterwards all are full, and go in their order without a limit.

Law: all ranks send the buckets of a step in the same order. With other orders, each rank's credit
would be taken by buckets that other ranks hold back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np

from reducer_client.arrays import Array
from reducer_client.group import Group, wait_all_or_end
from reducer_client.torch.hook.ddp import ReductionState
from reducer_client.torch.overlap.bucket import Bucket
from reducer_client.work import Work

# The credit is at least this part of all gradients: a fast or long link needs many bytes in flight,
# and a model that is worth it has many gradients.
_PART = 8
# The head is measured in each of the first steps, and then in some.
_FIRST_STEPS = 10
_EVERY = 16


class Outgoing:
    """Sends full buckets in the order of all ranks.

    Args:
        credit: bytes that may be in flight during backward(); None for no limit, and no other order
            than that of backward().
        on_end: called with a bucket whose exchange has ended, on any thread.
        on_failure: called with the error if a bucket could not be sent.
    """

    def __init__(
        self,
        group: Group,
        state: ReductionState,
        credit: int | None,
        on_end: Callable[[Bucket], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._group = group
        self._state = state
        self._credit = credit
        self._on_end = on_end
        self._on_failure = on_failure
        self._lock = threading.RLock()
        self._count = 0
        self._order: list[int] = []  # the buckets of this step that were not sent, last first
        self._full: dict[int, Bucket] = {}
        self._filled = 0  # how many buckets were filled, during backward()
        self._flying = 0  # bytes
        self._steps = 0
        self._head = 0
        self._told: Work[Array] | None = None

    def plan(self, buckets: Sequence[Bucket]) -> None:
        """These are the buckets of each step."""
        self._count = self._head = len(buckets)
        if self._credit is not None:
            self._credit = max(self._credit, sum(bucket.nbytes for bucket in buckets) // _PART)

    def add(self, bucket: Bucket) -> None:
        """Send a full bucket, now or later. Raises ReducerErrors."""
        with self._lock:
            try:
                if not self._filled:
                    self._begin_step()
                self._full[bucket.index] = bucket
                self._filled += 1
                if self._filled == self._count:
                    self._end_step()
                self._send()
            except Exception as error:
                self._on_failure(error)
                raise

    def _begin_step(self) -> None:
        if self._told is not None:
            told, self._told = self._told, None
            self._head = int(wait_all_or_end(self._group, lambda: [told])[0][0])
        head, rest = range(self._head), range(self._head, self._count)
        self._order = [*rest, *reversed(head), *self._order]

    def _end_step(self) -> None:
        """backward() has ended: measure how many buckets it had time to send."""
        self._filled = 0
        self._steps += 1
        is_due = self._steps <= _FIRST_STEPS or not self._steps % _EVERY
        if self._credit is None or not is_due:
            return
        sent = min(self._count - len(self._order), self._head)
        has_room = sent == self._head and self._flying < self._credit
        # A head that is too long delays the next forward pass, one that is too short leaves the
        # network idle. The time of backward() varies, so the head shrinks by half of a difference.
        head = self._head + 1 + self._head // 4 if has_room else (self._head + sent + 1) // 2
        told = np.array([min(max(head, 1), self._count)], np.int64)
        key = f"{self._state.prefix}/head"
        self._told = self._group.broadcast(told, key=key, out=told)

    def _send(self) -> None:
        while self._order and self._order[-1] in self._full:
            bucket = self._full[self._order[-1]]
            if self._filled and not self._fits(bucket):
                return
            self._order.pop()
            del self._full[bucket.index]
            self._flying += bucket.nbytes
            bucket.send(self._state, self._end)

    def _fits(self, bucket: Bucket) -> bool:
        credit = self._credit
        return credit is None or not self._flying or self._flying + bucket.nbytes <= credit

    def _end(self, bucket: Bucket) -> None:
        with self._lock:
            self._flying -= bucket.nbytes
            self._on_end(bucket)
            try:
                self._send()
            except Exception as error:
                self._on_failure(error)
