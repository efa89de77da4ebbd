"""The settings of a lane."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from reducer.registry.records import Contents
from reducer.wire.header import Crc

# The most bytes of parts that are summed in one turn: 2 ms. A chunk with more is summed in several
# turns of its job.
MOST_SUMMED: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class LaneSettings:
    """`budget` and `credit` in bytes, times in seconds. PROTOCOL.md gives the reasons.

    Where `reducer serve` has an option for a setting, both have the same default.
    """

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
    silence: float = 5.0  # for a worker whose job sets no other
    absent_after: float = 0.5  # seconds that a rank may take to reconnect
    deserted_after: float = 5.0
    records: int = 8 << 20  # at most, in each share of a run
    job_budget: int = 0  # of one job; 0: no limit but `budget`
    max_total_runs: int = 1_024  # concurrent runs, of all jobs
    max_runs: int = 256  # of one job
    max_reducers: int = 512  # of one job
    max_keys: int = 200_000  # of one run, for each home slot
    descriptors: int = 1 << 20  # files that the process may open
    most_summed: int = MOST_SUMMED  # bytes in one turn; at least four parts
    registry_contents: Contents | None = None
    traced: bool = False  # every round is reported when it is over (Traced)
