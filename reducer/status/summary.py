"""Combines the reports of the lanes of many reducers: each reducer, each run, each late rank.

Over the lanes of one run, bytes are added up. Of times the largest value counts, because most
rounds have chunks on every lane. Each round is one lane's own, so own rounds are added up. A lane
that was started again has forgotten its own rounds: if a lane has finished more rounds than this
sum, its number counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reducer.status.tables import TableStatus, tables_of, untold


@dataclass(frozen=True)
class ReducerStatus:
    """One reducer. Sizes are in bytes.

    `workers` of `places` are connected to all lanes of the reducer; a worker has a place in each of
    its groups. `down` has the lanes that died and have not restarted; the other numbers leave them
    out. `clock` is the reducer's clock in seconds at the time of the answer. `loop_lag` is the
    largest of all lanes.
    """

    address: str
    version: str
    ready: bool
    down: list[int]
    lanes: int
    jobs: int
    workers: int
    places: int
    rounds: int
    open_rounds: int
    bytes_in: int
    bytes_out: int
    memory_reserved: int
    memory: int
    memory_used: int
    loop_lag: float
    clock: float

    @property
    def state(self) -> str:
        """The state in a word or two."""
        if self.down:
            return f"lane {', '.join(map(str, self.down))} down"
        return "serves" if self.ready else "drains"


@dataclass(frozen=True)
class Wait:
    """A round that waits now, and how long it has waited."""

    key: str
    round: int
    seconds: float


@dataclass
class RankStatus:
    """How late a rank is.

    At least half of the ranks waited for this rank for `waited` seconds, which is the `share` of
    the run's time. The rank has no connection to the reducers in `disconnected_from`.
    `absent_from` is the oldest round that waits for the rank now.
    """

    rank: int
    waited: float = 0.0
    share: float = 0.0
    disconnected_from: list[str] = field(default_factory=list)
    absent_from: Wait | None = None


@dataclass(frozen=True)
class LostRank:
    """A rank without which the run goes on since `seconds`, and why."""

    rank: int
    seconds: float
    reason: str


@dataclass
class RunStatus:
    """One run of a job.

    `ranks` has the ranks that others waited for, the longest wait first. `title` is the job's
    name; for a group it also has the group's name, since each group numbers its ranks from 0.
    `joined` counts the workers while the run is forming, and is None afterwards; `absent` has the
    ranks that have not joined yet.
    """

    job: str
    title: str
    run_id: str
    world_size: int
    workers: int = 0
    joined: int | None = None
    absent: list[int] = field(default_factory=list)
    seconds: float = 0.0
    rounds: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    ranks: list[RankStatus] = field(default_factory=list)
    lost: list[LostRank] = field(default_factory=list)


@dataclass(frozen=True)
class EndedStatus:
    """The last run of a job that does not run now: it ended `seconds` ago, and why."""

    job: str
    title: str
    run_id: str
    world_size: int
    rounds: int
    seconds: float
    cause: str


@dataclass(frozen=True)
class Summary:
    reducers: list[ReducerStatus]
    runs: list[RunStatus]
    tables: list[TableStatus] = field(default_factory=list)
    more_tables: int = 0  # that no reducer has told about
    ended: list[EndedStatus] = field(default_factory=list)


def summarize(answers: Mapping[str, dict[str, Any]]) -> Summary:
    """Combine the answers to /api/stats, given by address."""
    runs: dict[tuple[str, str], list[tuple[str, dict[str, Any]]]] = {}
    forming: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for address, answer in answers.items():
        for lane in answer["lanes"]:
            for run in lane["report"]["runs"]:
                runs.setdefault((run["job"], run["run_id"]), []).append((address, run))
            for run in lane["report"]["forming"]:
                forming.setdefault((run["job"], run["run_id"]), []).append(run)
    found = [_run(parts) for parts in runs.values()]
    found += [_forming(parts) for parts in forming.values()]
    found.sort(key=lambda run: (run.job, run.run_id))
    reducers = [_reducer(address, answer) for address, answer in answers.items()]
    return Summary(
        reducers,
        found,
        tables_of(answers.values()),
        untold(answers.values()),
        _ended(answers.values(), {run.job for run in found}),
    )


def _ended(answers: Iterable[Mapping[str, Any]], running: Collection[str]) -> list[EndedStatus]:
    """The last run of each job that does not run, the latest first.

    The lane that ended the run first tells why: the run has ended on the others for this reason.
    """
    reports = [lane["report"] for answer in answers for lane in answer["lanes"]]
    told: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for run in (run for report in reports for run in report.get("ended", ())):
        told.setdefault(run["job"], {}).setdefault(run["run_id"], []).append(run)
    found = []
    for job, runs in told.items():
        if job not in running:
            last = min(runs.values(), key=lambda lanes: min(lane["seconds"] for lane in lanes))
            first = max(last, key=lambda lane: lane["seconds"])
            names = ("job", "title", "run_id", "world_size", "seconds", "cause")
            found.append(EndedStatus(**{n: first[n] for n in names}, rounds=_rounds(last)))
    return sorted(found, key=lambda run: run.seconds)


def _rounds(lanes: Sequence[dict[str, Any]]) -> int:
    """The rounds of a run, of which each lane has a part."""
    most = max(int(lane["rounds"]) for lane in lanes)
    return max(most, sum(int(lane.get("own_rounds", 0)) for lane in lanes))


def _reducer(address: str, answer: dict[str, Any]) -> ReducerStatus:
    lanes = answer["lanes"]
    reports = [lane["report"] for lane in lanes]
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for report in reports:
        for run in report["runs"]:
            runs.setdefault((run["job"], run["run_id"]), []).append(run)
    tables = [table["numbers"] for report in reports for table in report.get("tables", ())]
    jobs = {
        part["job"]
        for report in reports
        for part in (*report["runs"], *report["forming"], *report.get("tables", ()))
    }
    return ReducerStatus(
        address=address,
        version=answer["version"],
        ready=answer["ready"],
        down=[int(lane) for lane in answer["down"]],
        lanes=len(lanes),
        jobs=len(jobs),
        workers=sum(min(run["connected"] for run in parts) for parts in runs.values()),
        places=sum(parts[0]["world_size"] for parts in runs.values()),
        rounds=sum(max(run["rounds"] for run in parts) for parts in runs.values()),
        open_rounds=sum(max(run["open_rounds"] for run in parts) for parts in runs.values()),
        bytes_in=_total("bytes_in", runs, tables),
        bytes_out=_total("bytes_out", runs, tables),
        memory_reserved=sum(lane["core"]["reserved_bytes"] for lane in lanes),
        memory=sum(lane["core"]["budget_bytes"] for lane in lanes),
        memory_used=sum(lane["buffer_bytes"] for lane in lanes),
        loop_lag=max((lane["loop_lag_seconds"] for lane in lanes), default=0.0),
        clock=answer["clock"],
    )


def _total(
    name: str,
    runs: Mapping[tuple[str, str], list[dict[str, Any]]],
    tables: Iterable[dict[str, Any]],
) -> int:
    """The bytes of all runs and tables."""
    of_runs = [run[name] for parts in runs.values() for run in parts]
    return int(sum([*of_runs, *(numbers[name] for numbers in tables)]))


def _lost(lanes: list[dict[str, Any]]) -> list[LostRank]:
    """The lost ranks of a run, the last one first, each as the lane saw it that lost it first."""
    found: dict[int, LostRank] = {}
    for lane in lanes:
        for rank, seconds, reason in lane.get("lost", ()):  # none from older releases
            if rank not in found or found[rank].seconds < seconds:
                found[rank] = LostRank(rank, seconds, reason)
    return sorted(found.values(), key=lambda lost: lost.seconds)


def _run(parts: list[tuple[str, dict[str, Any]]]) -> RunStatus:
    lanes = [lane for _, lane in parts]
    run = RunStatus(
        job=lanes[0]["job"],
        title=lanes[0]["title"],
        run_id=lanes[0]["run_id"],
        world_size=lanes[0]["world_size"],
        workers=min(lane["connected"] for lane in lanes),
        seconds=max(lane["seconds"] for lane in lanes),
        rounds=_rounds(lanes),
        bytes_in=sum(lane["bytes_in"] for lane in lanes),
        bytes_out=sum(lane["bytes_out"] for lane in lanes),
        lost=_lost(lanes),
    )
    ranks: dict[int, RankStatus] = {}

    def of(rank: int) -> RankStatus:
        return ranks.setdefault(rank, RankStatus(rank))

    for address, lane in parts:
        for rank, waited in lane["lateness"]:
            of(rank).waited = max(of(rank).waited, waited)
        for rank in lane["disconnected"]:
            if address not in of(rank).disconnected_from:
                of(rank).disconnected_from.append(address)
        for rank, wait in _waits(lane["waiting"]):
            known = of(rank).absent_from
            if known is None or known.seconds < wait.seconds:
                of(rank).absent_from = wait
    for rank_ in ranks.values():
        rank_.share = rank_.waited / run.seconds if run.seconds > 0 else 0.0
    run.ranks = sorted(ranks.values(), key=_lateness, reverse=True)
    return run


def _waits(rounds: Iterable[dict[str, Any]]) -> Iterable[tuple[int, Wait]]:
    for round_ in rounds:
        wait = Wait(round_["key"], round_["round"], round_["age_ms"] / 1000)
        for rank in round_["absent"]:
            yield rank, wait


def _lateness(rank: RankStatus) -> float:
    """Seconds that the others have waited for a rank, including the round that waits now."""
    return rank.waited + (rank.absent_from.seconds if rank.absent_from else 0.0)


def _forming(parts: list[dict[str, Any]]) -> RunStatus:
    return RunStatus(
        job=parts[0]["job"],
        title=parts[0]["title"],
        run_id=parts[0]["run_id"],
        world_size=parts[0]["world_size"],
        joined=min(part["joined"] for part in parts),
        absent=sorted({rank for part in parts for rank in part["absent"]}),
    )
