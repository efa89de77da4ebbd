"""One connection of one worker to this lane."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reducer.core.members.forming import Forming
    from reducer.core.runs.run import Run
    from reducer.core.surface.permit import Permit


class SessionState(IntEnum):
    NEW = 0  # waits for HELLO
    JOINING = 1  # admitted; the run is forming
    READY = 2  # welcomed: contributions may come
    LEFT = 3  # said BYE
    CLOSED = 4  # told to close; what still arrives is ignored


class Session:
    """`named` is the job for which it is counted, from its HELLO on.

    `silence` is how long it may send nothing once it is in a run, in seconds.
    """

    __slots__ = (
        "forming", "heard_at", "id", "named", "opened_at", "permit", "rank", "run", "silence",
        "state",
    )  # fmt: skip

    def __init__(self, id_: int, now: float, permit: Permit | None = None) -> None:
        self.id = id_
        self.permit = permit
        self.state = SessionState.NEW
        self.opened_at = now
        self.heard_at = now
        self.forming: Forming | None = None
        self.run: Run | None = None
        self.rank = -1
        self.silence = 0.0
        self.named = ""

    @property
    def run_number(self) -> int:
        """The number of its run, 0 before it is in one."""
        return 0 if self.run is None else self.run.number

    def about(self) -> dict[str, object]:
        """For log lines."""
        if self.run is None:
            return {"session": self.id, **({"job": self.named} if self.named else {})}
        return {**self.run.about(), "rank": self.rank}

    def __str__(self) -> str:
        if self.run is None:
            return f"session {self.id}"
        return f"rank {self.rank} of job {self.run.title!r}"
