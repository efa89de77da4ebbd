"""Jobs take turns on a lane, so that no job keeps the lane for longer than others can wait.

The lane measures the time that each job's connections take: reads, sums, answers. When a job has
used up its turn, its connections are not read until the loop has served the other jobs. Then some
of them continue, in the order in which they were stopped. Meanwhile their bytes wait in the kernel.
If no other job has connections, the next turn begins at once.

Each pass of the loop gives every job a part of a turn. A job keeps what it does not use, up to one
turn. So a job that needs little is served at once, even beside a job that uses all of its time.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Final, Protocol

SECONDS: Final = 0.001  # of one turn
# What a pass of the loop gives to a job that is not alone. The shorter, the less the others wait,
# and the more passes there are: each takes some microseconds.
SHARED_SECONDS: Final = SECONDS / 4
# What it gives to all jobs that have more to do: without keys names cost nothing.
PASS_SECONDS: Final = 2 * SECONDS
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

    ``passes``: those that have given it their part. ``written``: seconds of writing since the loop
    has last served everybody.
    """

    __slots__ = ("at_once", "job", "members", "passes", "spent", "waiting", "written")

    def __init__(self, job: str, passes: int) -> None:
        self.job = job
        self.members = 0
        self.passes = passes
        self.spent = 0.0
        self.written = 0.0
        self.waiting: dict[Pausable, None] = {}
        self.at_once = 1

    @property
    def is_over(self) -> bool:
        return self.spent >= SECONDS

    def take(self, passes: int, seconds: float) -> None:
        """Give it `seconds` for each pass that it has not been given yet."""
        if self.spent > 0.0:
            owed = min(self.spent, MOST_TURNS * SECONDS)
            self.spent = max(0.0, owed - (passes - self.passes) * seconds)
        self.passes = passes

    def begin_next(self, passes: int, seconds: float) -> None:
        """Let connections continue: more of them if the last ones have not used up the turn."""
        if self.spent < SECONDS:
            self.at_once = min(2 * self.at_once, MOST_AT_ONCE)
        else:
            self.at_once = max(1, self.at_once // 2)
        self.take(passes, seconds)
        for connection in list(islice(self.waiting, self.at_once)):
            if not self.is_over:
                del self.waiting[connection]
                try:
                    connection.let_go()
                except Exception:  # else nobody would let it go
                    self.waiting[connection] = None
                    raise


class Turns:
    """By the name of the job, "" for connections of which nobody knows it yet.

    ``count``: turns that ended with more to read. ``seconds``: what a pass gives to each job.
    """

    def __init__(self) -> None:
        self.count = 0
        self.seconds = SECONDS
        self._passes = 0
        self._by_job: dict[str, Turn] = {}
        self._over: dict[Turn, None] = {}
        self._is_due = False

    def enter(self, job: str) -> Turn:
        """One more connection of the job."""
        turn = self._by_job.get(job)
        if turn is None:
            turn = self._by_job[job] = Turn(job, self._passes)
            self._share()
        self.begin(turn)
        turn.members += 1
        return turn

    def leave(self, turn: Turn, connection: Pausable) -> None:
        """The connection has ended, or is another job's from now on."""
        self.release(turn, connection)
        turn.members -= 1
        self._maybe_forget(turn)

    def release(self, turn: Turn, connection: Pausable) -> None:
        """Read the connection in any turn."""
        turn.waiting.pop(connection, None)
        connection.let_go()

    def begin(self, turn: Turn) -> None:
        """Before it works: give it its part of the passes since it has last worked."""
        if turn.passes != self._passes:
            turn.take(self._passes, self.seconds)

    def charge(self, turn: Turn, seconds: float) -> bool:
        """The lane has worked for the job for so long. Whether its turn is over."""
        self.begin(turn)
        turn.spent += seconds
        if turn.spent < SECONDS:
            return False
        if turn not in self._over:
            self.count += 1
            self._over[turn] = None
            self.go_on()
        return True

    def wait(self, turn: Turn, connection: Pausable) -> None:
        """The turn is over: leave the connection alone until another one comes to it."""
        if connection not in turn.waiting:
            turn.waiting[connection] = None
            connection.hold()

    def go_on(self) -> None:
        """Let the loop come to the next turns; the tick asks too, should this have failed."""
        if self._over and not self._is_due:
            asyncio.get_running_loop().call_soon(self._next)
            self._is_due = True

    def served_all(self) -> None:
        """The loop has served everybody once; where a turn is over, `_next` counts that."""
        if not self._is_due:
            self._passes += 1

    def _next(self) -> None:
        """The loop has served everybody once: the next turn of those whose turn was over."""
        self._is_due = False
        self._passes += 1
        self._share()
        for turn in list(self._over):
            turn.begin_next(self._passes, self.seconds)
            if not turn.waiting and not turn.is_over:
                del self._over[turn]
                self._maybe_forget(turn)
        self.go_on()

    def _maybe_forget(self, turn: Turn) -> None:
        if turn.members or turn in self._over:
            return
        if self._by_job.get(turn.job) is turn:  # else the job has come anew meanwhile
            del self._by_job[turn.job]
            self._share()

    def _share(self) -> None:
        if len(self._by_job) <= 1:
            self.seconds = SECONDS
        else:
            self.seconds = min(SHARED_SECONDS, PASS_SECONDS / max(1, len(self._over)))
