"""A summary as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reducer.columns import aligned
from reducer.status.amounts import amount, duration
from reducer.status.late_ranks import RANKS_SHOWN, is_late
from reducer.status.summary import RankStatus, ReducerStatus, RunStatus, Summary
from reducer.status.tables_text import lines_of, more_text

NO_RUN = "no job is running"


def as_text(summary: Summary) -> str:
    """A table of the reducers, then each run with its late ranks, then the tables of the jobs."""
    lines = list(_reducers(summary.reducers))
    for run in summary.runs:
        lines += ["", *_run(run)]
    lines += lines_of(summary.tables)
    if summary.more_tables:
        lines.append(more_text(summary.more_tables))
    if not summary.runs and not summary.tables:
        lines += ["", NO_RUN]
    return "\n".join(lines)


def _reducers(reducers: Sequence[ReducerStatus]) -> Iterator[str]:
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
    told = f"{run.workers} of {run.world_size} workers, {run.rounds:,} rounds"
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
