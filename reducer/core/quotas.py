"""How much of a lane one job may have beside memory: connections and runs.

Law: what a job takes beyond its quota is refused to it alone, by name. So whoever may speak for
one job (mode psk) cannot keep another one out.
"""

from __future__ import annotations

from typing import Final

from reducer.errors import QuotaError

# Of each worker: the connection that it has, and old ones of it that have not ended yet.
CONNECTIONS_PER_WORKER: Final = 4
# Workers that come before their run is known, or with a hello that is refused.
SPARE_CONNECTIONS: Final = 64


class Connections:
    """The connections of each job that have said HELLO and have not ended."""

    def __init__(self) -> None:
        self._of: dict[str, int] = {}

    def enter(self, job: str) -> int:
        """One more; how many there are now."""
        count = self._of[job] = self._of.get(job, 0) + 1
        return count

    def leave(self, job: str) -> None:
        self._of[job] -= 1
        if not self._of[job]:
            del self._of[job]


def allowed_connections(workers: int) -> int:
    """For a job of so many workers, in all of its runs."""
    return CONNECTIONS_PER_WORKER * workers + SPARE_CONNECTIONS


def too_many_connections(job: str, workers: int, count: int) -> QuotaError:
    return QuotaError(
        f"job {job!r} has {count:,} connections to this lane; with {workers:,} workers it may "
        f"have {allowed_connections(workers):,}: does a worker connect again and again?"
    )


def too_many_jobs(runs: int) -> QuotaError:
    return QuotaError(
        f"this reducer serves {runs} runs of jobs already, its limit (--max-jobs): raise it; each "
        "group of a job's workers is a run"
    )


def too_many_runs(job: str, runs: int) -> QuotaError:
    return QuotaError(
        f"job {job!r} has {runs} runs on this reducer, the limit for one job (--max-runs): raise "
        "it, or end some of them; each group of the job's workers is a run"
    )
