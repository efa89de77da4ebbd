"""Compares an all-reduce with a ring, by the measured time and by the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from reducer.wire.sizes import contribution_bytes, result_bytes
from reducer_tools.bench.events import Facts, Row
from reducer_tools.bench.progress import short_size
from reducer_tools.planner import network_time
from reducer_tools.planner.plan import find_winner
from reducer_tools.planner.text import format_seconds


@dataclass(frozen=True)
class Rates:
    """Rate of one NIC in Gbit/s, each way; None if it is not known."""

    worker_gbps: float | None = None
    reducer_gbps: float | None = None

    def __post_init__(self) -> None:
        if self.worker_gbps is None and self.reducer_gbps is not None:
            raise ValueError(
                "reducer-gbps needs worker-gbps as well: the comparison needs the rate of both NICs"
            )
        for field, rate in (("worker-gbps", self.worker_gbps), ("reducer-gbps", self.reducer_gbps)):
            if rate is not None and not 0 < rate < float("inf"):
                raise ValueError(f"{field}: expected a number above 0, got {rate:g}")


@dataclass(frozen=True)
class RingComparison:
    """The comparison for one row. Unknown values are None.

    ``ring_seconds`` is the shortest time that a ring can need.
    """

    bytes: int
    measured_seconds: float
    ring_wins_above_gbps: float
    """The worker rate at which a ring would need the measured time."""
    worker_gbps: float | None = None
    ring_seconds: float | None = None
    model_seconds: float | None = None

    @property
    def lines(self) -> list[str]:
        """The comparison as lines of text, each shorter than 80 columns."""
        size = short_size(self.bytes)
        measured = f"{size}, measured: {format_seconds(self.measured_seconds)}"
        if self.ring_seconds is None:
            rate = f"{self.ring_wins_above_gbps:.3g} Gbit/s"
            return [f"{measured}; a ring is faster only above {rate} a worker"]
        ring = format_seconds(self.ring_seconds)
        lines = []
        if self.model_seconds is not None:
            lines += [
                f"{size}, model: a ring would need 2(n-1)/n x N/BW = {ring};",
                f"  these reducers max(N/BW, W*N/(R*BW_r)) = {format_seconds(self.model_seconds)}: "
                + _describe_winner(self.model_seconds, self.ring_seconds),
            ]
        lines.append(
            f"{measured}; a ring at {self.worker_gbps:g} Gbit/s needs {ring}: "
            + _describe_winner(self.measured_seconds, self.ring_seconds)
        )
        return lines

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "bytes": self.bytes,
            "measured_seconds": self.measured_seconds,
            "ring_wins_above_gbps": self.ring_wins_above_gbps,
        }
        if self.ring_seconds is not None:
            found["ring_seconds"] = self.ring_seconds
            found["winner"] = find_winner(self.measured_seconds, self.ring_seconds)
            if self.model_seconds is not None:
                found["model_seconds"] = self.model_seconds
                found["model_winner"] = find_winner(self.model_seconds, self.ring_seconds)
        return found


def compare_with_ring(facts: Facts, row: Row, rates: Rates) -> RingComparison | None:
    """The comparison for one size; None for another collective or a single worker."""
    workers = facts.world_size
    if facts.sweep.collective != "all_reduce" or workers < 2:
        return None
    wire = facts.sweep.wire
    size = max(contribution_bytes(wire, row.count), result_bytes(wire, row.count))
    ring = modelled = None
    if rates.worker_gbps is not None:
        ring = network_time.ring_seconds(size, workers, rates.worker_gbps)
        if rates.reducer_gbps is not None:
            modelled = network_time.reducer_seconds(
                size, workers, rates.worker_gbps, len(facts.addresses), rates.reducer_gbps
            )
    return RingComparison(
        row.bytes,
        row.average,
        network_time.ring_gbps(size, workers, row.average),
        rates.worker_gbps,
        ring,
        modelled,
    )


def _describe_winner(reducers: float, ring: float) -> str:
    winner = find_winner(reducers, ring)
    if winner == "neither":
        return "as fast"
    if winner == "reducers":
        return f"reducers win {ring / reducers:.2f}x"
    return f"the ring wins {reducers / ring:.2f}x"
