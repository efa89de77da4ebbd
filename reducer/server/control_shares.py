"""What the control frames of one job may take of a lane that serves others beside it.

Credit bounds contributions. Nothing but the speed of a socket bounds heartbeats, routes, questions
and the like. A job whose control frames have taken their part of the time between two ticks
is not read until later ticks have made up for it: what it sends waits in the kernel, nothing is
lost, and no other job waits for it.
"""

from __future__ import annotations

from typing import Final, Protocol

# CPU time that a job may take between two ticks (50 ms), and more for each of its connections: an
# honest job of 1,000 workers sends 200 heartbeats a tick, of 20 us each.
SECONDS_PER_TICK: Final = 0.002
SECONDS_PER_CONNECTION: Final = 0.000_02
# Added to the measured time of each frame: reading and parsing it.
SECONDS_PER_FRAME: Final = 0.000_005
# A frame that took very long is not held against the job for longer: its ranks would seem silent.
MOST_TICKS: Final = 10


class Pausable(Protocol):
    """A connection that can be left unread for a while."""

    def hold(self) -> None: ...

    def let_go(self) -> None: ...


class _Share:
    def __init__(self) -> None:
        self.members: set[Pausable] = set()
        self.spent = 0.0
        self.held = False

    @property
    def per_tick(self) -> float:
        return SECONDS_PER_TICK + SECONDS_PER_CONNECTION * len(self.members)


class ControlShares:
    """By the name of the job; `holds` counts how often one was held."""

    def __init__(self) -> None:
        self.holds = 0
        self._by_job: dict[str, _Share] = {}
        self._of: dict[Pausable, str] = {}

    @property
    def jobs(self) -> int:
        """Those with a connection here, in a run or before it."""
        return len(self._by_job)

    def enter(self, connection: Pausable, job: str) -> None:
        """The connection has said that it is of the job; once for each connection."""
        share = self._by_job.setdefault(job, _Share())
        share.members.add(connection)
        self._of[connection] = job
        if share.held:
            connection.hold()

    def leave(self, connection: Pausable) -> None:
        """What the connection has taken stays its job's until ticks have made up for it."""
        job = self._of.pop(connection, None)
        if job is not None:
            self._by_job[job].members.remove(connection)

    def spend(self, connection: Pausable, seconds: float) -> None:
        """A control frame of the connection has taken so long of the CPU."""
        job = self._of.get(connection)
        if job is None:
            return
        share = self._by_job[job]
        share.spent += seconds + SECONDS_PER_FRAME
        if share.spent > share.per_tick and not share.held:
            self.holds += 1
            share.held = True
            for member in share.members:
                member.hold()

    def tick(self) -> None:
        for share in self._by_job.values():
            share.spent = max(0.0, min(share.spent, MOST_TICKS * share.per_tick) - share.per_tick)
            if share.held and share.spent <= share.per_tick / 2:
                share.held = False
                for member in share.members:
                    member.let_go()
        over = [job for job, s in self._by_job.items() if not s.members and not s.spent]
        for job in over:
            del self._by_job[job]
