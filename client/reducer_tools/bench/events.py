"""The events that a measuring rank emits for the display."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from reducer_tools.bench.sweep import Sweep


@dataclass(frozen=True)
class Facts:
    """The options, reducers and ranks of the measurement. Emitted when all ranks have joined."""

    sweep: Sweep
    world_size: int
    addresses: tuple[str, ...]
    lanes: tuple[int, ...]
    """Number of lanes of each reducer, in the order of the addresses."""
    chunk_table: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Turn:
    """Progress: an iteration has ended. Emitted a few times per second at most."""

    bytes: int
    done: int
    total: int


@dataclass(frozen=True)
class Row:
    """The measurement of one size. ``seconds`` has the slowest rank's time of each iteration."""

    bytes: int
    count: int
    seconds: tuple[float, ...]
    bus_factor: float
    sent: float
    """Bytes per iteration, headers included, that the rank with most wrote to its sockets."""
    received: float
    """Bytes per iteration, headers included, that the rank with most read from its sockets."""
    wrong: int | None
    """Wrong elements, over all ranks and iterations; None if the results were not checked."""

    @property
    def average(self) -> float:
        return statistics.fmean(self.seconds)

    @property
    def algbw(self) -> float:
        """Algorithm bandwidth in GB/s: bytes of the array divided by the average time."""
        return self.bytes / self.average / 1e9

    @property
    def busbw(self) -> float:
        """Bus bandwidth in GB/s: the rate at which each NIC of a ring would need the same time."""
        return self.algbw * self.bus_factor

    @property
    def wire(self) -> float:
        """GB/s of the busiest rank on the wire, in its busier direction."""
        return max(self.sent, self.received) / self.average / 1e9


Event = Facts | Turn | Row
