"""Makes the parts of a lane's report about tables (`reducer.core.surface.table_numbers`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from reducer.core.measures.ranking import MAX_RANKS, MAX_RANKS_OF_JOB
from reducer.core.surface.table_numbers import StepReport, TableNumbers, TablePart, TableReport
from reducer.core.tables.desk import TableDesk
from reducer.core.tables.holdings import Holdings
from reducer.core.tables.table import Table

# A table takes 0.1 ms of its lane, and 0.15 ms of a metrics page for each lane.
MAX_TABLES: Final = 256
MAX_TABLES_OF_JOB: Final = 64
_LONG: Final = 1.0  # seconds that a step may be open before it is looked for what it lacks


def table_parts(desk: TableDesk, now: float) -> Iterator[TablePart]:
    """Yield the part of each table. Tables may be dropped between two parts.

    All parts together are at most MAX_TABLES, those of one job MAX_TABLES_OF_JOB, and these have at
    most MAX_RANKS_OF_JOB rows of workers.
    """
    left = MAX_TABLES
    shown: Counter[str] = Counter()  # tables, by job
    rows: Counter[str] = Counter()
    for holdings in desk.holdings:
        job = holdings.job
        for table in sorted(holdings.by_key.values(), key=_name):
            if not left or shown[job] == MAX_TABLES_OF_JOB:
                break
            if holdings.by_key.get(table.key) is table:
                part = table_part(holdings, table, now, MAX_RANKS_OF_JOB - rows[job])
                left -= 1
                shown[job] += 1
                rows[job] += max(len(part.table.clocks), len(part.numbers.excluded))
                yield part


def _name(table: Table) -> str:
    return table.name


def table_part(holdings: Holdings, table: Table, now: float, rows: int) -> TablePart:
    """Returns the part of one table, with ``rows`` rows of workers at most in each list."""
    limit = max(0, min(MAX_RANKS, rows))
    version, newest, pulls, elements = _of_shards(table)
    present, lost = _workers(holdings)
    call, clocks, chain = table.spec.call, table.clocks, holdings.chain
    report = TableReport(
        job=holdings.job,
        run_id=holdings.run_id,
        name=table.name,
        mode=call.mode,
        bound=call.bound,
        quorum=call.quorum,
        wanted=call.workers,
        optimizer=type(table.spec.optimizer).__name__,
        partition=call.partition,
        partitions=call.partitions,
        size=table.spec.part,
        unready=table.unready,
        version=version,
        newest=newest,
        step=table.committed if call.mode == "step" else 0,
        least_clock=table.least_clock,
        fastest_clock=0 if clocks is None else clocks.top,
        clocks=() if clocks is None else _least(clocks.rows(), limit),
        lost=tuple(lost[:MAX_RANKS]),
        open=_open_step(table, now),
        leads=holdings.replica is None,
        backup=_backup(holdings),
        backup_lag=chain.lag,
        backup_wait=chain.waits(now),
    )
    return TablePart(report, _numbers(table, pulls, elements, present, len(lost), limit))


def _numbers(
    table: Table, pulls: int, elements: int, present: int, lost: int, limit: int
) -> TableNumbers:
    counts, owner = table.counts, table.owner
    excluded = () if owner is None else _most(owner.excluded, limit)
    included: list[tuple[int, int]] = []
    if owner is not None:
        included = [(worker, owner.taken.get(worker, 0)) for worker, _ in excluded]
    return TableNumbers(
        applied=counts.applied,
        dropped=counts.dropped,
        refused=counts.refused,
        spoilt=counts.spoilt,
        steps=0 if table.steps is None else table.committed,
        bytes_in=counts.bytes_in,
        bytes_out=counts.bytes_out,
        elements=elements,
        shards=len(table.shards),
        reserved=table.reserved,
        waiting_pulls=pulls,
        workers=present,
        lost_workers=lost,
        stale=counts.stale,
        staleness=tuple(sorted(counts.staleness.items())),
        excluded=excluded,
        included=tuple(included),
    )


def _of_shards(table: Table) -> tuple[int, int, int, int]:
    """The least and the greatest version, the pulls that wait, and the elements."""
    least, greatest, pulls, elements = -1, 0, 0, 0
    for shard in table.shards.values():
        version = shard.version
        if least < 0 or version < least:
            least = version
        greatest = max(greatest, version)
        pulls += len(shard.pulls)
        elements += shard.count
    return max(0, least), greatest, pulls, elements


def _workers(holdings: Holdings) -> tuple[int, list[int]]:
    """How many workers take part, and who was lost."""
    workers = holdings.workers.all()
    lost = [worker.number for worker in workers if not worker.is_in and not worker.has_left]
    return sum([worker.is_in for worker in workers]), sorted(lost)


def _backup(holdings: Holdings) -> str:
    """The state of the backup of a partition that this lane leads."""
    chain = holdings.chain
    if holdings.replica is not None or not chain.term:
        return ""
    if chain.backup is None:
        return "missing"
    return "filling" if chain.is_filling else "full"


def _open_step(table: Table, now: float) -> StepReport | None:
    owner, watch = table.owner, table.watch
    if owner is None or watch is None:
        return None
    entered, awaited = owner.entered(), owner.awaited()
    seconds = max(0.0, now - watch.opened_at) if entered else 0.0
    if owner.set is not None and seconds >= _LONG:
        awaited = _missing(table, owner.set.members)
    return StepReport(
        step=owner.step,
        generation=owner.generation,
        decided=owner.set is not None,
        seconds=seconds,
        entered=tuple(entered[:MAX_RANKS]),
        entered_count=len(entered),
        awaited=tuple(awaited[:MAX_RANKS]),
        awaited_count=len(awaited),
        absent=owner.absent,
    )


def _missing(table: Table, members: Sequence[int]) -> list[int]:
    """The members of a set whose contributions this lane lacks."""
    assert table.steps is not None
    parts: Counter[int] = Counter()
    for of_shard in table.steps.parts.values():
        parts.update(of_shard.keys())
    return [member for member in members if parts[member] < len(table.shards)]


def _least(rows: Iterable[tuple[int, int]], limit: int) -> tuple[tuple[int, int], ...]:
    return tuple(sorted(rows, key=_number)[:limit])


def _most(numbers: Mapping[int, int], limit: int) -> tuple[tuple[int, int], ...]:
    return tuple(sorted(numbers.items(), key=_minus)[:limit])


def _number(row: tuple[int, int]) -> int:
    return row[1]


def _minus(row: tuple[int, int]) -> tuple[int, int]:
    return -row[1], row[0]
