"""How many bytes the buffers of a run take."""

from __future__ import annotations

from reducer.core.surface.buffer import Buffer


class HeldBytes:
    """Counts the bytes of the buffers that a run holds on a lane, without walks over the buffers.

    `parked`: contributions that are in no accumulator yet. `parts`: how many these are. `summed`:
    accumulators and results. `unstable`: the cost, in credit, of complete chunks that are not
    stable.
    """

    __slots__ = ("parked", "parts", "summed", "unstable")

    def __init__(self) -> None:
        self.parked = 0
        self.parts = 0
        self.summed = 0
        self.unstable = 0

    @property
    def total(self) -> int:
        return self.parked + self.summed

    def park(self, size: int) -> None:
        self.parked += size
        self.parts += 1

    def unpark(self, count: int, size: int) -> None:
        """Take back `count` parked buffers of `size` bytes each."""
        self.parked -= count * size
        self.parts -= count

    def keep(self, summed: Buffer) -> None:
        self.summed += len(summed.view)

    def release(self, summed: Buffer) -> None:
        self.summed -= len(summed.view)
