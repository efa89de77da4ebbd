"""What a lane tells who asks: numbers for metrics; who is here and who is waited for."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from reducer.core.forming import Forming
from reducer.core.job import Job
from reducer.core.ranking import MAX_RANKS, most
from reducer.core.round import Round
from reducer.core.run import Run
from reducer.core.texts import stall_entry

# Rounds for which nothing has come for so long show who is absent now; fewer would be the traffic.
WAITING_SECONDS: Final = 1.0
MAX_ROUNDS: Final = 16
# Of all runs together, and characters of a key's name there: an answer is some megabytes at most.
MAX_ROUNDS_IN_ALL: Final = 256
KEY_SHOWN: Final = 128


def job_numbers(job: Job, ranks: int) -> dict[str, Any]:
    """For metrics: what may be added up over runs; tuples are of (rank or place, number), of so
    many `ranks` at most."""
    stats = dataclasses.asdict(job.stats())
    return {
        **stats,
        "late": stats["late"][:ranks],
        "reconnects": job.counters.reconnects,
        "failovers": job.counters.failovers,
        "stats_walks": job.counters.stats_walks,
        "stats_shared": job.counters.stats_shared,
        "refused_rounds": job.refused_rounds,
        "parked_bytes": job.held.parked,
        "record_bytes": job.records.used,
        "lateness": most(job.lateness.waited, ranks),
        "nonfinite": most(job.nonfinite, ranks),
        "round_counts": tuple(enumerate(job.durations.counts)),
        "round_seconds": job.durations.seconds,
    }


def ranks_in(numbers: dict[str, Any]) -> int:
    """How many rows a page has for the ranks of a run."""
    return max(len(numbers[field]) for field in ("late", "lateness", "nonfinite"))


def run_report(run: Run, now: float, rounds: int) -> dict[str, Any]:
    """The ranks that were waited for the longest come first."""
    job = run.job
    waiting = job.open.stalled(now, WAITING_SECONDS, rounds)
    lost = run.absent(now).absent
    oldest = job.open.oldest
    return {
        "job": job.name,
        "title": job.title,
        "run_id": job.run_id,
        "world_size": job.world_size,
        "connected": len(job.seats.present),
        "left": len(run.left),
        "seconds": now - run.began_at,
        "rounds": job.counters.rounds,
        "open_rounds": len(job.open),
        "oldest_seconds": 0.0 if oldest is None else max(0.0, now - oldest.opened_at),
        "bytes_in": job.counters.bytes_in,
        "bytes_out": job.counters.bytes_out,
        "lateness": most(job.lateness.waited),
        "lost": [rank for rank, _ in lost],
        "waiting": [_waiting(round_, now) for round_ in waiting],
    }


def _waiting(round_: Round, now: float) -> dict[str, Any]:
    entry = stall_entry(round_.stream.keys[round_.key], round_, now)
    entry["key"] = entry["key"][:KEY_SHOWN]
    return entry


def forming_report(forming: Forming) -> dict[str, Any]:
    """Of a run that some ranks have not joined yet; `run_id` is "" while not all need name it."""
    return {
        "job": forming.job,
        "title": forming.title,
        "run_id": forming.id[1],
        "world_size": forming.world_size,
        "joined": len(forming.sessions),
        "absent": forming.absent(MAX_RANKS),
    }
