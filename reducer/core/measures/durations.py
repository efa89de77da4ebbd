"""How long rounds take, as a histogram."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

# Seconds: from a small round over loopback to one that waits for a rank until the workers give up.
# A list: mypyc makes a tuple of constants anew at each use.
BOUNDS: Final = [
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
    10.0, 60.0,
]  # fmt: skip


class Durations:
    """`counts[i]`: rounds that took at most `BOUNDS[i]` seconds and more than `BOUNDS[i - 1]`."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0

    def note(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds
