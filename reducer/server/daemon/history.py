"""What one reducer did since its start, in a bounded number of columns.

Each column covers the same time. When all columns are full, two neighbours become one and the
period doubles: 20 minutes fit with 5 s a column, and a week fits with 43 minutes a column.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from reducer.core.surface.numbers import RunReport
from reducer.server.pipe.snapshot import LaneReport, Snapshot, fields_of

COLUMNS: Final = 240
FIRST_PERIOD: Final = 5.0  # seconds

# A rank of a run: the job's title, the run's id, the rank.
_Rank = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class Column:
    """What happened in ``seconds``: bytes, rounds, most memory reserved, and the latest rank.

    ``waited``: the seconds in which at least half of the ranks waited for rank ``late`` of the job
    with title ``job``. ``late`` is -1 if they waited for nobody.
    """

    seconds: float
    received: int = 0
    sent: int = 0
    rounds: int = 0
    memory: int = 0
    waited: float = 0.0
    job: str = ""
    late: int = -1

    def __add__(self, after: Column) -> Column:
        latest = after if after.waited > self.waited else self
        return Column(
            self.seconds + after.seconds,
            self.received + after.received,
            self.sent + after.sent,
            self.rounds + after.rounds,
            max(self.memory, after.memory),
            latest.waited,
            latest.job,
            latest.late,
        )


@dataclass(frozen=True, slots=True)
class _Sums:
    """The counters of all lanes at one moment, on the daemon's monotonic clock."""

    clock: float
    received: int
    sent: int
    rounds: int
    waited: dict[_Rank, float]


class History:
    """Add a snapshot every `period` seconds."""

    def __init__(self, columns: int = COLUMNS, period: float = FIRST_PERIOD) -> None:
        self.period = period
        self.columns: list[Column] = []
        self._most = columns
        self._before: _Sums | None = None

    def add(self, snapshot: Snapshot) -> None:
        before, now = self._before, _sums(snapshot)
        self._before = now
        if before is None:
            return
        self.columns.append(_between(before, now, snapshot.lanes))
        if len(self.columns) >= self._most:
            pairs = zip(self.columns[::2], self.columns[1::2], strict=True)
            self.columns = [first + second for first, second in pairs]
            self.period *= 2

    def as_json(self) -> dict[str, Any]:
        """What /api/history shows."""
        return {"period": self.period, "columns": [fields_of(each) for each in self.columns]}


def _between(before: _Sums, now: _Sums, lanes: Iterable[LaneReport]) -> Column:
    """A counter is smaller than before if a lane was started again or a job was forgotten."""
    seconds = now.clock - before.clock
    waits = {
        rank: min(seconds, waited - before.waited.get(rank, 0.0))
        for rank, waited in now.waited.items()
    }
    latest = max(waits, key=waits.__getitem__, default=("", "", -1))
    waited = waits.get(latest, 0.0)
    title, _, rank = latest if waited > 0 else ("", "", -1)
    return Column(
        seconds,
        max(0, now.received - before.received),
        max(0, now.sent - before.sent),
        max(0, now.rounds - before.rounds),
        sum(lane.numbers.core.reserved_bytes for lane in lanes),
        max(0.0, waited),
        title,
        rank,
    )


def _sums(snapshot: Snapshot) -> _Sums:
    received = sent = 0
    rounds: dict[str, int] = {}  # the lanes of a job share its rounds
    waited: dict[_Rank, float] = {}
    for lane in snapshot.lanes:
        for title, job in lane.jobs.items():
            rounds[title] = max(rounds.get(title, 0), job.numbers.rounds)
            received += job.numbers.bytes_in
            sent += job.numbers.bytes_out
        for part in lane.tables:
            received += part.numbers.bytes_in
            sent += part.numbers.bytes_out
        for run in lane.runs:
            for rank, seconds in _waits(run).items():
                key = (run.title, run.run_id, rank)
                waited[key] = max(waited.get(key, 0.0), seconds)
    return _Sums(snapshot.monotonic_now, received, sent, sum(rounds.values()), waited)


def _waits(run: RunReport) -> dict[int, float]:
    """How long the others waited for each rank, the oldest round that waits for it now included."""
    found = {int(rank): float(seconds) for rank, seconds in run.lateness}
    now: dict[int, float] = {}
    for waiting in run.waiting:
        for rank in waiting.absent:
            now[rank] = max(now.get(rank, 0.0), waiting.age_ms / 1000)
    for rank, seconds in now.items():
        found[rank] = found.get(rank, 0.0) + seconds
    return found
