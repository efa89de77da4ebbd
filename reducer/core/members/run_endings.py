"""How runs end (over, failed, internal error) and how sessions end (closed, refused, broken).

A lane ends the run of a lost rank, but the clients decide that a rank is lost
(client/engine/protocol/lost_ranks.cc).
"""

from __future__ import annotations

import logging
from typing import Final

from reducer.core.limits.charges import ROUND
from reducer.core.members.forming import Forming
from reducer.core.members.past_runs import DESERTED, FINISHED, PastRuns
from reducer.core.members.roster import Ended, Members, Roster, fault_text, room_of
from reducer.core.members.session import Session, SessionState
from reducer.core.runs.run import Run
from reducer.core.surface.buffer import Buffer
from reducer.core.surface.events import NOTHING, Close, Failed, Free, Log, Output
from reducer.wire import messages
from reducer.wire.codes import ErrorCode
from reducer.wire.errors import (
    PEER_ERRORS,
    ExcludedError,
    IntegrityError,
    InternalError,
    PeerLostError,
    RecordsError,
    ReductionError,
    UnstableError,
)

# Bytes of records that a run forgets when it ends: as many as a small model has.
FORGOTTEN_AT_ONCE: Final = 64 << 10
# Deserted runs that a new run ends because it replaces them.
REPLACED_AT_ONCE: Final = 64
# The work of ending runs at once, counted in rounds of 3 us each. ROUND bytes of records count as a
# round, and so do PARTS_OF_ROUND parked contributions or STREAMS_OF_ROUND streams.
ROUNDS_AT_ONCE: Final = 2_048
PARTS_OF_ROUND: Final = 8
STREAMS_OF_ROUND: Final = 4


class Endings:
    """Ends runs.

    `runs_ended` counts the runs that are over; `errors` counts, by code, sessions that were refused
    and runs that were ended.
    """

    def __init__(self, roster: Roster) -> None:
        self.runs_ended = 0
        self.past = PastRuns()
        self.errors = dict.fromkeys(ErrorCode, 0)
        self._roster = roster
        self._ended_now: list[Ended] = []  # since the last tick

    def fail(self, run: Run, code: ErrorCode, text: str, rank: int, reason: str) -> list[Output]:
        """End the run for every rank, with one ERROR that all ranks are sent."""
        members = self._roster.runs[run.name, run.run_id]
        error = messages.Error(int(code), text[:4_000], rank, reason[:1_000])
        self.errors[code] += 1
        about = {**run.about(), "rank": rank, "code": code.name.lower()}
        line = Log(run.number, logging.ERROR, f"job {run.title!r}: {text}", about)
        return [line, *self.end(members, error)]

    def fault(self, members: Members, error: Exception) -> list[Output]:
        """End a run after an internal error or without memory: its state may be incomplete.

        The run ends on this lane. The workers reconnect, the run forms here again, and the workers
        send what is not stable again.
        """
        run = members.run
        text = fault_text(error)
        about = {**run.about(), "code": ErrorCode.INTERNAL.name.lower()}
        line = Log(run.number, logging.ERROR, f"job {run.title!r}: {text}", about, error)
        self.errors[ErrorCode.INTERNAL] += 1
        out: list[Output] = [line]
        try:
            out.append(run.seats.to_all(messages.Error(int(ErrorCode.INTERNAL), text[:4_000])))
        except Exception as worse:  # then the connections end without an ERROR
            text = f"{text}; and no ERROR could be sent: {worse}"
        return out + self._end(members, text, text)

    def fault_in(
        self, run: int, error: Exception, buffer: Buffer | None, out: list[Output]
    ) -> None:
        """End a run after an internal error in an event, and free the event's `buffer`.

        The run may have taken the buffer already, and then frees it itself.
        """
        members = self._roster.runs_by_number.get(run)
        if members is None:
            out.append(Log(0, logging.ERROR, fault_text(error), NOTHING, error))
        else:
            out += self.fault(members, error)
        given = [o.buffers for o in out if isinstance(o, Free)]
        if buffer is not None and not any(buffer is b for buffers in given for b in buffers):
            out.append(Free(0, (buffer,)))

    def end(
        self, members: Members, error: messages.Error | None = None, cause: str = FINISHED
    ) -> list[Output]:
        """End the run, and send `error`, if there is one, to its members.

        `cause` says why the run ends without an error.
        """
        run = members.run
        if error is not None:
            return [run.seats.to_all(error), *self._end(members, error.message, error.message)]
        text = f"job {run.name!r} run {run.run_id!r}: all have left"
        line = Log(run.number, logging.INFO, text, run.about())
        return [*self._end(members, "the run is over", cause), line]

    def end_deserted(self, job: str, run_id: str, now: float) -> list[Output]:
        """End some of the deserted runs that this run replaces, the largest reservations first."""
        replaced = sorted(self._roster.deserted(job, run_id, now), key=room_of, reverse=True)
        return [
            out
            for members in few(replaced, REPLACED_AT_ONCE)
            for out in self.end(members, None, DESERTED)
        ]

    def tell_again(self, out: list[Output]) -> None:
        """Close the sessions that are still open although their runs have ended since the last
        tick.

        An error after the end of a run may have lost the outputs that close its sessions.
        """
        text = "internal error of the reducer: the run has ended, and its ERROR could not be sent"
        for ended in self._ended_now:
            number = ended.members.run.number
            peers = [
                peer
                for id_ in ended.members.sessions
                if (peer := self._roster.sessions.get(id_)) is not None
            ]
            open_ = tuple(peer.id for peer in peers if peer.state != SessionState.LEFT)
            if open_:
                out.append(
                    self._roster.send(number, messages.Error(int(ErrorCode.INTERNAL), text), open_)
                )
                out += [Close(number, session, text) for session in open_]
        self._ended_now.clear()

    def _end(self, members: Members, reason: str, cause: str) -> list[Output]:
        """Drop the run's state, and close its connections.

        The run gives its memory back when the last connection has ended: until then connections may
        hold results. Keys keep their part of the memory until ticks have forgotten them.
        """
        run = members.run
        out: list[Output] = []
        self.runs_ended += 1
        self.past.add(run, cause)
        ended = self._roster.ended.add(members)
        self._ended_now.append(ended)
        self._roster.remove(members)
        peers = [self._roster.sessions[session] for session in members.sessions]
        closed = [peer for peer in peers if peer.state == SessionState.READY]
        for peer in closed:
            peer.move(SessionState.CLOSED)
        out += [Close(run.number, peer.id, reason) for peer in closed]
        self._roster.ended.drop(ended, out)
        self._roster.ended.forget(ended, FORGOTTEN_AT_ONCE, out)
        return out


def few(runs: list[Members], most: int) -> list[Members]:
    """The first of the runs: as many as may end before other jobs have their turns."""
    rounds, found = 0, list[Members]()
    for members in runs[:most]:
        if rounds >= ROUNDS_AT_ONCE:
            break
        run = members.run
        rounds += run.records.of_rounds // ROUND + run.held.parts // PARTS_OF_ROUND
        rounds += run.stream_count // STREAMS_OF_ROUND
        found.append(members)
    return found


class Refusals:
    """Ends a session for a mistake of its peer, or the session's run if the protocol says so."""

    def __init__(self, roster: Roster, endings: Endings) -> None:
        self._roster = roster
        self._endings = endings

    def disconnected(self, session: int, reason: str, now: float) -> list[Output]:
        """The connection of a session has ended. If this raises, it can be called again."""
        peer = self._roster.sessions.get(session)
        if peer is None:
            return []
        if peer.forming is not None:
            self._unjoin(peer, peer.forming)
        if peer.state == SessionState.READY:
            self._note_disconnect(peer, now, reason)
        ended = self._roster.ended.get(peer.run_number)
        members = (
            self._roster.runs_by_number.get(peer.run_number) if ended is None else ended.members
        )
        if members is not None:
            members.sessions.discard(session)
        if ended is not None:
            self._roster.ended.maybe_close_room(ended)
        del self._roster.sessions[session]
        if peer.counted_job:
            counts = self._roster.askers if peer.asks else self._roster.connections
            counts.leave(peer.counted_job)
        text = f"{peer}: the connection has ended: {reason}"
        return [Log(peer.run_number, logging.DEBUG, text, peer.about())]

    def close(self, peer: Session, reason: str, now: float) -> list[Output]:
        if peer.state == SessionState.READY:
            self._note_disconnect(peer, now, reason)
        if peer.forming is not None:  # else the run could form with this session
            self._unjoin(peer, peer.forming)
        peer.move(SessionState.CLOSED)
        return [Close(peer.run_number, peer.id, reason)]

    def refuse(self, peer: Session, error: ReductionError, now: float) -> list[Output]:
        """Send an ERROR to a session and end it."""
        if peer.state == SessionState.CLOSED:
            return []
        reason = "excluded" if isinstance(error, ExcludedError) else ""
        message = messages.Error(int(error.code), str(error)[:4_000], reason=reason)
        self._endings.errors[error.code] += 1
        about = {**peer.about(), "code": error.code.name.lower()}
        log = Log(peer.run_number, logging.WARNING, f"{peer}: {error}", about)
        return [
            log,
            self._roster.send(peer.run_number, message, (peer.id,)),
            *self.close(peer, str(error), now),
        ]

    def refuse_all(self, forming: Forming, error: ReductionError, now: float) -> list[Output]:
        """The run cannot form: tell all sessions that wait for it why."""
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
        """Refuse all sessions of a forming run after an internal error or without memory."""
        text = fault_text(error)
        line = Log(0, logging.ERROR, text, {"job": forming.job}, error)
        return [line, *self.refuse_all(forming, InternalError(text), now)]

    def refuse_frame(self, peer: Session, error: ReductionError, now: float) -> list[Output]:
        """Refuse a frame: end its session, or the run if the error concerns all ranks."""
        run = peer.run
        if peer.state == SessionState.CLOSED or run is None:
            return self.refuse(peer, error, now)
        departed = run.seats.departed
        if isinstance(error, PeerLostError) and departed is not None and not run.terms.elastic:
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
            return [] if peer is None else self.refuse_frame(peer, error, now)
        if peer is None:  # only the connection has ended
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
        """An output has failed: end its run or, if there is none, the sessions of the output."""
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

    def _note_disconnect(self, peer: Session, now: float, reason: str) -> None:
        """A member is disconnected. The other ranks are told unless the member is back in
        time.
        """
        if peer.run is None:
            return
        members = self._roster.runs.get((peer.run.name, peer.run.run_id))
        if members is not None:
            members.disconnect(peer, now, reason)
