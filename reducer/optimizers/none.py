"""No optimizer: the table's value is the mean of the last step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from reducer.optimizers.rules import ReplaceScalars, Rule, Slot
from reducer.optimizers.scalars import check_step


@dataclass(frozen=True)
class NoOptimizer:
    """Replaces the parameters by the mean gradient. It has no learning rate and no convention."""

    NAME: ClassVar[str] = "none"

    @property
    def rule(self) -> Rule:
        return Rule.REPLACE

    @property
    def slots(self) -> tuple[Slot, ...]:
        return ()

    def scalars(self, step: int, lr: float | None = None) -> ReplaceScalars:
        """No scalars; ``lr`` is ignored. Raises ``OptimizerError`` if the step is below 1."""
        check_step(step)
        return ReplaceScalars()
