"""The errors of checkpoints: the public one, and one that only this room sees."""

from __future__ import annotations

from reducer_client.errors import ReducerError


class CheckpointError(ReducerError):
    """A checkpoint cannot be written or read, or an argument is not what a checkpoint can hold.

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
    """What is wrong with a checkpoint. Who reads it adds the checkpoint's name and the remedy."""
