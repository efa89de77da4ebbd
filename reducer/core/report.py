"""Makes the parts of a lane's report (`reducer.core.surface.numbers`) from its runs and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from reducer.core.measures.ranking import MAX_RANKS, MAX_RANKS_OF_JOB, most
from reducer.core.members.forming import Forming
from reducer.core.members.past_runs import PastRuns
from reducer.core.members.roster import Members, Roster
from reducer.core.rounds.round import Round
from reducer.core.rounds.texts import stall_entry
from reducer.core.runs.run import Run
from reducer.core.surface.numbers import (
    CoreNumbers,
    FormingPart,
    FormingReport,
    Part,
    RunNumbers,
    RunPart,
    RunReport,
    WaitingRound,
)
from reducer.core.table_report import table_parts
from reducer.core.tables.desk import TableDesk
from reducer.wire.codes import ErrorCode

# A round counts as waiting when nothing has come for it for this long; a shorter time would show
# ordinary traffic.
WAITING_SECONDS: Final = 1.0
MAX_ROUNDS: Final = 16
# The most waiting rounds of all runs together, and the most characters of a key's name: an answer
# stays below a few megabytes.
MAX_ROUNDS_IN_ALL: Final = 256
KEY_SHOWN: Final = 128


def lane_numbers(
    roster: Roster, tables: TableDesk, errors: Mapping[ErrorCode, int], registry_records: int
) -> CoreNumbers:
    """Returns the lane's own numbers, for metrics."""
    return CoreNumbers(
        lane=roster.settings.lane,
        sessions=len(roster.sessions),
        forming=len(roster.forming),
        tables=tables.tables,
        errors={code.name.lower(): n for code, n in errors.items()},
        reserved_bytes=roster.budget.reserved,
        budget_bytes=roster.budget.total,
        registry_records=registry_records,
    )


def parts_of(roster: Roster, past: PastRuns, tables: TableDesk, now: float) -> Iterator[Part]:
    """Yield the part of each run and table. Runs may end between two parts.

    All parts together have at most MAX_ROUNDS_IN_ALL waiting rounds, and the parts of one job at
    most MAX_RANKS_OF_JOB rows of ranks.
    """
    rounds = MAX_ROUNDS_IN_ALL
    ranks: Counter[str] = Counter()  # rows that were reported, by job
    for number, members in list(roster.runs_by_number.items()):
        if number in roster.runs_by_number:
            report = run_report(members, now, min(rounds, MAX_ROUNDS))
            rounds -= len(report.waiting)
            job = members.run.name
            numbers = run_numbers(members.run, min(MAX_RANKS, MAX_RANKS_OF_JOB - ranks[job]))
            ranks[job] += numbers.ranks
            yield RunPart(report, numbers)
    for forming in list(roster.forming.values()):
        if roster.forming.get(forming.id) is forming:
            yield FormingPart(forming_report(forming))
    yield from past.parts(now)
    yield from table_parts(tables, now)


def run_numbers(run: Run, ranks: int) -> RunNumbers:
    """Returns the numbers of a run for metrics, with rows for ``ranks`` ranks at most."""
    came, sent = run.contributions, run.results
    return RunNumbers(
        bytes_in=came.bytes_in,
        bytes_out=sent.bytes_out,
        contributions=came.taken,
        results=sent.sent,
        duplicates=came.duplicates,
        rounds=sent.rounds,
        open_rounds=len(run.open),
        keys=run.records.keys,
        held_bytes=run.held.total,
        late=most(sent.last_ranks, ranks),
        waiting=(),
        reconnects=run.reconnects,
        failovers=run.failovers,
        lost_workers=len(run.view.out),
        stats_walks=run.stalls.walks,
        stats_shared=run.stalls.shared,
        refused_rounds=run.mismatches.refused,
        parked_bytes=run.held.parked,
        record_bytes=run.records.used,
        lateness=most(came.waits.waited, ranks),
        nonfinite=most(sent.nonfinite, ranks),
        round_counts=tuple(enumerate(sent.durations.counts)),
        round_seconds=sent.durations.seconds,
    )


def run_report(members: Members, now: float, rounds: int) -> RunReport:
    """Returns the report of a formed run, with ``rounds`` waiting rounds at most."""
    run = members.run
    waiting = run.open.stalled(now, WAITING_SECONDS, rounds)
    disconnected = members.absent(now).absent
    oldest = run.open.oldest
    return RunReport(
        job=run.name,
        title=run.title,
        run_id=run.run_id,
        world_size=run.world_size,
        connected=len(run.seats.present),
        left=len(members.left),
        seconds=now - members.began_at,
        rounds=run.results.rounds,
        own_rounds=run.results.own_rounds,
        open_rounds=len(run.open),
        oldest_seconds=0.0 if oldest is None else max(0.0, now - oldest.opened_at),
        bytes_in=run.contributions.bytes_in,
        bytes_out=run.results.bytes_out,
        lateness=most(run.contributions.waits.waited),
        disconnected=[rank for rank, _ in disconnected],
        lost=[(rank, now - at, reason[:KEY_SHOWN]) for rank, at, reason in members.losses],
        waiting=[_waiting(round_, now) for round_ in waiting],
    )


def _waiting(round_: Round, now: float) -> WaitingRound:
    entry = stall_entry(round_, now)
    entry["key"] = entry["key"][:KEY_SHOWN]
    return WaitingRound(**entry)


def forming_report(forming: Forming) -> FormingReport:
    """Returns the report of a run that some ranks have not joined yet."""
    return FormingReport(
        job=forming.job,
        title=forming.title,
        run_id=forming.id[1],
        world_size=forming.world_size,
        joined=len(forming.sessions),
        absent=forming.absent(MAX_RANKS),
    )
