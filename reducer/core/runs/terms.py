"""The terms of a run."""

from __future__ import annotations

from dataclasses import dataclass

from reducer.wire.checks import ChunkTable
from reducer.wire.keys import run_title


@dataclass(frozen=True, slots=True)
class Terms:
    """What the ranks of a run have agreed on, and the `number` that this lane gives the run.

    `job` and `run_id` name the run; `slot` is this reducer's slot in rank 0's numbering. `weights`
    by slot; none: all slots are equal. `elastic`: the run goes on without ranks that are lost.
    """

    number: int
    job: str
    run_id: str
    slot: int
    world_size: int
    table: ChunkTable
    weights: tuple[int, ...] = ()
    elastic: bool = False

    @property
    def title(self) -> str:
        """The name of the run in texts and metrics. A group of ranks is a run of its own."""
        return run_title(self.job, self.run_id)

    def about(self) -> dict[str, object]:
        """The fields of log lines about the run."""
        return {"job": self.job, "run": self.run_id}
