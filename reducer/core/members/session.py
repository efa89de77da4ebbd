"""One connection of one worker to this lane, or of this lane to a lane of another reducer.

A lane closes a session that is silent. Whether its rank is lost, the workers decide
(client/engine/protocol/lost_ranks.cc).
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

from reducer.wire.errors import InternalError

if TYPE_CHECKING:
    from reducer.core.members.forming import Forming
    from reducer.core.runs.run import Run
    from reducer.core.surface.permit import Permit


class SessionState(IntEnum):
    NEW = 0  # waits for HELLO
    ASKING = 1  # calls the registry; never in a run
    LINKED = 2  # this lane has connected to another lane; never in a run
    JOINING = 3  # admitted; the run is forming
    READY = 4  # welcomed: contributions may come
    LEFT = 5  # said BYE
    CLOSED = 6  # being closed; what still arrives is ignored


# The states that may follow each state. A closed session may be closed again.
TRANSITIONS: Final = {
    SessionState.NEW: (
        SessionState.ASKING,
        SessionState.LINKED,
        SessionState.JOINING,
        SessionState.READY,
        SessionState.CLOSED,
    ),
    SessionState.ASKING: (SessionState.CLOSED,),
    SessionState.LINKED: (SessionState.CLOSED,),
    SessionState.JOINING: (SessionState.READY, SessionState.CLOSED),
    SessionState.READY: (SessionState.LEFT, SessionState.CLOSED),
    SessionState.LEFT: (SessionState.CLOSED,),
    SessionState.CLOSED: (SessionState.CLOSED,),
}


class Session:
    """`counted_job`: the job that the session is counted for, from its HELLO on, or from its first
    call of the registry (`asks`).

    `silence`: how many seconds the session may send nothing once it is in a run, or ASKING.
    `link`: the number of the Dial that has opened the session; 0 if the peer has connected.
    """

    __slots__ = (
        "asks", "counted_job", "forming", "heard_at", "id", "link", "opened_at", "permit", "rank",
        "run", "silence", "state",
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
        self.counted_job = ""
        self.asks = False
        self.link = 0

    def move(self, state: SessionState) -> None:
        """Move along TRANSITIONS; raises InternalError for any other step."""
        if state not in TRANSITIONS[self.state]:
            raise InternalError(f"{self} went from {self.state.name} to {state.name}")
        self.state = state

    @property
    def run_number(self) -> int:
        """The number of the session's run, 0 before it is in one."""
        return 0 if self.run is None else self.run.number

    def about(self) -> dict[str, object]:
        """The fields of log lines about the session."""
        if self.run is None:
            return {"session": self.id, **({"job": self.counted_job} if self.counted_job else {})}
        return {**self.run.about(), "rank": self.rank}

    def __str__(self) -> str:
        if self.run is None:
            return f"session {self.id}, link {self.link}" if self.link else f"session {self.id}"
        return f"rank {self.rank} of job {self.run.title!r}"
