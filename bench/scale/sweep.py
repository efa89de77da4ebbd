"""Runs the cases; the result is one Row for each number of workers and size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from bench.scale.cluster import Case, Cluster
from bench.scale.host import Prices
from bench.scale.outcome import Outcome
from reducer.wire.checks import ChunkTable
from reducer_client.config import default_chunk_table

_SMALLEST, _LARGEST = 4 << 10, 1 << 20
_MOST_CONTRIBUTIONS = 16_384  # to a lane, of one round
HEARTBEATS_A_SECOND = 4.0
# A host has enough lanes if lanes without CPU time would be faster by at most this factor.
ENOUGH = 1.02


@dataclass(frozen=True, slots=True)
class Row:
    """The results for one number of workers and size.

    They are: the default chunk table without and with the price of CPU, and the chunk size that is
    fastest with that price.
    """

    case: Case
    free: Outcome
    paid: Outcome
    best_chunk: int
    best_free: Outcome
    best: Outcome

    def relative(self, outcome: Outcome) -> float:
        """Time as a multiple of N / BW; 0 if the job was refused."""
        return outcome.timing.seconds / self.case.ideal

    @property
    def idle_lane_busy(self) -> float:
        """Share of a lane's core for the heartbeats of an idle job, in both directions."""
        return 2 * HEARTBEATS_A_SECOND * self.case.workers * self.case.lane_prices.frame

    @property
    def idle_worker_frames(self) -> float:
        """Heartbeats per second of one worker of an idle job, in both directions."""
        return 2 * HEARTBEATS_A_SECOND * self.case.all_lanes

    def as_dict(self) -> dict[str, Any]:
        """For one line of JSON; `x` are multiples of N / BW."""
        return {
            "case": asdict(self.case),
            "free_x": round(self.relative(self.free), 4),
            "paid_x": round(self.relative(self.paid), 4),
            "best_free_x": round(self.relative(self.best_free), 4),
            "best_x": round(self.relative(self.best), 4),
            "best_chunk": self.best_chunk,
            "free": asdict(self.free),
            "paid": asdict(self.paid),
            "best_free": asdict(self.best_free),
            "best": asdict(self.best),
        }


def rows(cases: Sequence[Case]) -> Iterator[Row]:
    for case in cases:
        case = replace(case, table=default_chunk_table(case.reducers))
        chunk = best_chunk(case)
        best = replace(case, table=one_size(chunk))
        yield Row(case, run(free(case)), run(case), chunk, run(free(best)), run(best))


def free(case: Case) -> Case:
    """The same case on CPUs that take no time."""
    return replace(case, lane_prices=Prices(), worker_prices=Prices())


def run(case: Case) -> Outcome:
    return Cluster(case).run()


def best_chunk(case: Case) -> int:
    """The fastest chunk size that is a power of two; the smallest if all are refused."""
    found: dict[int, float] = {}
    for chunk in _candidates(case):
        outcome = run(replace(case, table=one_size(chunk), rounds=1))
        if not outcome.refused:
            found[chunk] = outcome.timing.seconds
    return min(found, key=lambda chunk: found[chunk], default=_SMALLEST)


def one_size(chunk: int) -> ChunkTable:
    return ((0, chunk),)


def _candidates(case: Case) -> list[int]:
    """Powers of two. The smallest gives a lane at most _MOST_CONTRIBUTIONS contributions, unless
    that needs more than _LARGEST; the largest gives each lane one chunk.
    """
    per_lane = case.round_bytes / case.all_lanes
    least = min(per_lane * case.workers / _MOST_CONTRIBUTIONS, _LARGEST)
    sizes = [1 << power for power in range(12, 21)]
    return [size for size in sizes if least <= size <= max(_SMALLEST, per_lane)]


@dataclass(frozen=True, slots=True)
class LaneCount:
    """The result of a number of lanes per host, at the best chunk size for that number."""

    case: Case
    chunk: int
    free: Outcome
    paid: Outcome

    @property
    def free_x(self) -> float:
        return self.free.timing.seconds / self.case.ideal

    @property
    def paid_x(self) -> float:
        return self.paid.timing.seconds / self.case.ideal

    def as_dict(self) -> dict[str, Any]:
        """For one line of JSON; `x` are multiples of N / BW."""
        return {
            "case": asdict(self.case),
            "chunk": self.chunk,
            "free_x": round(self.free_x, 4),
            "paid_x": round(self.paid_x, 4),
            "free": asdict(self.free),
            "paid": asdict(self.paid),
        }

    @property
    def is_enough(self) -> bool:
        """Whether lanes whose CPU takes no time would hardly be faster."""
        return self.paid_x <= ENOUGH * self.free_x


def lane_counts(case: Case, counts: Sequence[int]) -> Iterator[LaneCount]:
    for lanes in counts:
        here = replace(case, lanes=lanes)
        chunk = best_chunk(here)
        here = replace(here, table=one_size(chunk))
        yield LaneCount(here, chunk, run(free(here)), run(here))
