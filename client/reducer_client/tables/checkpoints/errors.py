"""The errors of checkpoints: a public one, and one that only this folder raises and catches."""

from __future__ import annotations

from reducer_client.errors import ReducerError


class CheckpointError(ReducerError):
    """A checkpoint cannot be written or read, or cannot hold an argument.

    Attributes:
        reason: "argument", "disk" (the file system refused), "busy" (another process is saving
            there), "missing" or "damaged".
        step: the step number of the checkpoint, or None.
        good_step: the step number of the newest good checkpoint, if another one is damaged or
            missing and a good one was found; otherwise None.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: str = "argument",
        step: int | None = None,
        good_step: int | None = None,
    ) -> None:
        super().__init__(message, reason=reason)
        self.step = step
        self.good_step = good_step


class DamageError(Exception):
    """A checkpoint is damaged. The text says how; callers add the checkpoint's name and remedy."""
