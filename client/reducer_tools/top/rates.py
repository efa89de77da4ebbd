"""The change between two summaries of the same reducers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from reducer.status.summary import ReducerStatus, RunStatus, Summary
from reducer.status.tables import TableStatus


@dataclass(frozen=True)
class Rates:
    """Bytes received, bytes sent and rounds per second of one reducer."""

    received: float
    sent: float
    rounds: float


@dataclass(frozen=True)
class Change:
    """The change between two summaries.

    Reducers and runs that are only in the second summary have no entry.

    Attributes:
        rates: by address of the reducer.
        waits: by (job, run id), then by rank: the fraction of the time between the summaries during
            which at least half of the ranks waited for this rank.
        updates: by (job, run id, table): updates of the whole table per second.
    """

    rates: Mapping[str, Rates]
    waits: Mapping[tuple[str, str], Mapping[int, float]]
    updates: Mapping[tuple[str, str, str], float] = field(default_factory=dict)


def change(before: Summary, now: Summary) -> Change:
    """The change between two summaries. Reducers and runs without progress of time are omitted."""
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
    return Change(rates, waits, _updates(before, now))


def _updates(before: Summary, now: Summary) -> dict[tuple[str, str, str], float]:
    clocks = {reducer.address: reducer.clock for reducer in before.reducers}
    seconds = max(
        (r.clock - clocks[r.address] for r in now.reducers if r.address in clocks), default=0
    )
    old = {table.key: table for table in before.tables}
    if seconds <= 0:
        return {}
    return {
        table.key: max(0.0, table.updates - old[table.key].updates) / seconds
        for table in now.tables
        if table.key in old and _same_lanes(old[table.key], table)
    }


def _same_lanes(before: TableStatus, now: TableStatus) -> bool:
    return (before.lanes, before.shards) == (now.lanes, now.shards)


def _rates(before: ReducerStatus, now: ReducerStatus) -> Rates:
    seconds = now.clock - before.clock
    # The totals sum the present runs and shrink when a run ends, but a rate is never negative.
    return Rates(
        max(0, now.bytes_in - before.bytes_in) / seconds,
        max(0, now.bytes_out - before.bytes_out) / seconds,
        max(0, now.rounds - before.rounds) / seconds,
    )


def _waits(before: RunStatus, now: RunStatus) -> dict[int, float]:
    """By rank: the fraction of the time between the summaries in which others waited for it.

    A reducer counts a wait only when the rank has arrived, so a rank that is absent now gets 1.0.
    """
    seconds = now.seconds - before.seconds
    waited = {rank.rank: rank.waited for rank in before.ranks}
    return {
        rank.rank: 1.0
        if rank.absent_from is not None
        else min(1.0, max(0.0, rank.waited - waited.get(rank.rank, 0.0)) / seconds)
        for rank in now.ranks
    }
