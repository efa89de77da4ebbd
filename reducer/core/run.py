"""The members of a complete run: who sits where, who has left, whose connection is gone."""

from __future__ import annotations

from reducer.core.job import Job
from reducer.core.session import Session, SessionState


class Run:
    """A job with its members; `left` are the ranks that said BYE."""

    __slots__ = ("_lost", "incarnations", "job", "left", "next_stall")

    def __init__(self, job: Job, incarnations: dict[int, bytes], now: float) -> None:
        self.job = job
        self.incarnations = incarnations
        self.left: set[int] = set()
        self.next_stall = now
        self._lost: dict[int, tuple[float, str]] = {}

    def seat(self, peer: Session, rank: int) -> None:
        """The rank is here, on this session."""
        peer.state, peer.rank, peer.job, peer.forming = SessionState.READY, rank, self.job, None
        self.job.sessions[rank] = peer.id
        self._lost.pop(rank, None)

    def leave(self, peer: Session) -> None:
        peer.state = SessionState.LEFT
        self.left.add(peer.rank)
        self.job.sessions[peer.rank] = None
        if self.job.departed is None:
            self.job.departed = peer.rank

    def lose(self, peer: Session, now: float, reason: str) -> None:
        """The connection of a member has ended; it may come back on another one."""
        if self.job.sessions[peer.rank] == peer.id:
            self.job.sessions[peer.rank] = None
            self._lost[peer.rank] = (now, reason)

    def expired(self, before: float) -> tuple[int, str] | None:
        """A rank that has been gone since `before`, and why."""
        for rank, (lost_at, reason) in self._lost.items():
            if lost_at <= before:
                return rank, reason
        return None
