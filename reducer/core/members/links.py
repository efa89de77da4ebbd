"""The connections that this lane opens to lanes of other reducers."""

from __future__ import annotations

import logging

from reducer.core.members.roster import Roster
from reducer.core.members.session import Session, SessionState
from reducer.core.surface.events import Close, Dial, Dialed, DialFailed, Log, Output


class Links:
    """Numbers the attempts to connect, and registers the sessions that come of them.

    Nothing is expected on these sessions yet: a frame other than HEARTBEAT ends its session.
    """

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._count = 0
        self._dialing: dict[int, Dial] = {}

    def dial(self, address: str, lane: int, job: str) -> Dial:
        """The output that connects to `lane` of the reducer at `address`, for the job."""
        self._count += 1
        dial = self._dialing[self._count] = Dial(
            link=self._count, address=address, lane=lane, job=job
        )
        return dial

    def dialed(self, event: Dialed, now: float) -> list[Output]:
        peer = Session(event.session, now)
        peer.link = event.link
        self._roster.sessions[event.session] = peer
        dial = self._dialing.pop(event.link, None)
        if dial is None:
            peer.move(SessionState.CLOSED)
            return [Close(0, peer.id, "nobody waits for this link")]
        peer.move(SessionState.LINKED)
        text = f"{peer}: connected to lane {dial.lane} of {dial.address}"
        return [Log(0, logging.DEBUG, text, {"job": dial.job})]

    def failed(self, event: DialFailed, now: float) -> list[Output]:
        dial = self._dialing.pop(event.link, None)
        about: dict[str, object] = {} if dial is None else {"job": dial.job}
        return [Log(0, logging.DEBUG, f"link {event.link}: {event.reason}", about)]
