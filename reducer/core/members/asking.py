"""Admits the connections of the registry's clients, which are in no run."""

from __future__ import annotations

from typing import Final

from reducer.core.limits.quotas import SPARE_CONNECTIONS, MostConnections
from reducer.core.members.roster import Roster
from reducer.core.members.session import Session, SessionState
from reducer.core.surface.events import Close, Output
from reducer.wire.errors import AuthenticationError, QuotaError, UnavailableError

# A client without calls for this long has gone, or connects again for its next call.
SILENCE: Final = 60.0


class Asking:
    """`is_open`: whether this lane has the registry."""

    def __init__(self, roster: Roster, is_open: bool) -> None:
        self._roster = roster
        self._is_open = is_open
        settings = roster.settings
        self._most = MostConnections(settings.descriptors, settings.job_budget or settings.budget)

    def admit(self, peer: Session, job: str) -> list[Output]:
        """Let the session call the registry for its job; raises the ProtocolError family.

        The session is ASKING afterwards, or is closed by the output.
        """
        if peer.permit is not None and job not in peer.permit.jobs:
            raise AuthenticationError(
                f"by its {peer.permit.proof} this worker may join {peer.permit}, but it asks for "
                f"the registry of job {job!r}"
            )
        if not self._is_open:
            raise UnavailableError(_why_there_is_none(self._roster.settings.lane))
        count = self._roster.askers.enter(job)
        peer.counted_job, peer.asks = job, True
        if count > self._most.count + SPARE_CONNECTIONS:
            peer.move(SessionState.CLOSED)
            reason = f"job {job!r} has {count:,} connections to the registry"
            return [Close(0, peer.id, reason, at_once=True)]
        if count > self._most.count:
            raise QuotaError(
                f"job {job!r} has {count:,} connections to the registry, the limit is "
                f"{self._most.count:,}: raise ulimit -n and --memory"
            )
        peer.move(SessionState.ASKING)
        peer.silence = SILENCE
        return []


def _why_there_is_none(lane: int) -> str:
    if lane:
        return f"lane {lane} has no registry: lane 0 has the registry of a reducer"
    return (
        "this reducer has no registry: start it with --registry FILE (REDUCER_REGISTRY_FILE), or "
        "give the address of a reducer that has one"
    )
