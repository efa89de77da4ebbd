"""How sessions end: lost, refused, broken."""

from __future__ import annotations

import logging

from reducer.core.members.ended import fault_text
from reducer.core.members.endings import Endings
from reducer.core.members.forming import Forming
from reducer.core.members.roster import Roster
from reducer.core.members.session import Session, SessionState
from reducer.core.surface.events import NOTHING, Close, Failed, Log, Output
from reducer.wire import messages
from reducer.wire.codes import ErrorCode
from reducer.wire.errors import (
    PEER_ERRORS,
    IntegrityError,
    InternalError,
    PeerLostError,
    RecordsError,
    ReductionError,
    UnstableError,
)


class Refusals:
    """What one session has done ends this session, or its run where that is the law."""

    def __init__(self, roster: Roster, endings: Endings) -> None:
        self._roster = roster
        self._endings = endings

    def lose(self, session: int, reason: str, now: float) -> list[Output]:
        """The connection of a session has ended; where this raises it can be said again."""
        peer = self._roster.sessions.get(session)
        if peer is None:
            return []
        if peer.forming is not None:
            self._unjoin(peer, peer.forming)
        if peer.state == SessionState.READY:
            self._note_loss(peer, now, reason)
        ended = self._roster.ended.get(peer.run_number)
        members = (
            self._roster.runs_by_number.get(peer.run_number) if ended is None else ended.members
        )
        if members is not None:
            members.sessions.discard(session)
        if ended is not None:
            self._roster.ended.maybe_close_room(ended)
        del self._roster.sessions[session]
        if peer.named:
            self._roster.connections.leave(peer.named)
        text = f"{peer}: the connection has ended: {reason}"
        return [Log(peer.run_number, logging.DEBUG, text, peer.about())]

    def close(self, peer: Session, reason: str, now: float) -> list[Output]:
        if peer.state == SessionState.READY:
            self._note_loss(peer, now, reason)
        if peer.forming is not None:  # else the run could be complete with who is gone
            self._unjoin(peer, peer.forming)
        peer.state = SessionState.CLOSED
        return [Close(peer.run_number, peer.id, reason)]

    def refuse(self, peer: Session, error: ReductionError, now: float) -> list[Output]:
        """ERROR to one session, and the end of it."""
        if peer.state == SessionState.CLOSED:
            return []
        message = messages.Error(int(error.code), str(error)[:4_000])
        self._endings.errors[error.code] += 1
        about = {**peer.about(), "code": error.code.name.lower()}
        log = Log(peer.run_number, logging.WARNING, f"{peer}: {error}", about)
        return [
            log,
            self._roster.send(peer.run_number, message, (peer.id,)),
            *self.close(peer, str(error), now),
        ]

    def refuse_all(self, forming: Forming, error: ReductionError, now: float) -> list[Output]:
        """The run cannot come about; whoever waits for it is told why."""
        all_ = [self._roster.sessions[session] for session in forming.sessions.values()]
        peers = [peer for peer in all_ if peer.state != SessionState.CLOSED]
        self._endings.errors[error.code] += len(peers)
        about = {"job": forming.job, "code": error.code.name.lower()}
        text = f"job {forming.title!r}, {len(peers)} workers: {error}"
        message = messages.Error(int(error.code), str(error)[:4_000])
        out: list[Output] = [
            Log(0, logging.WARNING, text, about),
            self._roster.send(0, message, tuple(peer.id for peer in peers)),
        ]
        for peer in peers:
            out += self.close(peer, str(error), now)
        return out

    def break_up(self, forming: Forming, error: Exception, now: float) -> list[Output]:
        """A bug of ours, or no memory, while the run forms."""
        text = fault_text(error)
        line = Log(0, logging.ERROR, text, {"job": forming.job}, error)
        return [line, *self.refuse_all(forming, InternalError(text), now)]

    def untaken(self, peer: Session, error: ReductionError, now: float) -> list[Output]:
        """A frame could not be taken: end the session, or the run where that is the law."""
        run = peer.run
        if peer.state == SessionState.CLOSED or run is None:
            return self.refuse(peer, error, now)
        departed = run.seats.departed
        if isinstance(error, PeerLostError) and departed is not None:
            return self._endings.fail(run, ErrorCode.PEER_LOST, str(error), departed, "left")
        if isinstance(error, IntegrityError):
            return self._endings.fail(run, ErrorCode.INTEGRITY, str(error), peer.rank, "integrity")
        if isinstance(error, RecordsError):
            return self._endings.fail(run, ErrorCode.QUOTA, str(error), peer.rank, "records")
        if isinstance(error, UnstableError):
            return self._endings.fail(run, ErrorCode.QUOTA, str(error), error.rank, "unstable")
        return self.refuse(peer, error, now)

    def broken(self, session: int, error: Exception, now: float) -> list[Output]:
        peer = self._roster.sessions.get(session)
        if isinstance(error, PEER_ERRORS):
            return [] if peer is None else self.untaken(peer, error, now)
        if peer is None:  # nothing is lost but the connection
            return [Log(0, logging.ERROR, fault_text(error), NOTHING, error)]
        members = self._roster.runs_by_number.get(peer.run_number)
        if members is not None:
            return self._endings.fault(members, error)
        text = fault_text(error)
        out: list[Output] = [Log(0, logging.ERROR, f"{peer}: {text}", peer.about(), error)]
        if peer.state == SessionState.CLOSED:
            self._endings.tell_again(out)
        return out + self.refuse(peer, InternalError(text), now)

    def failed(self, event: Failed, now: float) -> list[Output]:
        """An output could not be carried out: its run ends, or the sessions that it was for."""
        members = self._roster.runs_by_number.get(event.run)
        if members is not None:
            return self._endings.fault(members, event.error)
        text = fault_text(event.error)
        peers = [p for s in event.sessions if (p := self._roster.sessions.get(s)) is not None]
        out: list[Output] = [Log(event.run, logging.ERROR, text, NOTHING, event.error)]
        for peer in peers:
            self.close(peer, text, now)
            out.append(Close(event.run, peer.id, text, at_once=True))
        return out

    def _unjoin(self, peer: Session, forming: Forming) -> None:
        peer.forming = None
        if forming.sessions.get(peer.rank) != peer.id:
            return
        forming.leave(peer.rank)
        if not forming.sessions and self._roster.forming.get(forming.id) is forming:
            del self._roster.forming[forming.id]

    def _note_loss(self, peer: Session, now: float, reason: str) -> None:
        """A member's connection is gone; the others hear of it unless it is back in time."""
        if peer.run is None:
            return
        members = self._roster.runs.get((peer.run.name, peer.run.run_id))
        if members is not None:
            members.lose(peer, now, reason)
