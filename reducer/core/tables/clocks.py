"""The clocks of the workers of one table on one lane (stale synchronous parallel).

Law (T16): the minimum never falls. A worker that joins is seated at the lane's own maximum; a
worker that leaves, or is lost, is taken out, which can only raise the minimum. Until the first
`founders` workers have come, the minimum is 0: nobody runs ahead of workers that still start. A
backup computes no minimum: it gets the clocks of the workers one after the other.
"""

from __future__ import annotations


class Clocks:
    """`least`: every worker has ended this many clocks. `top`: the most that any worker has.
    `awaited`: the founders that have not come, or a number below 1.
    """

    __slots__ = ("_of", "awaited", "least", "top")

    def __init__(self, founders: int) -> None:
        self.awaited = founders
        self._of: dict[int, int] = {}
        self.top = 0
        self.least = 0

    def seat(self, worker: int) -> int:
        """Take a worker in, unless it is seated. Returns its clock."""
        if worker not in self._of:
            self._of[worker] = 0 if self.awaited > 0 else self.top
            self.awaited -= 1
            self._update()
        return self._of[worker]

    def advance(self, worker: int, clock: int) -> bool:
        """The worker has ended `clock` clocks. Returns whether the minimum has risen.

        A clock that is not above the worker's own changes nothing: the call was repeated.
        """
        if worker not in self._of or clock <= self._of[worker]:
            return False
        self._of[worker] = clock
        self.top = max(self.top, clock)
        return self._update()

    def restore(self, worker: int, clock: int) -> None:
        """The primary has the worker at this clock."""
        if worker not in self._of:
            self.awaited -= 1
        self._of[worker] = max(clock, self._of.get(worker, 0))
        self.top = max(self.top, clock)

    def restore_all(self, least: int, awaited: int) -> None:
        """The primary has told the clocks of its present workers; others have left before."""
        self.least = max(self.least, least)
        self.top = max(self.top, least)
        self.awaited = awaited

    def lead(self) -> None:
        """The backup has become the primary."""
        self._update()

    def leave(self, worker: int) -> bool:
        """Returns whether the minimum has risen."""
        if self._of.pop(worker, None) is None:
            return False
        return self._update()

    def rows(self) -> list[tuple[int, int]]:
        """(worker, clock), ascending."""
        return sorted(self._of.items())

    def _update(self) -> bool:
        if self.awaited > 0:
            return False
        least = min(self._of.values()) if self._of else self.top
        if least <= self.least:
            return False
        self.least = least
        return True
