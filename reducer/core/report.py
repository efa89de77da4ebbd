"""What a lane tells who asks: numbers for metrics; who is here and who is waited for."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from reducer.core.measures.ranking import MAX_RANKS, MAX_RANKS_OF_JOB, most
from reducer.core.members.forming import Forming
from reducer.core.members.roster import Members, Roster
from reducer.core.rounds.round import Round
from reducer.core.rounds.texts import stall_entry
from reducer.core.runs.run import Run
from reducer.wire.codes import ErrorCode

# Rounds for which nothing has come for so long show who is absent now; fewer would be the traffic.
WAITING_SECONDS: Final = 1.0
MAX_ROUNDS: Final = 16
# Limits for all runs together, and for the characters of a key's name: an answer is some megabytes
# at most.
MAX_ROUNDS_IN_ALL: Final = 256
KEY_SHOWN: Final = 128


def lane_numbers(roster: Roster, errors: Mapping[ErrorCode, int]) -> dict[str, Any]:
    """The lane's own numbers, for metrics."""
    return {
        "lane": roster.settings.lane,
        "sessions": len(roster.sessions),
        "forming": len(roster.forming),
        "errors": {code.name.lower(): n for code, n in errors.items()},
        "reserved_bytes": roster.budget.reserved,
        "budget_bytes": roster.budget.total,
    }


def parts_of(roster: Roster, now: float) -> Iterator[dict[str, Any]]:
    """What a lane's runs tell, one after the other: runs may end between two of them.

    The runs that are complete tell of MAX_ROUNDS_IN_ALL waiting rounds at most, and those of one
    job of MAX_RANKS_OF_JOB ranks.
    """
    rounds = MAX_ROUNDS_IN_ALL
    ranks: Counter[str] = Counter()  # that each job has told of
    for number, members in list(roster.runs_by_number.items()):
        if number in roster.runs_by_number:
            report = run_report(members, now, min(rounds, MAX_ROUNDS))
            rounds -= len(report["waiting"])
            job = members.run.name
            numbers = job_numbers(members.run, min(MAX_RANKS, MAX_RANKS_OF_JOB - ranks[job]))
            ranks[job] += ranks_in(numbers)
            yield {"run": report, "numbers": numbers}
    for forming in list(roster.forming.values()):
        if roster.forming.get(forming.id) is forming:
            yield {"forming": forming_report(forming)}


def job_numbers(run: Run, ranks: int) -> dict[str, Any]:
    """Numbers for metrics that may be added up over runs.

    Tuples have pairs (rank or place, number), for at most `ranks` ranks.
    """
    stats = dataclasses.asdict(run.stats())
    return {
        **stats,
        "late": stats["late"][:ranks],
        "reconnects": run.reconnects,
        "failovers": run.failovers,
        "stats_walks": run.stalls.walks,
        "stats_shared": run.stalls.shared,
        "refused_rounds": run.verdicts.refused,
        "parked_bytes": run.held.parked,
        "record_bytes": run.records.used,
        "lateness": most(run.contributions.lateness.waited, ranks),
        "nonfinite": most(run.results.nonfinite, ranks),
        "round_counts": tuple(enumerate(run.results.durations.counts)),
        "round_seconds": run.results.durations.seconds,
    }


def ranks_in(numbers: dict[str, Any]) -> int:
    """How many rows a page has for the ranks of a run."""
    return max(len(numbers[field]) for field in ("late", "lateness", "nonfinite"))


def run_report(members: Members, now: float, rounds: int) -> dict[str, Any]:
    """The ranks that were waited for the longest come first."""
    run = members.run
    waiting = run.open.stalled(now, WAITING_SECONDS, rounds)
    lost = members.absent(now).absent
    oldest = run.open.oldest
    return {
        "job": run.name,
        "title": run.title,
        "run_id": run.run_id,
        "world_size": run.world_size,
        "connected": len(run.seats.present),
        "left": len(members.left),
        "seconds": now - members.began_at,
        "rounds": run.results.rounds,
        "open_rounds": len(run.open),
        "oldest_seconds": 0.0 if oldest is None else max(0.0, now - oldest.opened_at),
        "bytes_in": run.contributions.bytes_in,
        "bytes_out": run.results.bytes_out,
        "lateness": most(run.contributions.lateness.waited),
        "lost": [rank for rank, _ in lost],
        "waiting": [_waiting(round_, now) for round_ in waiting],
    }


def _waiting(round_: Round, now: float) -> dict[str, Any]:
    entry = stall_entry(round_, now)
    entry["key"] = entry["key"][:KEY_SHOWN]
    return entry


def forming_report(forming: Forming) -> dict[str, Any]:
    """A run that some ranks have not joined yet; `run_id` is "" where not every rank names it."""
    return {
        "job": forming.job,
        "title": forming.title,
        "run_id": forming.id[1],
        "world_size": forming.world_size,
        "joined": len(forming.sessions),
        "absent": forming.absent(MAX_RANKS),
    }
