"""The Prometheus series of tables (`reducer.server.daemon.metrics` has all others)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, Metric

from reducer.core.surface.table_numbers import TablePart
from reducer.server.daemon.series import Row, Series, family, labelled
from reducer.server.pipe.snapshot import Snapshot
from reducer.wire.keys import run_title

_TABLE_LABELS = ("job_name", "table", "lane")
# Bounds of the staleness, by its power of two; 1,023 is beyond any training that converges.
_POWERS = range(11)

# fmt: off
# By table. An update is a push of a worker to one shard.
_TABLE_SERIES = labelled(_TABLE_LABELS,
    ("applied", "reducer_table_applied_updates",
     "Updates applied; in mode step, contributions in the set of their step.", "counter"),
    ("dropped", "reducer_table_dropped_updates",
     "Updates dropped: too stale, or too late for their step.", "counter"),
    ("refused", "reducer_table_refused_updates",
     "Updates refused: not finite, or so large that their square is not.", "counter"),
    ("spoilt", "reducer_table_overflowed_updates",
     "Updates after which a parameter or a slot was not finite.", "counter"),
    ("steps", "reducer_table_steps", "Steps committed (mode step).", "counter", "max"),
    ("bytes_in", "reducer_table_received_bytes", "Payload of pushes received.", "counter"),
    ("bytes_out", "reducer_table_sent_bytes", "Payload of values sent.", "counter"),
    ("elements", "reducer_table_elements", "Parameters."),
    ("shards", "reducer_table_shards", "Shards."),
    ("reserved", "reducer_table_reserved_bytes",
     "Memory reserved for parameters, slots and contributions."),
    ("waiting_pulls", "reducer_table_waiting_pulls",
     "Pulls that wait for a version, a clock or first values."),
    ("workers", "reducer_table_workers", "Workers that take part.", "gauge", "max"),
    ("lost_workers", "reducer_table_lost_workers",
     "Workers that went away without a goodbye and have not come back.", "gauge", "max"),
)
_OPEN_STEP = Series("seconds", "reducer_table_open_step_seconds",
                    "Time since the first worker entered the open step; 0 if none has.",
                    "gauge", "max", _TABLE_LABELS)
_STALENESS = Series("staleness", "reducer_table_staleness",
                    "Updates applied to a shard between a pull and the update (modes async, ssp).",
                    "histogram", labels=_TABLE_LABELS)
_BACKUP_LAG = Series("backup_lag", "reducer_table_backup_lag_entries",
                     "Changes of the partition that its backup has not acknowledged.",
                     "gauge", "max", _TABLE_LABELS)
_BACKUP_WAIT = Series("backup_wait", "reducer_table_backup_wait_seconds",
                      "Time since the backup has last acknowledged a change; 0 if none waits.",
                      "gauge", "max", _TABLE_LABELS)
_BACKUPS = (_BACKUP_LAG, _BACKUP_WAIT)
_UNPROTECTED = Series("backup", "reducer_table_partitions_without_backup",
                      "Partitions that the lane leads without a full backup.",
                      "gauge", labels=_TABLE_LABELS)
# The workers with the largest numbers; only the lane that decides the steps has them.
_EXCLUDED = Series("excluded", "reducer_table_excluded_steps",
                   "Steps that the worker was left out of (mode step).",
                   "counter", labels=(*_TABLE_LABELS, "worker"))
# fmt: on

SERIES = (*_TABLE_SERIES, _OPEN_STEP, *_BACKUPS, _UNPROTECTED, _STALENESS, _EXCLUDED)

Tables = Mapping[tuple[str, ...], Sequence[TablePart]]


def collect(snapshot: Snapshot) -> Iterator[Metric]:
    """The series of tables. Tables of one job and name, of several runs, are combined.

    The backup of a partition has the memory alone: the partition would count twice otherwise.
    """
    tables = _by_labels(snapshot, backups=False)
    for series in _TABLE_SERIES:
        has_backups = series.field == "reserved"
        found = _by_labels(snapshot, backups=True) if has_backups else tables
        yield family(series, _sums(found, series.field))
    yield family(_OPEN_STEP, _open_steps(tables))
    for series in _BACKUPS:
        yield family(series, _of_backups(tables, series.field))
    yield family(_UNPROTECTED, _unprotected(tables))
    yield _staleness(tables)
    yield family(_EXCLUDED, _excluded(tables))


def _by_labels(snapshot: Snapshot, *, backups: bool) -> Tables:
    """The parts of each table and lane, with the partitions of which the lane is the backup."""
    tables: defaultdict[tuple[str, ...], list[TablePart]] = defaultdict(list)
    for lane in snapshot.lanes:
        for part in lane.tables:
            if part.table.leads or backups:
                job = run_title(part.table.job, part.table.run_id)
                tables[job, part.table.name, str(lane.numbers.lane)].append(part)
    return tables


def _sums(tables: Tables, field: str) -> Iterator[Row]:
    for labels, parts in tables.items():
        yield labels, sum(getattr(part.numbers, field) for part in parts)


def _open_steps(tables: Tables) -> Iterator[Row]:
    for labels, parts in tables.items():
        seconds = [part.table.open.seconds for part in parts if part.table.open is not None]
        if seconds:
            yield labels, max(seconds)


def _of_backups(tables: Tables, field: str) -> Iterator[Row]:
    for labels, parts in tables.items():
        if found := [getattr(part.table, field) for part in parts if part.table.backup]:
            yield labels, max(found)


def _unprotected(tables: Tables) -> Iterator[Row]:
    for labels, parts in tables.items():
        if found := [part.table.backup != "full" for part in parts if part.table.backup]:
            yield labels, sum(found)


def _excluded(tables: Tables) -> Iterator[Row]:
    found: Counter[tuple[str, ...]] = Counter()
    for labels, parts in tables.items():
        for part in parts:
            for worker, steps in part.numbers.excluded:
                found[*labels, str(worker)] += steps
    yield from found.items()


def _staleness(tables: Tables) -> Metric:
    series = _STALENESS
    found = HistogramMetricFamily(series.name, series.help, labels=series.labels)
    ends = [*(str((1 << power) - 1) for power in _POWERS), "+Inf"]
    for labels, parts in tables.items():
        parts = [part for part in parts if part.table.mode != "step"]
        counts = [0] * len(ends)
        for part in parts:
            for power, count in part.numbers.staleness:
                counts[min(int(power), len(counts) - 1)] += int(count)
        if parts:
            total = sum(part.numbers.stale for part in parts)
            found.add_metric(labels, list(zip(ends, accumulate(counts), strict=True)), total)
    return found
