"""No optimizer: the table's value is the mean of the last step."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import ClassVar, Final

from reducer.optimizers.checks import Checks
from reducer.optimizers.rules import ReplaceScalars, Rule, Slot
from reducer.optimizers.scalars import check_step

MAX_HISTORY: Final = 8  # a frame names one of 8 arrays of a shard


@dataclass(frozen=True)
class NoOptimizer:
    """Replaces the parameters by the mean gradient. It has no learning rate and no convention.

    ``history``: how many values the table has, from 1 to 8: the newest and those before it. More
    than 1 needs common steps. A value takes 4 bytes a parameter. A worker that applies all means
    with an optimizer of its own needs as many as a step may leave it behind, and one more.

    Raises ``OptimizerError`` if ``history`` is out of range.
    """

    NAME: ClassVar[str] = "none"

    history: int = 1

    def __post_init__(self) -> None:
        Checks(self, self.NAME).integer("history", 1, MAX_HISTORY)

    @property
    def rule(self) -> Rule:
        return Rule.REPLACE

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The values before the newest, the latest first. No kernel changes them.

        A value before the first one is NaN throughout: no mean is, so a reader sees that there is
        no such value. Checkpoints and backups carry that with the arrays.
        """
        return tuple([Slot(f"{age}_before", nan) for age in range(1, self.history)])

    def scalars(self, step: int, lr: float | None = None) -> ReplaceScalars:
        """No scalars; ``lr`` is ignored. Raises ``OptimizerError`` if the step is below 1."""
        check_step(step)
        return ReplaceScalars()
