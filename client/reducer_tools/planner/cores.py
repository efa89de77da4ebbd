"""How many cores the bytes keep busy, at a worker and at a reducer (docs/speed.md)."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple


class Price(NamedTuple):
    """CPU seconds for each GB that goes in and out, measured by `bench.cpu`.

    ``merged``: over loopback, as with NICs that merge and segment packets. ``frames``: with frames
    of 1,500 bytes that nothing merges.
    """

    merged: float
    frames: float

    def cores(self, gbps: Fraction) -> tuple[float, float]:
        """How many cores are busy while ``gbps`` Gbit/s go in and as many go out: least and most.

        >>> Price(0.25, 0.5).cores(Fraction(32))
        (1.0, 2.0)
        """
        gigabytes = float(gbps) / 8
        return gigabytes * self.merged, gigabytes * self.frames


WORKER = Price(merged=0.33, frames=0.67)
REDUCER = Price(merged=0.26, frames=0.78)


def describe(cores: tuple[float, float]) -> str:
    """
    >>> describe((4.125, 8.75))
    '4.1 to 8.8 busy'
    """
    least, most = cores
    return f"{least:.1f} to {most:.1f} busy"
