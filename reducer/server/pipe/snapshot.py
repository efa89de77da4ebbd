"""The numbers of the daemon at one moment, from which the metrics port makes its pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from reducer.core.surface.numbers import (
    CoreNumbers,
    EndedReport,
    FormingReport,
    RunNumbers,
    RunReport,
)
from reducer.core.surface.table_numbers import TablePart


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds of a process since its start, and its resident bytes now."""

    cpu_seconds: float
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class LaneNumbers:
    """Numbers of a lane as a whole, as its process sends them."""

    lane: int
    kernels: str
    compiled: bool
    core: CoreNumbers
    loop_lag_seconds: float
    connections: int
    slow_readers: int
    turns: int
    fold_seconds: float
    unpassed: int
    refused: Mapping[str, int]
    unproven: int
    accepted: int
    internal_errors: int
    protocol_errors: int
    dropped_before_hello: int
    held_log_lines: int
    tasks: int
    buffers_out: int
    buffers_unsent: int
    buffer_bytes: int
    cached_bytes: int
    allocated: int
    dropped_log_lines: int
    cpu_seconds: float
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class JobNumbers:
    """The sum of the numbers of all runs with one title."""

    numbers: RunNumbers
    world_size: int


@dataclass(frozen=True, slots=True)
class LaneReport:
    """The report of one lane.

    ``jobs`` has the sums over all runs of a job, by the job's title; ``runs`` are the formed
    runs; ``forming`` are the runs that wait for ranks; ``ended`` are the runs that have ended in
    the last hour.
    """

    numbers: LaneNumbers
    jobs: Mapping[str, JobNumbers]
    runs: Sequence[RunReport]
    forming: Sequence[FormingReport]
    ended: Sequence[EndedReport]
    tables: Sequence[TablePart]

    def as_json(self) -> dict[str, Any]:
        """Returns the lane as /api/stats shows it."""
        jobs = {
            title: {**fields_of(job.numbers), "world_size": job.world_size}
            for title, job in self.jobs.items()
        }
        runs = [run_as_json(run) for run in self.runs]
        forming = [fields_of(run) for run in self.forming]
        ended = [fields_of(run) for run in self.ended]
        tables = [table_as_json(part) for part in self.tables]
        return {
            **fields_of(self.numbers),
            "core": {**fields_of(self.numbers.core), "jobs": jobs},
            "report": {"runs": runs, "forming": forming, "ended": ended, "tables": tables},
        }


# The names of the clocks' readings in /api/stats, which programs read.
_JSON_NAMES = {
    "monotonic_start": "started",
    "monotonic_now": "clock",
    "wall_now": "time",
    "wall_ready": "started_at",
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The main process's own numbers, and the report of every lane that has a process.

    The wall clock (seconds since 1970) says when the snapshot was made and when the daemon became
    ready. The monotonic clock measures the time between: ``monotonic_start`` is when the daemon
    started, ``monotonic_now`` when the snapshot was made. ``down`` lists the lanes that have died
    and are not restarted yet; ``lanes`` does not include them. ``restarts`` counts by lane.
    ``usage`` is the usage of the main process.
    """

    tasks: int
    monotonic_start: float
    monotonic_now: float
    version: str
    protocol: str
    mode: str
    wall_now: float
    wall_ready: float
    ready: bool
    down: Sequence[int]
    restarts: Mapping[int, int]
    accepted: int
    refused: Mapping[str, int]
    metrics_dropped: Mapping[str, int]
    dropped_log_lines: int
    usage: Usage
    lanes: Sequence[LaneReport]

    def as_json(self) -> dict[str, Any]:
        """Returns the snapshot as /api/stats shows it."""
        lanes = [lane.as_json() for lane in self.lanes]
        found = {_JSON_NAMES.get(name, name): value for name, value in fields_of(self).items()}
        return {**found, "usage": fields_of(self.usage), "lanes": lanes}


def run_as_json(run: RunReport) -> dict[str, Any]:
    return {**fields_of(run), "waiting": [fields_of(each) for each in run.waiting]}


def table_as_json(part: TablePart) -> dict[str, Any]:
    step = part.table.open
    return {
        **fields_of(part.table),
        "open": None if step is None else fields_of(step),
        "numbers": fields_of(part.numbers),
    }


_NAMES: dict[type[Any], tuple[str, ...]] = {}


def fields_of(found: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass in their order, without the deep copies of asdict()."""
    kind = type(found)
    names = _NAMES.get(kind)
    if names is None:
        names = _NAMES[kind] = tuple(field.name for field in fields(kind))
    return {name: getattr(found, name) for name in names}
