"""Tables of jobs as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from reducer.columns import aligned
from reducer.status.amounts import amount, counted, duration
from reducer.status.late_ranks import RANKS_SHOWN
from reducer.status.tables import WAITING_SECONDS, LateWorker, TableStatus

LEFT = (0, 1, 9)  # columns that begin at the left


def head(updates: str = "UPDATES") -> tuple[str, ...]:
    """The names of the columns of `cells`."""
    return (
        "TABLE", "MODE", "LANES", "SIZE", "VERSION", updates, "STALENESS", "DROPPED", "REFUSED",
        "  NOW",
    )  # fmt: skip


def cells(table: TableStatus, updates: str) -> tuple[str, ...]:
    return (
        # repr, because a name may contain control sequences of a terminal.
        repr(table.name)[1:-1],
        mode_text(table),
        f"{table.lanes}/{table.partitions}",
        amount(table.bytes),
        version_text(table),
        updates,
        staleness_text(table),
        f"{table.dropped:,}",
        f"{table.refused:,}",
        "  " + now_text(table),
    )


def by_run(tables: Sequence[TableStatus]) -> Mapping[tuple[str, str], list[TableStatus]]:
    """The tables by job and run id."""
    found: dict[tuple[str, str], list[TableStatus]] = {}
    for table in tables:
        found.setdefault((table.job, table.run_id), []).append(table)
    return found


def title(job: str, run_id: str, tables: Sequence[TableStatus]) -> str:
    run = f", run {run_id!r}" if run_id else ""
    count = min(table.workers for table in tables)
    lost = sorted({worker for table in tables for worker in table.lost})
    gone = f"; lost: {_workers(lost)}" if lost else ""
    return f"tables of job {job!r}{run}: {counted(count, 'worker')}{gone}"


def lines_of(tables: Sequence[TableStatus]) -> Iterator[str]:
    """The tables of each job and run, with a title."""
    for (job, run_id), found in by_run(tables).items():
        yield ""
        yield title(job, run_id, found)
        rows = [cells(table, f"{table.updates:,.0f}") for table in found]
        yield from (f"  {line}" for line in aligned([head(), *rows], left=LEFT))


def mode_text(table: TableStatus) -> str:
    """The mode, with its bound or quorum."""
    if table.mode == "step":
        of = "all" if table.quorum == table.wanted else str(table.quorum)
        return f"step, {of} of {table.wanted}"
    if table.mode == "ssp" or table.bound >= 0:
        return f"{table.mode}, bound {table.bound}"
    return table.mode


def version_text(table: TableStatus) -> str:
    if table.oldest == table.newest:
        return f"{table.oldest:,}"
    return f"{table.oldest:,}..{table.newest:,}"


def staleness_text(table: TableStatus) -> str:
    """The median and the 99th percentile; "-" before the first update, and in mode step."""
    if table.mode == "step" or table.staleness_p50 is None:
        return "-"
    return f"p50 {table.staleness_p50:,}, p99 {table.staleness_p99:,}"


def now_text(table: TableStatus) -> str:
    """What the table waits for, and who is late; "" if nothing is wrong."""
    texts = []
    if not table.ready:
        texts.append("waits for its first values")
    if table.absent:
        texts.append(f"waits for {counted(table.absent, 'more worker')}")
    texts += _late_texts(table)
    texts += _backup_texts(table)
    if table.spoilt:
        texts.append(f"{table.spoilt:,} updates have overflowed")
    return "; ".join(texts)


def more_text(more: int) -> str:
    return f"and {counted(more, 'more table')}"


def _late_texts(table: TableStatus) -> Iterator[str]:
    if table.waited:
        waits = f"step {table.step + 1:,} waits {duration(table.waited)} for"
        waited = sorted(each.worker for each in table.late if each.waited)
        if table.decided and not waited:
            yield f"{waits} the other lanes"
        else:
            yield f"{waits} {'data of ' if table.decided else ''}{_workers(waited, table.awaited)}"
    if behind := [each for each in table.late if each.behind]:
        clocks = max(each.behind for each in behind)
        names = _workers([each.worker for each in behind])
        yield f"pulls wait for {names}, {counted(clocks, 'clock')} behind"
    if excluded := [each for each in table.late if each.share]:
        shown = ", ".join(_share(each) for each in excluded[:RANKS_SHOWN])
        more = len(excluded) - RANKS_SHOWN
        yield f"left out: {shown}" + (f" and {more} more" if more > 0 else "")


def _backup_texts(table: TableStatus) -> Iterator[str]:
    if table.backup_wait >= WAITING_SECONDS:
        yield f"pushes wait {duration(table.backup_wait)} for a backup"
    if missing := table.unprotected - table.filling:
        yield f"{missing} partition{' has' if missing == 1 else 's have'} no backup"
    if table.filling:
        yield f"{table.filling} backup{' is' if table.filling == 1 else 's are'} being filled"


def _share(late: LateWorker) -> str:
    return f"worker {late.worker} ({late.share:.0%} of the steps)"


def _workers(workers: Sequence[int], count: int = 0) -> str:
    """The first few workers, and how many more there are."""
    count = max(count, len(workers))
    shown = ", ".join(str(worker) for worker in workers[:RANKS_SHOWN])
    more = f" and {count - RANKS_SHOWN} more" if count > RANKS_SHOWN else ""
    return f"worker{'' if count == 1 else 's'} {shown}{more}"
