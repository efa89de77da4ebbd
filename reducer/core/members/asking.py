"""Admits the connections that are in no run: of the registry's clients, and those for tables."""

from __future__ import annotations

from typing import Final

from reducer.core.limits.quotas import SPARE_CONNECTIONS, MostConnections
from reducer.core.members.roster import Roster
from reducer.core.members.session import Session, SessionState
from reducer.core.surface.events import Close, Output
from reducer.wire.errors import AuthenticationError, QuotaError

# A client without calls for this long has gone, or connects again for its next call.
SILENCE: Final = 60.0


class Asking:
    """Sessions that ask for something of a job without joining a run."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        settings = roster.settings
        self._most = MostConnections(settings.descriptors, settings.job_budget or settings.budget)

    def admit(self, peer: Session, job: str, wanted: str) -> list[Output]:
        """Let the session call for its job; raises the ProtocolError family. `wanted`: what.

        The session is ASKING afterwards, or is closed by the output.
        """
        if peer.permit is not None and job not in peer.permit.jobs:
            raise AuthenticationError(
                f"by its {peer.permit.proof} this worker may join {peer.permit}, but it asks for "
                f"{wanted} of job {job!r}"
            )
        count = self._roster.askers.enter(job)
        peer.counted_job, peer.asks = job, True
        if count > self._most.count + SPARE_CONNECTIONS:
            peer.move(SessionState.CLOSED)
            reason = f"job {job!r} has {count:,} connections to {wanted}"
            return [Close(0, peer.id, reason, at_once=True)]
        if count > self._most.count:
            raise QuotaError(
                f"job {job!r} has {count:,} connections to {wanted}, the limit is "
                f"{self._most.count:,}: raise ulimit -n and --memory"
            )
        peer.move(SessionState.ASKING)
        peer.silence = SILENCE
        return []


def why_there_is_no_registry(lane: int) -> str:
    if lane:
        return f"lane {lane} has no registry: lane 0 has the registry of a reducer"
    return (
        "this reducer has no registry: start it with --registry FILE (REDUCER_REGISTRY_FILE), or "
        "give the address of a reducer that has one"
    )
