"""The runs that have ended in the last hour, for those who look after the fact."""

from __future__ import annotations

from collections import deque
from typing import Final

from reducer.core.runs.run import Run
from reducer.core.surface.numbers import EndedPart, EndedReport

FINISHED: Final = "finished"
DESERTED: Final = "all workers are gone"
KEPT_SECONDS: Final = 3_600.0
MAX_PAST: Final = 64
_CAUSE_SHOWN: Final = 500


class PastRun:
    """A run that has ended. ``ended_at`` is below 0 until the next tick."""

    __slots__ = (
        "cause",
        "ended_at",
        "job",
        "own_rounds",
        "rounds",
        "run_id",
        "title",
        "world_size",
    )

    def __init__(self, run: Run, cause: str) -> None:
        self.job, self.title, self.run_id = run.name, run.title, run.run_id
        self.world_size = run.world_size
        self.rounds = run.results.rounds
        self.own_rounds = run.results.own_rounds
        self.cause = cause[:_CAUSE_SHOWN]
        self.ended_at = -1.0


class PastRuns:
    """At most MAX_PAST runs, for at most an hour. Groups of a run are not kept."""

    def __init__(self) -> None:
        self._runs: deque[PastRun] = deque(maxlen=MAX_PAST)

    def add(self, run: Run, cause: str) -> None:
        if "#" not in run.run_id:
            self._runs.append(PastRun(run, cause))

    def tick(self, now: float) -> None:
        for past in self._runs:
            if past.ended_at < 0:
                past.ended_at = now
        while self._runs and self._runs[0].ended_at < now - KEPT_SECONDS:
            self._runs.popleft()

    def parts(self, now: float) -> list[EndedPart]:
        """The part of a lane's report about each of them."""
        return [
            EndedPart(
                EndedReport(
                    past.job,
                    past.title,
                    past.run_id,
                    past.world_size,
                    past.rounds,
                    past.own_rounds,
                    max(0.0, now - past.ended_at) if past.ended_at >= 0 else 0.0,
                    past.cause,
                )
            )
            for past in self._runs
        ]
