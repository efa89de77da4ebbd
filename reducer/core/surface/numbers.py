"""What a lane reports: numbers, and for each run the ranks that are connected or waited for.

The JSON on the metrics port has these fields, in this order. A sequence is a tuple where the core
has made it, and a list where it was read from JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reducer.core.surface.table_numbers import TablePart

# (rank, number) or (bucket, count).
Rows = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class WaitingRound:
    """An open round; ``absent`` names the first of the ``absent_count`` ranks that are missing."""

    key: str
    round: int
    age_ms: int
    absent: Sequence[int]
    absent_count: int


@dataclass(frozen=True, slots=True)
class RunNumbers:
    """What one run has counted. Every field is a sum: the numbers of several runs can be added."""

    bytes_in: int
    bytes_out: int
    contributions: int
    results: int
    duplicates: int
    rounds: int
    open_rounds: int
    keys: int
    held_bytes: int
    late: Rows
    waiting: Sequence[WaitingRound]
    reconnects: int
    failovers: int
    lost_workers: int
    stats_walks: int
    stats_shared: int
    refused_rounds: int
    parked_bytes: int
    record_bytes: int
    lateness: Rows
    nonfinite: Rows
    round_counts: Rows
    round_seconds: float

    @property
    def ranks(self) -> int:
        """How many rows a page has for the ranks of the run."""
        return max(len(self.late), len(self.lateness), len(self.nonfinite))


@dataclass(frozen=True, slots=True)
class RunReport:
    """A formed run. In ``lateness`` the rank that was waited for the longest is first.

    ``lost``: the ranks without which the run goes on, each with the seconds since then, and why.
    ``own_rounds``: the rounds whose chunk 0 the lane owns; each round is one lane's own.
    """

    job: str
    title: str
    run_id: str
    world_size: int
    connected: int
    left: int
    seconds: float
    rounds: int
    own_rounds: int
    open_rounds: int
    oldest_seconds: float
    bytes_in: int
    bytes_out: int
    lateness: Rows
    disconnected: Sequence[int]
    waiting: Sequence[WaitingRound]
    lost: Sequence[tuple[int, float, str]]


@dataclass(frozen=True, slots=True)
class FormingReport:
    """A run that some ranks have not joined yet.

    ``run_id`` is empty if the run's ranks need not name it.
    """

    job: str
    title: str
    run_id: str
    world_size: int
    joined: int
    absent: Sequence[int]


@dataclass(frozen=True, slots=True)
class RunPart:
    """The part of a lane's report that is about one formed run."""

    run: RunReport
    numbers: RunNumbers


@dataclass(frozen=True, slots=True)
class FormingPart:
    """The part of a lane's report that is about one forming run."""

    forming: FormingReport


@dataclass(frozen=True, slots=True)
class EndedReport:
    """A run that ended ``seconds`` ago, and why. Its rounds are counted as in RunReport."""

    job: str
    title: str
    run_id: str
    world_size: int
    rounds: int
    own_rounds: int
    seconds: float
    cause: str


@dataclass(frozen=True, slots=True)
class EndedPart:
    """The part of a lane's report that is about one run that has ended."""

    ended: EndedReport


Part = RunPart | FormingPart | EndedPart | TablePart


@dataclass(frozen=True, slots=True)
class CoreNumbers:
    """Numbers of a lane's core as a whole; ``errors`` counts by error code."""

    lane: int
    sessions: int
    forming: int
    tables: int
    errors: Mapping[str, int]
    reserved_bytes: int
    budget_bytes: int
    registry_records: int
