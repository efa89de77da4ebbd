"""Jobs take turns at a lane: none keeps it for longer than the others can wait.

What the connections of a job make the lane do is timed: reading, sums, answers. A job that has had
its turn is not read until the loop has served the others. Then some of its connections go on, in
the order in which they were stopped. What they send meanwhile waits in the kernel. Where no other
job wants the lane, one turn follows the other.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

SECONDS: Final = 0.001  # of one turn
# A turn that took longer, as one frame can, costs the job some of its next ones; no more than so
# many: its ranks would seem silent.
MOST_TURNS: Final = 20
MOST_AT_ONCE: Final = 64  # connections that go on together


class Pausable(Protocol):
    """A connection that can be left alone for a while."""

    def hold(self) -> None: ...

    def let_go(self) -> None: ...


class Turn:
    """Of one job: ``spent`` seconds, who waits for the next one, how many go on with it.

    ``written``: seconds of writing since the loop has last served everybody.
    """

    __slots__ = ("at_once", "job", "members", "spent", "waiting", "written")

    def __init__(self, job: str) -> None:
        self.job = job
        self.members = 0
        self.spent = 0.0
        self.written = 0.0
        self.waiting: dict[Pausable, None] = {}
        self.at_once = 1

    @property
    def is_over(self) -> bool:
        return self.spent >= SECONDS

    def begin_next(self) -> None:
        """Let connections go on: more of them if the last ones have left some of the turn."""
        if self.spent < SECONDS:
            self.at_once = min(2 * self.at_once, MOST_AT_ONCE)
        else:
            self.at_once = max(1, self.at_once // 2)
        self.spent = max(0.0, min(self.spent, MOST_TURNS * SECONDS) - SECONDS)
        for connection in list(self.waiting)[: self.at_once]:
            if not self.is_over:
                del self.waiting[connection]
                try:
                    connection.let_go()
                except Exception:  # else nobody would let it go
                    self.waiting[connection] = None
                    raise


class Turns:
    """By the name of the job, "" for connections that have named none; ``count``: turns that ended
    with more to read."""

    def __init__(self) -> None:
        self.count = 0
        self._by_job: dict[str, Turn] = {}
        self._over: dict[Turn, None] = {}
        self._is_due = False

    def enter(self, job: str) -> Turn:
        """One more connection of the job."""
        turn = self._by_job.get(job)
        if turn is None:
            turn = self._by_job[job] = Turn(job)
        turn.members += 1
        return turn

    def leave(self, turn: Turn, connection: Pausable) -> None:
        """The connection has ended, or is another job's from now on."""
        self.release(turn, connection)
        turn.members -= 1
        self._maybe_forget(turn)

    def release(self, turn: Turn, connection: Pausable) -> None:
        """Read the connection, whoever's turn it is."""
        turn.waiting.pop(connection, None)
        connection.let_go()

    def charge(self, turn: Turn, seconds: float) -> None:
        """The lane has worked for the job for so long."""
        turn.spent += seconds
        if turn.is_over:
            self._is_over(turn)

    def wait(self, turn: Turn, connection: Pausable) -> None:
        """The turn is over: leave the connection alone until another one comes to it."""
        self._is_over(turn)
        if connection not in turn.waiting:
            turn.waiting[connection] = None
            connection.hold()

    def _is_over(self, turn: Turn) -> None:
        if turn not in self._over:
            self.count += 1
            self._over[turn] = None
            self.go_on()

    def go_on(self) -> None:
        """Let the loop come to the next turns; the tick asks too, should this have failed."""
        if self._over and not self._is_due:
            asyncio.get_running_loop().call_soon(self._next)
            self._is_due = True

    def _next(self) -> None:
        """The loop has served everybody once: the next turn of those whose turn was over."""
        self._is_due = False
        for turn in list(self._over):
            turn.begin_next()
            if not turn.waiting and not turn.is_over:
                del self._over[turn]
                self._maybe_forget(turn)
        self.go_on()

    def _maybe_forget(self, turn: Turn) -> None:
        if turn.members or turn in self._over:
            return
        if self._by_job.get(turn.job) is turn:  # else the job has come anew meanwhile
            del self._by_job[turn.job]
