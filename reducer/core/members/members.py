"""The members of a complete run: who sits where, who has left, whose connection is gone."""

from __future__ import annotations

from typing import Final

from reducer.core.members.session import Session, SessionState
from reducer.core.runs.run import Run
from reducer.wire.codes import MAX_CONTROL_ITEMS
from reducer.wire.messages import Absent

MAX_ABSENT: Final = 64


class Members:
    """The members of `run`; `left` are the ranks that said BYE.

    `sessions` are all of its connections that have not ended, also those that were replaced.
    """

    __slots__ = (
        "_last_lost_at", "_lost", "_told", "absence_from", "beat_at", "began_at", "digest_every",
        "incarnations", "last", "left", "next_beat", "next_stall", "run", "sessions", "silence",
    )  # fmt: skip

    def __init__(
        self,
        run: Run,
        incarnations: dict[int, bytes],
        digest_every: int,
        silence: float,
        now: float,
    ) -> None:
        self.run = run
        self.incarnations = incarnations
        self.digest_every = digest_every  # for the ranks to agree on; nothing here reads it
        self.silence = silence  # seconds without a byte before a rank counts as lost
        # The session of each rank, open or not.
        self.last: list[int | None] = [None] * run.world_size
        self.left: set[int] = set()
        self.sessions: set[int] = set()
        self.began_at = now
        self.next_stall = now
        self.next_beat = now
        self.beat_at = now  # when the last heartbeat was sent
        self.absence_from = now  # when it may be told again
        self._lost: dict[int, tuple[float, str]] = {}
        self._last_lost_at = 0.0
        self._told: tuple[int, ...] = ()

    def seat(self, peer: Session, rank: int) -> None:
        """The rank is here, on this session."""
        self.sessions.add(peer.id)  # first: where this fails, nothing has changed
        peer.state, peer.rank, peer.run, peer.forming = SessionState.READY, rank, self.run, None
        peer.silence = self.silence
        self.run.seats.sessions[rank] = self.last[rank] = peer.id
        self._lost.pop(rank, None)

    def leave(self, peer: Session) -> None:
        peer.state = SessionState.LEFT
        self.left.add(peer.rank)
        self.run.seats.sessions[peer.rank] = None
        if self.run.seats.departed is None:
            self.run.seats.departed = peer.rank

    def lose(self, peer: Session, since: float, reason: str) -> None:
        """The connection of a member has ended; it may come back on another one."""
        if self.run.seats.sessions[peer.rank] == peer.id:
            self._lost[peer.rank] = (since, reason)  # first: where this fails, it is said again
            self._last_lost_at = max(self._last_lost_at, since)
            self.run.seats.sessions[peer.rank] = None

    def shift_clocks(self, seconds: float, now: float) -> None:
        """Nobody could come back for so long."""
        for rank, (since, reason) in self._lost.items():
            self._lost[rank] = (min(now, since + seconds), reason)
        self._last_lost_at = min(now, self._last_lost_at + seconds)

    @property
    def complete(self) -> bool:
        """Every rank that has not left is connected."""
        return not self._lost

    def deserted(self, before: float) -> bool:
        """Nobody has been here since `before`."""
        gone = len(self._lost) + len(self.left) == self.run.world_size
        return gone and self._last_lost_at <= before

    def absent(self, before: float) -> Absent:
        """The ranks that have been gone since `before`, and why; those that have left."""
        gone = tuple((rank, self._lost[rank][1][:200]) for rank in self._gone(before))
        left = tuple(sorted(self.left)[:MAX_CONTROL_ITEMS])
        return Absent(gone, left, len(self.left))

    def absence(self, before: float) -> Absent | None:
        """The same, when it is not what was last asked for."""
        told = (*self._gone(before), -1, len(self.left))
        if told == self._told or (not self._told and told == (-1, 0)):
            return None
        self._told = told
        return self.absent(before)

    def _gone(self, before: float) -> list[int]:
        """MAX_ABSENT of them; each tick asks, and thousands may be gone for an hour."""
        gone = []
        for rank, (lost_at, _) in self._lost.items():
            if lost_at <= before:
                gone.append(rank)
                if len(gone) == MAX_ABSENT:
                    break
        return gone
