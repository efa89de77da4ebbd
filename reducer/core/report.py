"""Who is here and who is waited for: what a lane tells a human who asks (`reducer status`)."""

from __future__ import annotations

from typing import Any, Final

from reducer.core.forming import Forming
from reducer.core.ranking import MAX_RANKS, most
from reducer.core.run import Run
from reducer.core.texts import stall_entry

# Rounds for which nothing has come for so long show who is absent now; fewer would be the traffic.
WAITING_SECONDS: Final = 1.0
MAX_ROUNDS: Final = 16


def run_report(run: Run, now: float) -> dict[str, Any]:
    """Of a complete run; the ranks that were waited for the longest come first."""
    job = run.job
    waiting = job.open.stalled(now, WAITING_SECONDS)[:MAX_ROUNDS]
    lost = run.absent(now).absent
    return {
        "job": job.name,
        "run_id": job.run_id,
        "world_size": job.world_size,
        "connected": len(job.seats.present),
        "left": len(run.left),
        "seconds": now - run.began_at,
        "rounds": job.counters.rounds,
        "open_rounds": len(job.open),
        "bytes_in": job.counters.bytes_in,
        "bytes_out": job.counters.bytes_out,
        "lateness": most(job.lateness.waited),
        "lost": [rank for rank, _ in lost],
        "waiting": [stall_entry(r.stream.keys[r.key], r, now) for r in waiting],
    }


def forming_report(forming: Forming) -> dict[str, Any]:
    """Of a run that some ranks have not joined yet."""
    absent = forming.absent()
    return {
        "job": forming.job,
        "world_size": forming.world_size,
        "joined": len(forming.sessions),
        "absent": absent[:MAX_RANKS],
    }
