"""How a lane ends: it drains until its runs have moved to other reducers, or it shuts down.

`reducer/server/daemon/drain.py` has the steps by which the daemon drains.
"""

from __future__ import annotations

from typing import Final

from reducer.core.members.roster import Roster
from reducer.core.members.run_endings import Endings, Refusals
from reducer.core.members.session import SessionState
from reducer.core.surface.events import Drain, Output, Shutdown
from reducer.wire import messages
from reducer.wire.codes import ErrorCode
from reducer.wire.errors import ReductionError, UnavailableError

# Seconds to wait for the workers: after GOAWAY they move within milliseconds, if they can.
DRAIN_PATIENCE: Final = 1.0


class LaneEnd:
    def __init__(self, roster: Roster, endings: Endings, refusals: Refusals) -> None:
        self._roster = roster
        self._endings = endings
        self._refusals = refusals
        self._since = 0.0

    def begin(self, event: Drain, now: float) -> list[Output]:
        """Send GOAWAY to all runs, and refuse the forming ones. Open and new rounds continue."""
        self._roster.draining, self._since = event.reason, now
        goaway = messages.Goaway(event.reason)
        out: list[Output] = [
            members.run.seats.to_all(goaway) for members in self._roster.runs.values()
        ]
        # Sessions without a HELLO are not refused: they may be about to rejoin a run.
        error = UnavailableError(f"this reducer is draining ({event.reason})")
        return out + self._refuse_forming(error, now)

    def is_over(self, now: float) -> bool:
        """Whether every run has moved away, or nothing is open after DRAIN_PATIENCE."""
        runs = [members.run for members in self._roster.runs.values()]
        if not any(run.streams.live for run in runs):
            return True
        return now - self._since >= DRAIN_PATIENCE and not any(run.open for run in runs)

    def shut_down(self, event: Shutdown, now: float) -> list[Output]:
        """End every session now."""
        self._roster.draining = event.reason
        out: list[Output] = []
        text = f"this reducer has shut down ({event.reason})"
        for members in list(self._roster.runs.values()):
            out += self._endings.end(members, messages.Error(int(ErrorCode.UNAVAILABLE), text))
        out += self._refuse_forming(UnavailableError(text), now)
        for peer in list(self._roster.sessions.values()):
            # A client of the registry connects again, and so does another lane: no line in the log.
            if peer.state in (SessionState.ASKING, SessionState.LINKED):
                out += self._refusals.close(peer, text, now)
            else:
                out += self._refusals.refuse(peer, UnavailableError(text), now)
        return out

    def _refuse_forming(self, error: ReductionError, now: float) -> list[Output]:
        """One ERROR and one log line for each forming run, however many workers wait for it."""
        out: list[Output] = []
        for forming in list(self._roster.forming.values()):
            out += self._refusals.refuse_all(forming, error, now)
        return out
