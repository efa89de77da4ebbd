"""How long each rank of a run was waited for on this lane."""

from __future__ import annotations

from typing import Final

# Seconds. A shorter wait is ordinary traffic, so most chunks cost nothing here.
SHORTEST_WAIT: Final = 0.001


class Waits:
    """`waited[rank]`: seconds in which half of the ranks had sent a chunk and this rank had not.

    The bar is half of the ranks, so that neither one early rank nor one late rank makes all others
    look late. A second counts once, even if several chunks wait: no rank is waited for longer than
    the run has lasted. If a chunk arrives after another chunk whose wait began later, the first
    chunk may count for less than its wait.
    """

    __slots__ = ("_counted_until", "waited")

    def __init__(self, world_size: int) -> None:
        self.waited = [0.0] * world_size
        self._counted_until = [0.0] * world_size

    def note(self, rank: int, since: float, now: float) -> None:
        """A chunk has come from `rank`, for which half of the ranks had waited since `since`."""
        if now - since < SHORTEST_WAIT:
            return
        counted = self._counted_until[rank]
        if counted > since:
            since = counted
        if now > since:
            self.waited[rank] += now - since
            self._counted_until[rank] = now
