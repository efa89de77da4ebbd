"""Limits of a job on a lane besides memory: connections and runs.

Law: quotas count by the name of the job, and only the job that exceeds its quota is refused. So a
worker that may speak for one job (mode psk) cannot keep another job out.

Other files limit the rest of what a job takes: its memory `budget.py`, its records `charges.py`,
its keys `rounds/key_table.py`, its unanswered and unread bytes `runs/flow.py`, its unstable results
`runs/positions.py`. In `reducer/server`, `data/turns.py` limits its time on a lane, and
`data/log_shares.py` its lines in the log.
"""

from __future__ import annotations

from typing import Final

from reducer.core.surface.settings import LaneSettings
from reducer.wire.errors import QuotaError

# A worker has one connection, and perhaps old ones that have not ended yet.
CONNECTIONS_PER_WORKER: Final = 4
# Connections of workers whose run is not known yet, or whose HELLO is refused.
SPARE_CONNECTIONS: Final = 64
# One job may hold 1/n of a lane's descriptors.
PART_OF_DESCRIPTORS: Final = 2
# A connection whose run is forming takes memory that no budget counts: in mode tls up to
# BYTES_PER_CONNECTION with an unfinished frame and an unfinished TLS record, and 36 KB when idle.
# One job may have FREE_CONNECTIONS, or more if it has BYTES_PER_CONNECTION of memory for each. A
# formed run has reserved more than that for each worker.
FREE_CONNECTIONS: Final = 1_024
BYTES_PER_CONNECTION: Final = 65_536
# Ended runs of one job that are not forgotten yet, for each run that the job may have.
ENDED_PER_RUN: Final = 4


class Connections:
    """The connections of each job that have said HELLO and have not ended."""

    def __init__(self) -> None:
        self._of: dict[str, int] = {}

    def enter(self, job: str) -> int:
        """Count one more connection. Returns how many the job has now."""
        count = self._of[job] = self._of.get(job, 0) + 1
        return count

    def leave(self, job: str) -> None:
        self._of[job] -= 1
        if not self._of[job]:
            del self._of[job]


def allowed_connections(workers: int) -> int:
    """How many connections a job of `workers` workers may have, in all of its runs."""
    return CONNECTIONS_PER_WORKER * workers + SPARE_CONNECTIONS


class MostConnections:
    """The most connections that one job may have on a lane, whatever its number of workers.

    ``descriptors``: how many files the lane may open; ``memory``: the budget of the job.
    """

    def __init__(self, descriptors: int, memory: int) -> None:
        self._descriptors = descriptors
        self._memory = memory
        self._by_memory = max(FREE_CONNECTIONS, memory // BYTES_PER_CONNECTION)
        self.count = min(descriptors // PART_OF_DESCRIPTORS, self._by_memory)

    def check_world(self, job: str, world_size: int) -> None:
        """Raises QuotaError for a world size whose workers could not all connect."""
        coming_back = min(world_size, SPARE_CONNECTIONS)
        needed = PART_OF_DESCRIPTORS * (world_size + coming_back)
        if needed > self._descriptors:
            raise QuotaError(
                f"job {job!r} has {world_size:,} workers, each with a connection to each lane; a "
                f"lane may open {self._descriptors:,} files, half of them for one job, and this "
                f"job needs a limit of {needed:,}: raise it (ulimit -n)"
            )
        if world_size > self._by_memory:
            raise QuotaError(
                f"job {job!r} has {world_size:,} workers; with {self._memory:,} bytes of memory a "
                f"lane admits {self._by_memory:,} of one job: raise --memory or --job-memory"
            )

    def too_many(self, job: str, workers: int, count: int) -> QuotaError:
        if allowed_connections(workers) <= self.count:
            return QuotaError(
                f"job {job!r} has {count:,} connections to this lane; with {workers:,} workers it "
                f"may have {allowed_connections(workers):,}: does a worker connect again and again?"
            )
        return QuotaError(
            f"job {job!r} has {count:,} connections to this lane, the limit for one job is "
            f"{self.count:,} ({self._descriptors:,} open files, {self._memory:,} bytes of memory): "
            "raise ulimit -n and --memory, or make fewer groups"
        )


def check_new_run(
    settings: LaneSettings, job: str, reducers: int, all_runs: int, job_runs: int, ended: int
) -> None:
    """Raises QuotaError if the job may not have one more run.

    The lane has `all_runs` runs, of which the job has `job_runs`. `ended` runs of the job have
    ended and are not forgotten yet.
    """
    if reducers > settings.max_reducers:
        raise QuotaError(
            f"job {job!r} names {reducers:,} reducers, the limit for one job is "
            f"{settings.max_reducers:,} (--max-reducers): name fewer, or raise the limit on each "
            "reducer"
        )
    if all_runs >= settings.max_total_runs:
        raise QuotaError(
            f"this reducer serves {settings.max_total_runs} runs already, its limit for all jobs "
            "(--max-total-runs): raise it; each group of a job's workers is a run"
        )
    if job_runs >= settings.max_runs:
        raise QuotaError(
            f"job {job!r} has {settings.max_runs} runs on this reducer, the limit for one job "
            "(--max-runs): raise it, or end some of them; each group of the job's workers is a run"
        )
    if ended >= ENDED_PER_RUN * settings.max_runs:
        raise QuotaError(
            f"job {job!r} has {ENDED_PER_RUN * settings.max_runs:,} runs that have ended and are "
            "not forgotten yet, the limit for one job (four times --max-runs): try again soon, and "
            "begin fewer runs a second"
        )
