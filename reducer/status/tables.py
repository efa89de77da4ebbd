"""Combines the reports of the lanes of many reducers: each table, and who keeps it waiting.

Over the lanes of one table, updates and bytes are added up. The least version and the least clock
count, because a read of the whole table sees the least.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

# Whoever is left out of more of the steps is late; the log says so as well
# (`reducer.core.tables.step_watch`).
MOST_LEFT_OUT: Final = 0.05
# An open step is ordinary traffic for this long.
WAITING_SECONDS: Final = 1.0


@dataclass
class LateWorker:
    """A worker that a table waits for, or that was left out of the `share` of its steps.

    `behind` is the number of clocks that the fastest worker is ahead of it, while reads wait.
    """

    worker: int
    waited: float = 0.0
    excluded: int = 0
    share: float = 0.0
    behind: int = 0


@dataclass
class TableStatus:
    """One table of a job and run.

    `updates` is how many updates the whole table has seen: its steps in mode step, otherwise the
    updates of all shards divided by the number of shards. `oldest` and `newest` are the least and
    the greatest version of a shard. `staleness_p50` and `staleness_p99` are upper bounds, None
    before the first update. `ready` is false while a shard has no values. `lanes` of `partitions`
    have answered. `generation` belongs to the open step. `waited` is for how long the open step has
    waited: for `awaited` workers, which have not entered it, or, if its set is `decided`, have not
    contributed. `absent` workers must still come before the first step.

    Only lanes that lead a partition count; the backups of partitions are left out. `unprotected`
    partitions have no full backup, and `filling` of them have one that does not have everything
    yet. `backup_wait` is for how long a partition has waited for its backup.
    """

    job: str
    run_id: str
    name: str
    mode: str
    bound: int
    quorum: int
    wanted: int
    optimizer: str
    lanes: int
    partitions: int
    ready: bool
    elements: int
    bytes: int
    shards: int
    oldest: int
    newest: int
    step: int
    generation: int
    clock: int
    workers: int
    lost: list[int]
    updates: float
    applied: int
    dropped: int
    refused: int
    spoilt: int
    staleness_p50: int | None
    staleness_p99: int | None
    bytes_in: int
    bytes_out: int
    waiting_pulls: int
    waited: float = 0.0
    awaited: int = 0
    decided: bool = False
    absent: int = 0
    unprotected: int = 0
    filling: int = 0
    backup_wait: float = 0.0
    late: list[LateWorker] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, str, str]:
        return self.job, self.run_id, self.name


def tables_of(answers: Iterable[Mapping[str, Any]]) -> list[TableStatus]:
    """Combine the tables in answers to /api/stats, by job, run and name."""
    parts: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for answer in answers:
        for lane in answer["lanes"]:
            for table in lane["report"].get("tables", ()):  # none from older releases
                key = (table["job"], table["run_id"], table["name"])
                parts.setdefault(key, []).append(table)
    return [_table(_leading(lanes)) for _, lanes in sorted(parts.items())]


def _leading(lanes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The parts of the lanes that lead a partition; the backups if no other lane has answered."""
    return [lane for lane in lanes if lane.get("leads", True)] or lanes


def untold(answers: Iterable[Mapping[str, Any]]) -> int:
    """How many tables a lane has beyond those that it reports; the most of all lanes."""
    lanes = [lane for answer in answers for lane in answer["lanes"]]
    told = [lane["core"].get("tables", 0) - len(lane["report"].get("tables", ())) for lane in lanes]
    return int(max([0, *told]))


def _table(lanes: Sequence[dict[str, Any]]) -> TableStatus:
    first = lanes[0]
    numbers = [lane["numbers"] for lane in lanes]

    def total(name: str) -> int:
        return int(sum(each[name] for each in numbers))

    staleness = Counter[int]()
    for each in numbers:
        for power, count in each["staleness"]:
            staleness[power] += count
    step = max(lane["step"] for lane in lanes)
    table = TableStatus(
        job=first["job"],
        run_id=first["run_id"],
        name=first["name"],
        mode=first["mode"],
        bound=first["bound"],
        quorum=first["quorum"],
        wanted=first["wanted"],
        optimizer=first["optimizer"],
        lanes=len(lanes),
        partitions=first["partitions"],
        ready=not any(lane["unready"] for lane in lanes),
        elements=total("elements"),
        bytes=sum(lane["size"] for lane in lanes),
        shards=total("shards"),
        oldest=min(lane["version"] for lane in lanes),
        newest=max(lane["newest"] for lane in lanes),
        step=step,
        generation=0,
        clock=min(lane["least_clock"] for lane in lanes),
        workers=min(each["workers"] for each in numbers),
        lost=sorted({worker for lane in lanes for worker in lane["lost"]}),
        updates=step if first["mode"] == "step" else total("applied") / max(1, total("shards")),
        applied=total("applied"),
        dropped=total("dropped"),
        refused=total("refused"),
        spoilt=total("spoilt"),
        staleness_p50=percentile(staleness, 0.5),
        staleness_p99=percentile(staleness, 0.99),
        bytes_in=total("bytes_in"),
        bytes_out=total("bytes_out"),
        waiting_pulls=total("waiting_pulls"),
    )
    _add_late(table, lanes)
    _add_backups(table, lanes)
    return table


def percentile(staleness: Mapping[int, int], share: float) -> int | None:
    """The staleness that `share` of the updates do not exceed, rounded up to a power of two less 1.

    >>> percentile({0: 97, 3: 3}, 0.5), percentile({0: 97, 3: 3}, 0.99), percentile({}, 0.5)
    (0, 7, None)
    """
    wanted = share * sum(staleness.values())
    seen = 0
    for power, count in sorted(staleness.items()):
        seen += count
        if count and seen >= wanted:
            return int((1 << min(power, 64)) - 1)
    return None


def _add_late(table: TableStatus, lanes: Sequence[dict[str, Any]]) -> None:
    late: dict[int, LateWorker] = {}

    def of(worker: int) -> LateWorker:
        return late.setdefault(worker, LateWorker(worker))

    for lane in lanes:
        included = dict(lane["numbers"]["included"])
        for worker, steps in lane["numbers"]["excluded"]:
            share = steps / max(1, steps + included.get(worker, 0))
            if share > MOST_LEFT_OUT:
                of(worker).excluded, of(worker).share = steps, share
        if (step := lane["open"]) is not None:
            table.generation, table.absent = step["generation"], step["absent"]
            table.decided = step["decided"]
            waits = step["awaited_count"] or step["decided"]
            if step["seconds"] >= WAITING_SECONDS and waits:
                table.waited, table.awaited = step["seconds"], step["awaited_count"]
                for worker in step["awaited"]:
                    of(worker).waited = step["seconds"]
        for worker, behind in _behind(lane):
            of(worker).behind = max(of(worker).behind, behind)
    table.late = sorted(late.values(), key=lambda each: (-each.waited, -each.behind, -each.share))


def _add_backups(table: TableStatus, lanes: Sequence[dict[str, Any]]) -> None:
    states = [lane.get("backup", "") for lane in lanes]  # none from older releases
    table.filling = states.count("filling")
    table.unprotected = states.count("missing") + table.filling
    table.backup_wait = max(lane.get("backup_wait", 0.0) for lane in lanes)


def _behind(lane: dict[str, Any]) -> Iterable[tuple[int, int]]:
    """The slowest workers of a table of mode ssp whose reads wait."""
    if lane["mode"] != "ssp" or not lane["numbers"]["waiting_pulls"]:
        return
    for worker, clock in lane["clocks"]:
        if clock == lane["least_clock"]:
            yield worker, lane["fastest_clock"] - clock
