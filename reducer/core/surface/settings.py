"""What a lane is told when it starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from reducer.wire.header import Crc

# Bytes of parts: 2 ms. More of one chunk are summed in several turns of its job.
MOST_SUMMED: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class LaneSettings:
    """`budget` and `credit` in bytes, times in seconds; reasons: PROTOCOL.md and design.md."""

    lane: int
    lanes: int
    incarnation: bytes
    budget: int
    crc32c: Crc
    acc_itemsize: Callable[[int, int], int]
    credit: int = 4 << 20
    heartbeat: float = 0.25
    stall_after: float = 10.0
    hello_deadline: float = 2.0
    silence: float = 5.0  # of a worker whose job does not say
    lost_grace: float = 0.5
    deserted_after: float = 5.0
    records: int = 2 << 20  # of each share of a run, at most: what its records may take
    job_budget: int = 0  # of one job; 0: as much as there is
    max_jobs: int = 1_000
    max_runs: int = 1_000  # of one job
    job_keys: int = 200_000  # of one run, for each slot
    descriptors: int = 1 << 20  # that the process may open
    most_summed: int = MOST_SUMMED  # at once; four parts, if they are more
    traced: bool = False  # every round is told of when it is over
