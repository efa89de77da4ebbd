"""What a measuring rank tells whoever shows it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import ClassVar

from reducer_tools.bench.sweep import Sweep


@dataclass(frozen=True)
class Facts:
    """Known as soon as all ranks have joined."""

    lasting: ClassVar[bool] = True

    sweep: Sweep
    world_size: int
    addresses: tuple[str, ...]
    lanes: tuple[int, ...]
    """Of each reducer, in the order of the addresses."""
    chunk_table: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Turn:
    """An iteration has ended; sent a few times a second at most. Progress, to be shown or not."""

    lasting: ClassVar[bool] = False

    bytes: int
    done: int
    total: int


@dataclass(frozen=True)
class Row:
    """One size, measured; ``seconds`` are those of the slowest rank, one for each iteration."""

    lasting: ClassVar[bool] = True

    bytes: int
    count: int
    seconds: tuple[float, ...]
    bus_factor: float
    sent: float
    """Bytes that the busiest rank wrote to its sockets in an iteration, our headers included."""
    received: float
    wrong: int | None
    """Wrong elements, over all ranks and iterations; None if nobody looked."""

    @property
    def average(self) -> float:
        return statistics.fmean(self.seconds)

    @property
    def algbw(self) -> float:
        """GB/s: bytes of the array over the average time."""
        return self.bytes / self.average / 1e9

    @property
    def busbw(self) -> float:
        """GB/s that a ring's NICs would have to move for the same time."""
        return self.algbw * self.bus_factor

    @property
    def wire(self) -> float:
        """GB/s of the busiest rank in its busier direction."""
        return max(self.sent, self.received) / self.average / 1e9


Event = Facts | Turn | Row
