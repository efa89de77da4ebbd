"""The copies of gradients that are on their way, in buffers that are used again and again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from reducer_client.tables.layout import Vector
from reducer_client.tables.shared import Shared

MOST_IN_FLIGHT = 8  # pushes of a table; a further one waits


class Staging:
    """One gradient, or a sum of gradients. ``weight``: the number of gradients in the sum.

    ``keeps``: the objects whose memory the vector borrows; None if the memory belongs to the pool.
    ``uses``: the number of users of the vector.
    """

    def __init__(self, vector: Vector, keeps: object = None) -> None:
        self.vector = vector
        self.bytes = vector.data.cast("B")
        self.keeps = keeps
        self.weight = 1
        self.uses = 1


class StagingPool:
    """Memory for the gradients of one table. Each caller holds the lock.

    ``check`` raises the error of a table that has failed.
    """

    def __init__(self, shared: Shared, count: int, table: str, check: Callable[[], None]) -> None:
        self._shared = shared
        self._check = check
        self._count = count
        self._table = table
        self._free: list[Vector] = []
        self._in_use = 0

    def acquire(self, timeout: float | None, borrowed: Vector | None, keeps: object) -> Staging:
        """A staging vector, or the borrowed one. Waits while too many pushes are in flight.

        Raises RoundTimeoutError.
        """
        self._shared.wait_until(self._has_room, timeout, self._describe)
        self._in_use += 1
        if borrowed is not None:
            return Staging(borrowed, keeps)
        vector = self._free.pop() if self._free else np.empty(self._count, np.float32)
        return Staging(vector)

    def release(self, staging: Staging) -> None:
        """A user of the vector needs it no more."""
        staging.uses -= 1
        if staging.uses:
            return
        self._in_use -= 1
        if staging.keeps is None:
            self._free.append(staging.vector)
        staging.keeps = None
        self._shared.changed.notify_all()

    def _has_room(self) -> bool:
        self._check()
        return self._in_use < MOST_IN_FLIGHT

    def _describe(self, limit: float) -> str:
        return (
            f"table {self._table!r}: {MOST_IN_FLIGHT} pushes are in flight, and none has had its "
            f"receipt within {limit:g} s"
        )
