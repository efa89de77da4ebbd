"""A summary as text for a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from reducer.columns import aligned
from reducer.status.amounts import amount, counted, duration
from reducer.status.late_ranks import RANKS_SHOWN, is_late
from reducer.status.summary import EndedStatus, RankStatus, ReducerStatus, RunStatus, Summary
from reducer.status.tables_text import lines_of, more_text

ENDED_SHOWN = 8
NO_RUN = "no job is running"
NO_ERRORS: Mapping[str, str] = {}


def as_text(summary: Summary, errors: Mapping[str, str] = NO_ERRORS) -> str:
    """A table of the reducers, then each run with its late ranks, then the tables of the jobs.

    ``errors`` has the reducers that have not answered, and why.
    """
    lines = list(_reducers(summary.reducers, errors))
    for run in summary.runs:
        lines += ["", *_run(run)]
    lines += lines_of(summary.tables)
    if summary.more_tables:
        lines.append(more_text(summary.more_tables))
    if not summary.runs and not summary.tables:
        lines += ["", NO_RUN]
    if summary.ended:
        lines += ["", *ended_lines(summary.ended)]
    return "\n".join(lines)


def ended_lines(ended: Sequence[EndedStatus]) -> list[str]:
    """A line for each of the jobs that have ended last."""
    lines = [
        f"job {run.title!r} ended {duration(run.seconds)} ago, at {_clock(run.seconds)}, after "
        f"{counted(run.rounds, 'round')} of {counted(run.world_size, 'worker')}: {run.cause}"
        for run in ended[:ENDED_SHOWN]
    ]
    if len(ended) > ENDED_SHOWN:
        lines.append(f"and {len(ended) - ENDED_SHOWN} more in the last hour (--json has them)")
    return lines


def _clock(seconds: float) -> str:
    """The local time of this many seconds ago."""
    return time.strftime("%H:%M", time.localtime(time.time() - seconds))


def why_down(address: str, error: str) -> str:
    """The reason in an error of `reducer.status.ask`, without the address and the advice."""
    return error.removeprefix(f"{address}: ").split(";")[0]


def _reducers(reducers: Sequence[ReducerStatus], errors: Mapping[str, str]) -> Iterator[str]:
    head = ("REDUCER", "LANES", "JOBS", "WORKERS", "ROUNDS", "OPEN", "IN", "OUT", "MEMORY")
    rows = [
        (
            r.address + ("" if r.ready else f" ({r.state})"),
            str(r.lanes),
            str(r.jobs),
            f"{r.workers}/{r.places}",
            f"{r.rounds:,}",
            str(r.open_rounds),
            amount(r.bytes_in),
            amount(r.bytes_out),
            f"{amount(r.memory_reserved)} of {amount(r.memory)}",
        )
        for r in reducers
    ]
    yield from aligned([head, *rows], left=(0,))
    for address, error in errors.items():
        yield f"{address}  down: {why_down(address, error)}"


def _run(run: RunStatus) -> Iterator[str]:
    yield f"job {run.title!r}{run_text(run)}"
    if run.joined is not None:
        return
    for lost in run.lost[:RANKS_SHOWN]:
        yield f"  without rank {lost.rank} since {duration(lost.seconds)}: {lost.reason}"
    if len(run.lost) > RANKS_SHOWN:
        yield f"  and without {len(run.lost) - RANKS_SHOWN} more"
    late = [rank for rank in run.ranks if is_late(rank)]
    if not late:
        yield "  nobody is late"
        return
    head = ("RANK", "WAITED FOR", "SHARE", "  NOW")
    rows = [(str(r.rank), duration(r.waited), f"{r.share:.0%}", "  " + now_text(r)) for r in late]
    yield from (f"  {line}" for line in aligned([head, *rows[:RANKS_SHOWN]], left=(3,)))
    if len(rows) > RANKS_SHOWN:
        yield f"  and {len(rows) - RANKS_SHOWN} more (--json has them)"


def run_text(run: RunStatus) -> str:
    """The state of a run, to be shown after its title."""
    if run.joined is not None:
        here = f"{run.joined} of {run.world_size} workers have joined"
        return f" is forming: {here}; absent: {_ranks_text(run.absent)}"
    told = f"{run.workers} of {counted(run.world_size, 'worker')}, {counted(run.rounds, 'round')}"
    return f", run {run.run_id!r}: {told} in {duration(run.seconds)}"


def now_text(rank: RankStatus) -> str:
    """What is wrong with the rank now; "" if nothing is."""
    texts = []
    if rank.disconnected_from:
        texts.append(f"not connected to {', '.join(rank.disconnected_from)}")
    if rank.absent_from is not None:
        wait = rank.absent_from
        texts.append(f"absent for {duration(wait.seconds)} from {wait.key!r} round {wait.round}")
    return "; ".join(texts)


def _ranks_text(ranks: Sequence[int]) -> str:
    """The first few ranks, and how many more there are."""
    shown = ", ".join(str(rank) for rank in ranks[:RANKS_SHOWN])
    more = f" and {len(ranks) - RANKS_SHOWN} more" if len(ranks) > RANKS_SHOWN else ""
    return f"rank{'' if len(ranks) == 1 else 's'} {shown}{more}"
