"""Decides when a checkpoint is due, from steps and times that the caller passes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from reducer_client.tables.checkpoints.errors import CheckpointError
from reducer_client.tables.checkpoints.image import as_index


@dataclass
class SavePolicy:
    """A checkpoint is due after so many steps or so many seconds, whichever is earlier.

    Counting begins with the first call of ``due`` or ``saved``. Call ``saved`` after each save, and
    after a load with the step that was loaded. Without ``every_steps`` and ``every_seconds`` no
    checkpoint is ever due.

    Attributes:
        every_steps: steps from one save to the next, at least 1.
        every_seconds: seconds from one save to the next, above 0.
        keep: how many checkpoints ``save`` leaves, at least 1; None: all.

    Raises CheckpointError for values out of range.
    """

    every_steps: int | None = None
    every_seconds: float | None = None
    keep: int | None = 3
    _last: tuple[int, float] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("every_steps", "keep"):
            if getattr(self, name) is not None:
                as_index(name, getattr(self, name), 1)
        seconds = self.every_seconds
        if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
            raise CheckpointError(f"every_seconds must be finite and above 0, got {seconds}")

    def due(self, step: int, now: float) -> bool:
        """Whether the table, now at ``step``, should be saved. ``now``: seconds of one clock.

        The step of the last save is not due again.
        """
        if self._last is None:
            self._last = step, now
        last_step, last_time = self._last
        if step == last_step:
            return False
        by_steps = self.every_steps is not None and step - last_step >= self.every_steps
        by_time = self.every_seconds is not None and now - last_time >= self.every_seconds
        return by_steps or by_time

    def saved(self, step: int, now: float) -> None:
        """A save of ``step`` ended, or a checkpoint of it was loaded, at the time ``now``."""
        self._last = step, now
