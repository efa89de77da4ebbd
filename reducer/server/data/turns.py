"""Jobs take turns on a lane, so that no job keeps the lane for longer than others can wait.

The lane measures the time that each job's connections take: reads, sums, answers. When a job has
used up its turn, its connections are not read until the loop has served the other jobs. Then some
of them continue, in the order in which they were stopped. Meanwhile their bytes wait in the kernel.
If no other job has connections, the next turn begins at once.

Each pass of the loop gives every job a part of a turn. A job keeps the time that it does not use,
up to one turn. So a job that needs little is served at once, even beside a job that uses all of its
time.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Final, Protocol

SECONDS: Final = 0.001  # of one turn
# Time that a pass of the loop gives to each of several jobs. With less, other jobs wait less, but
# there are more passes, which take some microseconds each.
SHARED_SECONDS: Final = SECONDS / 4
# Time that a pass gives to all jobs together that have used up their turns. In mode open, a worker
# could otherwise gain time by using many job names.
PASS_SECONDS: Final = 2 * SECONDS
# The most turns that a job loses after one turn that took too long, as one frame can make it. A job
# that loses more would seem silent to its ranks.
MOST_TURNS: Final = 20
MOST_AT_ONCE: Final = 64  # connections that continue together


class Pausable(Protocol):
    """A connection that can be held and resumed."""

    def hold(self) -> None: ...

    def resume(self) -> None: ...


class Turn:
    """The turn of one job.

    ``spent``: seconds used. ``waiting``: connections that wait for the next turn; ``at_once``: how
    many of them continue with it. ``passes``: passes of the loop that have given the job their
    part. ``written``: seconds of writing since the last pass.
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
        """Take back `seconds` of `spent` for each pass that has not counted for the job yet."""
        if self.spent > 0.0:
            owed = min(self.spent, MOST_TURNS * SECONDS)
            self.spent = max(0.0, owed - (passes - self.passes) * seconds)
        self.passes = passes

    def begin_next(self, passes: int, seconds: float) -> None:
        """Let waiting connections continue.

        Twice as many as last time if those left time in the turn, else half as many.
        """
        if self.spent < SECONDS:
            self.at_once = min(2 * self.at_once, MOST_AT_ONCE)
        else:
            self.at_once = max(1, self.at_once // 2)
        self.take(passes, seconds)
        for connection in list(islice(self.waiting, self.at_once)):
            if not self.is_over:
                del self.waiting[connection]
                try:
                    connection.resume()
                except Exception:  # else it would never be resumed
                    self.waiting[connection] = None
                    raise


class Turns:
    """The turns by job; job "" is for connections whose job is not known yet.

    ``count``: turns that ended with more to read. ``seconds``: time that a pass gives to each job.
    """

    def __init__(self) -> None:
        self.count = 0
        self.seconds = SECONDS
        self._passes = 0
        self._by_job: dict[str, Turn] = {}
        self._over: dict[Turn, None] = {}
        self._is_due = False

    def enter(self, job: str) -> Turn:
        """The job has one more connection."""
        turn = self._by_job.get(job)
        if turn is None:
            turn = self._by_job[job] = Turn(job, self._passes)
            self._share()
        self.begin(turn)
        turn.members += 1
        return turn

    def leave(self, turn: Turn, connection: Pausable) -> None:
        """The connection has ended, or belongs to another job from now on."""
        self.release(turn, connection)
        turn.members -= 1
        self._maybe_forget(turn)

    def release(self, turn: Turn, connection: Pausable) -> None:
        """Resume the connection, whatever turn it waits for."""
        turn.waiting.pop(connection, None)
        connection.resume()

    def begin(self, turn: Turn) -> None:
        """Give the job, before it works again, its part of the passes since it last worked."""
        if turn.passes != self._passes:
            turn.take(self._passes, self.seconds)

    def charge(self, turn: Turn, seconds: float) -> bool:
        """Charge the job for work of the lane. Returns whether the job's turn is over."""
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
        """The turn is over: hold the connection until another turn resumes it."""
        if connection not in turn.waiting:
            turn.waiting[connection] = None
            connection.hold()

    def go_on(self) -> None:
        """Schedule the next turns. The tick calls this too, in case scheduling has failed."""
        if self._over and not self._is_due:
            asyncio.get_running_loop().call_soon(self._next)
            self._is_due = True

    def end_pass(self) -> None:
        """The loop has served everybody once; `_next` counts the pass if a turn is over."""
        if not self._is_due:
            self._passes += 1

    def _next(self) -> None:
        """The loop has served everybody once: begin the next turn of jobs whose turn was over."""
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
        if self._by_job.get(turn.job) is turn:  # else the job has entered again meanwhile
            del self._by_job[turn.job]
            self._share()

    def _share(self) -> None:
        if len(self._by_job) <= 1:
            self.seconds = SECONDS
        else:
            self.seconds = min(SHARED_SECONDS, PASS_SECONDS / max(1, len(self._over)))
