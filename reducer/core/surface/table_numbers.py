"""What a lane reports about tables: where each stands, whom it waits for, and what was counted.

The JSON on the metrics port has these fields, in this order. A sequence is a tuple where the core
has made it, and a list where it was read from JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# (worker, number) or (power of two, count).
Rows = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class TableNumbers:
    """What one table has counted. Every field is a sum: numbers of several tables can be added.

    ``staleness`` has, by power p, the updates that were 2^(p-1) to 2^p - 1 updates stale (0: none);
    ``stale`` is the sum. ``excluded`` and ``included`` count the steps that a worker was left out
    of, and was in, for the workers that were left out most; only the lane that decides the steps
    has them.
    """

    applied: int
    dropped: int
    refused: int
    spoilt: int
    steps: int
    bytes_in: int
    bytes_out: int
    elements: int
    shards: int
    reserved: int
    waiting_pulls: int
    workers: int
    lost_workers: int
    stale: int
    staleness: Rows
    excluded: Rows
    included: Rows


@dataclass(frozen=True, slots=True)
class StepReport:
    """The open step of a table, from the lane that decides it. ``seconds``: since the first worker
    entered it.

    ``awaited`` has the first of the ``awaited_count`` workers that have not entered. Once the set
    is decided, it has the members whose contributions the lane lacks, if the step has been open
    for a second. ``absent``: how many workers must still come before the first step.
    """

    step: int
    generation: int
    decided: bool
    seconds: float
    entered: Sequence[int]
    entered_count: int
    awaited: Sequence[int]
    awaited_count: int
    absent: int


@dataclass(frozen=True, slots=True)
class TableReport:
    """The part of a table that is on one lane.

    ``version`` is the least and ``newest`` the greatest version of its shards; ``step`` is the last
    step that was committed. ``unready``: shards without values. ``size``: bytes of the parameters.
    ``clocks`` has the slowest workers first, each with the clocks that it has ended. ``lost`` has
    workers that went away without a goodbye.

    ``leads``: false on the lane that is the backup of the partition. ``backup`` is the state of the
    leading lane's backup: "" without backups, "missing", "filling" or "full". ``backup_lag``: how
    many changes the backup has not acknowledged; all tables of the partition share them.
    ``backup_wait``: seconds since the backup has last acknowledged a change; 0 if none waits.
    """

    job: str
    run_id: str
    name: str
    mode: str
    bound: int
    quorum: int
    wanted: int
    optimizer: str
    partition: int
    partitions: int
    size: int
    unready: int
    version: int
    newest: int
    step: int
    least_clock: int
    fastest_clock: int
    clocks: Rows
    lost: Sequence[int]
    open: StepReport | None
    leads: bool
    backup: str
    backup_lag: int
    backup_wait: float


@dataclass(frozen=True, slots=True)
class TablePart:
    """The part of a lane's report that is about one table."""

    table: TableReport
    numbers: TableNumbers
