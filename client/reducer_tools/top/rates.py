"""What has happened between two looks at the same reducers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reducer.status.summary import ReducerStatus, RunStatus, Summary


@dataclass(frozen=True)
class Rates:
    """Of one reducer, a second."""

    received: float
    sent: float
    rounds: float


@dataclass(frozen=True)
class Change:
    """What was seen for the first time has no rates: it is not in here.

    `waits`: by job and run id, then by rank: the share of the time between the looks in which
    others waited for it.
    """

    rates: Mapping[str, Rates]
    waits: Mapping[tuple[str, str], Mapping[int, float]]


def change(before: Summary, now: Summary) -> Change:
    """Of two summaries; the sums of a reducer shrink with each run that ends, its rates do not."""
    old_reducers = {reducer.address: reducer for reducer in before.reducers}
    old_runs = {(run.job, run.run_id): run for run in before.runs}
    rates = {
        reducer.address: _rates(old_reducers[reducer.address], reducer)
        for reducer in now.reducers
        if reducer.address in old_reducers and reducer.clock > old_reducers[reducer.address].clock
    }
    waits = {
        key: _waits(old_runs[key], run)
        for run in now.runs
        if (key := (run.job, run.run_id)) in old_runs and run.seconds > old_runs[key].seconds
    }
    return Change(rates, waits)


def _rates(before: ReducerStatus, now: ReducerStatus) -> Rates:
    seconds = now.clock - before.clock
    return Rates(
        max(0, now.bytes_in - before.bytes_in) / seconds,
        max(0, now.bytes_out - before.bytes_out) / seconds,
        max(0, now.rounds - before.rounds) / seconds,
    )


def _waits(before: RunStatus, now: RunStatus) -> dict[int, float]:
    """A wait is counted once the rank has come; until then that it is absent says as much."""
    seconds = now.seconds - before.seconds
    waited = {rank.rank: rank.waited for rank in before.ranks}
    return {
        rank.rank: 1.0
        if rank.absent_from is not None
        else min(1.0, max(0.0, rank.waited - waited.get(rank.rank, 0.0)) / seconds)
        for rank in now.ranks
    }
