"""One lane: sessions, the runs that form and live on it, and the way from an event to a job.

Sans-I/O: `handle(event, now)` returns what the shell has to do. No socket, clock, thread, array or
random number is in here or below.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from reducer.core import events
from reducer.core.credits import Budget
from reducer.core.events import Close, Event, Free, Log, Output, Send
from reducer.core.forming import Forming
from reducer.core.frames import control_frame, payload_frame
from reducer.core.job import Job
from reducer.core.plan import Place
from reducer.core.run import Run
from reducer.core.session import Session, SessionState
from reducer.errors import (
    PEER_ERRORS,
    AuthenticationError,
    IntegrityError,
    JoinError,
    PeerLostError,
    ProtocolError,
    QuotaError,
    ReductionError,
    UnavailableError,
)
from reducer.wire import messages
from reducer.wire.codes import ErrorCode, MessageKind
from reducer.wire.header import Crc, Header

PENDING_RANKS = 64
# A worker forgets an idle key after 1 s and announces it again: the lane keeps it longer.
KEY_IDLE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class LaneSettings:
    """`budget` and `credit` in bytes, times in seconds; reasons: PROTOCOL.md and design.md."""

    lane: int
    lanes: int
    incarnation: bytes
    budget: int
    crc32c: Crc
    acc_itemsize: Callable[[int, int], int]
    credit: int = 4 << 20
    heartbeat: float = 0.25
    stall_after: float = 10.0
    hello_deadline: float = 2.0
    silence: float = 5.0
    lost_grace: float = 0.5
    max_jobs: int = 1_000
    max_keys: int = 200_000


class Lane:
    """All jobs of one lane process."""

    def __init__(self, settings: LaneSettings) -> None:
        self._settings = settings
        self._budget = Budget(settings.budget, settings.credit)
        self._sessions: dict[int, Session] = {}
        self._forming: dict[str, Forming] = {}
        self._runs: dict[tuple[str, str], Run] = {}
        self._draining = ""
        self._next_beat = 0.0
        self._next_sweep = 0.0
        self._handlers: dict[type[Any], Callable[[Any, float], list[Output]]] = {
            events.Contributed: self._contributed,
            events.Reduced: self._reduced,
            events.ControlReceived: self._control,
            events.Opened: self._opened,
            events.Lost: self._lost,
            events.Broken: self._broken,
            events.Tick: self._tick,
            events.Drain: self._drain,
            events.Shutdown: self._shutdown,
        }
        self._controls: dict[int, Callable[[Session, Any, float], list[Output]]] = {
            MessageKind.HELLO: self._hello,
            MessageKind.BYE: self._bye,
            MessageKind.KEY: self._key,
            MessageKind.STATS: self._stats,
            MessageKind.ERROR: self._error,
            MessageKind.ABANDON: self._abandon,
            MessageKind.HEARTBEAT: self._heartbeat,
            MessageKind.DESCRIBE: self._describe,
        }

    # --- the surface ----------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Output]:
        """What to do about `event`; never raises for what a peer has sent."""
        return self._handlers[type(event)](event, now)

    def admit(self, session: int, header: Header, now: float) -> None:
        """Whether memory may be taken for a contribution; raises the ProtocolError family."""
        peer = self._sessions[session]
        peer.heard_at = now
        self._ready_job(peer).admit(peer.rank, header)

    def heard(self, session: int, now: float) -> None:
        """Bytes have come, whole frames or not: the peer is not silent."""
        peer = self._sessions.get(session)
        if peer is not None:
            peer.heard_at = now

    @property
    def idle(self) -> bool:
        """No round is open: a drain has nothing to wait for."""
        return not any(run.job.open for run in self._runs.values())

    def snapshot(self) -> dict[str, Any]:
        """Numbers for metrics, of this lane and of each of its jobs (runs of one name added up)."""
        jobs: dict[str, dict[str, Any]] = {}
        for (name, _), run in self._runs.items():
            numbers = dataclasses.asdict(run.job.stats())
            before = jobs.get(name, {})
            jobs[name] = {f: before[f] + n if before else n for f, n in numbers.items()}
            jobs[name]["world_size"] = run.job.world_size
        return {
            "lane": self._settings.lane,
            "sessions": len(self._sessions),
            "forming": len(self._forming),
            "reserved_bytes": self._budget.reserved,
            "budget_bytes": self._budget.total,
            "jobs": jobs,
        }

    # --- data -----------------------------------------------------------------------------------

    def _contributed(self, event: events.Contributed, now: float) -> list[Output]:
        peer = self._sessions[event.session]
        peer.heard_at = now
        out: list[Output] = []
        try:
            job = self._ready_job(peer)
            if event.buffer is None:  # nobody has asked for memory, so nobody has checked it
                job.admit(peer.rank, event.header)
            job.contributed(peer.rank, event, now, out)
        except PEER_ERRORS as error:
            if event.buffer is not None:
                out.append(Free(event.buffer))
            out += self._failed(peer, error, now)
        return out

    def _failed(self, peer: Session, error: ReductionError, now: float) -> list[Output]:
        """A contribution could not be taken: end the session, or the job where that is the law."""
        job = peer.job
        if peer.state == SessionState.CLOSED or job is None:
            return []
        if isinstance(error, PeerLostError) and job.departed is not None:
            return self._fail(job, ErrorCode.PEER_LOST, str(error), job.departed, "left")
        if isinstance(error, IntegrityError):
            return self._fail(job, ErrorCode.INTEGRITY, str(error), peer.rank, "integrity")
        return self._refuse(peer, error, now)

    def _reduced(self, event: events.Reduced, now: float) -> list[Output]:
        run = self._runs.get(event.chunk.round.job)
        return [] if run is None else run.job.reduced(event)

    def _ready_job(self, peer: Session) -> Job:
        if peer.job is None or peer.state != SessionState.READY:
            raise ProtocolError(f"{peer} sent a contribution while {peer.state.name}")
        return peer.job

    # --- control --------------------------------------------------------------------------------

    def _control(self, event: events.ControlReceived, now: float) -> list[Output]:
        peer = self._sessions[event.session]
        if peer.state >= SessionState.LEFT:
            return []
        peer.heard_at = now
        handler = self._controls.get(event.header.kind)
        try:
            if handler is None:
                kind = MessageKind(event.header.kind).name
                raise ProtocolError(f"{peer} sent {kind}, which only lanes send")
            if event.header.kind != MessageKind.HELLO and peer.job is None:
                if event.header.kind in (MessageKind.ERROR, MessageKind.BYE):
                    return self._close(peer, "left before it joined", now)
                if event.header.kind == MessageKind.HEARTBEAT:
                    return []
                raise ProtocolError(f"{peer} sent frames before the welcome")
            return handler(peer, event, now)
        except PEER_ERRORS as error:
            return self._refuse(peer, error, now)

    def _hello(self, peer: Session, event: events.ControlReceived, now: float) -> list[Output]:
        hello = messages.decode(messages.Hello, event.payload or b"")
        if peer.state != SessionState.NEW:
            raise ProtocolError(f"{peer} said HELLO twice")
        if peer.proven_job is not None and hello.job != peer.proven_job:
            raise AuthenticationError(
                f"this worker has proven the key of job {peer.proven_job!r} and says HELLO for job "
                f"{hello.job!r}"
            )
        if self._draining:
            raise UnavailableError(f"this reducer is draining ({self._draining})")
        run = self._runs.get((hello.job, hello.run_id))
        if run is not None and self._is_dead(run, hello):
            # From the top: what the end gives back must not be lost if the hello is refused.
            return [*self._end(run), *self._control(event, now)]
        if run is not None:
            return self._rejoin(run, peer, hello, now)
        forming = self._forming.get(hello.job)
        if forming is None:
            if len(self._forming) + len(self._runs) >= self._settings.max_jobs:
                raise QuotaError(f"this reducer serves {self._settings.max_jobs} jobs already")
            forming = Forming(hello)
        forming.admit(hello, peer.id)
        self._forming[hello.job] = forming
        peer.state, peer.rank = SessionState.JOINING, hello.rank
        peer.forming = forming
        if forming.complete:
            return self._complete(forming, now)
        return [self._pending(forming, (peer.id,))]

    def _is_dead(self, run: Run, hello: messages.Hello) -> bool:
        """All have gone, and a new process asks for the run: it was restarted at once."""
        here = any(session is not None for session in run.job.sessions)
        return not here and hello.incarnation not in run.incarnations.values()

    def _pending(self, forming: Forming, sessions: tuple[int, ...]) -> Send:
        absent = forming.absent()
        settings = self._settings
        pending = messages.Pending(
            settings.lanes, settings.lane, settings.incarnation, tuple(absent[:PENDING_RANKS]),
            len(absent),
        )  # fmt: skip
        return self._send(pending, sessions)

    def _complete(self, forming: Forming, now: float) -> list[Output]:
        """All ranks are here: reserve the room, and welcome them."""
        del self._forming[forming.job]
        settings = self._settings
        try:
            if (forming.job, forming.run_id) in self._runs:
                raise JoinError(f"run {forming.run_id!r} of job {forming.job!r} is in use")
            window = self._budget.open(forming.job, forming.world_size, forming.table)
        except PEER_ERRORS as error:
            out: list[Output] = []
            for session in list(forming.sessions.values()):
                out += self._refuse(self._sessions[session], error, now)
            return out
        place = Place(forming.slot, forming.reducers, settings.lane, settings.lanes)
        job = Job(
            forming.job, forming.run_id, place, forming.world_size, forming.table, window,
            settings.max_keys, settings.crc32c, settings.acc_itemsize,
        )  # fmt: skip
        run = Run(job, forming.incarnations, now)
        self._runs[job.name, job.run_id] = run
        for rank, session in forming.sessions.items():
            run.seat(self._sessions[session], rank)
        text = f"job {job.name!r} run {job.run_id!r}: {job.world_size} workers joined"
        return [self._welcome(job, tuple(forming.sessions.values())), Log(logging.INFO, text)]

    def _welcome(self, job: Job, sessions: tuple[int, ...]) -> Send:
        settings = self._settings
        welcome = messages.Welcome(
            job.run_id, job.place.slot, job.place.reducers, settings.lanes, settings.lane,
            settings.incarnation, job.world_size, job.epoch, job.route, job.table,
            job.ledger.window.credit, job.ledger.window.grant, int(settings.heartbeat * 1000),
        )  # fmt: skip
        return self._send(welcome, sessions)

    def _rejoin(self, run: Run, peer: Session, hello: messages.Hello, now: float) -> list[Output]:
        """A complete run admits only its own members, back on a new connection."""
        job = run.job
        if run.incarnations.get(hello.rank) != hello.incarnation or hello.rank in run.left:
            raise JoinError(
                f"run {job.run_id!r} of job {job.name!r} is complete: rank {hello.rank} cannot "
                "join it from a new process; start the job with a new run id"
            )
        out: list[Output] = []
        old = job.sessions[hello.rank]
        if old is not None:
            out += self._close(self._sessions[old], "replaced by a new connection", now)
        run.seat(peer, hello.rank)
        return [*out, self._welcome(job, (peer.id,))]

    def _key(self, peer: Session, event: events.ControlReceived, now: float) -> list[Output]:
        message = messages.decode(messages.Key, event.payload or b"")
        self._job_of(peer).keys.announce(event.header.key, message.name, now)
        return []

    def _stats(self, peer: Session, event: events.ControlReceived, now: float) -> list[Output]:
        return [self._send(self._job_of(peer).stats(), (peer.id,))]

    def _heartbeat(self, peer: Session, event: events.ControlReceived, now: float) -> list[Output]:
        return self._job_of(peer).heartbeat(peer.rank, event.payload, now)

    def _describe(self, peer: Session, event: events.ControlReceived, now: float) -> list[Output]:
        return self._job_of(peer).describe(peer.rank, event.header, now)

    def _abandon(self, peer: Session, event: events.ControlReceived, now: float) -> list[Output]:
        return self._job_of(peer).abandon(peer.rank, event.header, now)

    def _error(self, peer: Session, event: events.ControlReceived, now: float) -> list[Output]:
        message = messages.decode(messages.Error, event.payload or b"")
        self._note_loss(peer, now, f"failed: {message.message}")
        return self._close(peer, message.message, now)

    def _bye(self, peer: Session, event: events.ControlReceived, now: float) -> list[Output]:
        """The rank leaves cleanly; whatever still needs it is lost."""
        job = self._job_of(peer)
        run = self._runs[job.name, job.run_id]
        run.leave(peer)
        if len(run.left) == job.world_size:
            return self._end(run)
        waiting = job.open.that_wants(peer.rank)
        if waiting is None:
            return []
        text = f"rank {peer.rank} left job {job.name!r} before round {waiting.number} was complete"
        return self._fail(job, ErrorCode.PEER_LOST, text, peer.rank, "left")

    def _job_of(self, peer: Session) -> Job:
        if peer.job is None:
            raise ProtocolError(f"{peer} is not in a run")
        return peer.job

    # --- the end of sessions and runs -----------------------------------------------------------

    def _opened(self, event: events.Opened, now: float) -> list[Output]:
        self._sessions[event.session] = Session(event.session, now, event.proven_job)
        return []

    def _lost(self, event: events.Lost, now: float) -> list[Output]:
        peer = self._sessions.pop(event.session, None)
        if peer is None:
            return []
        if peer.forming is not None:
            self._unjoin(peer, peer.forming)
        if peer.state == SessionState.READY:
            self._note_loss(peer, now, event.reason)
        return []

    def _unjoin(self, peer: Session, forming: Forming) -> None:
        peer.forming = None
        if forming.sessions.get(peer.rank) != peer.id:
            return
        forming.leave(peer.rank)
        if not forming.sessions and self._forming.get(forming.job) is forming:
            del self._forming[forming.job]

    def _note_loss(self, peer: Session, now: float, reason: str) -> None:
        """A member's connection is gone; the run fails unless it is back in `lost_grace`."""
        run = self._runs.get((peer.job.name, peer.job.run_id)) if peer.job is not None else None
        if run is not None:
            run.lose(peer, now, reason)

    def _broken(self, event: events.Broken, now: float) -> list[Output]:
        peer = self._sessions.get(event.session)
        return [] if peer is None else self._refuse(peer, event.error, now)

    def _refuse(self, peer: Session, error: ReductionError, now: float) -> list[Output]:
        """ERROR to one session, and the end of it."""
        if peer.state == SessionState.CLOSED:
            return []
        message = messages.Error(int(error.code), str(error)[:4_000])
        log = Log(logging.WARNING, f"{peer}: {error}")
        if peer.forming is not None:
            self._unjoin(peer, peer.forming)
        return [log, self._send(message, (peer.id,)), *self._close(peer, str(error), now)]

    def _close(self, peer: Session, reason: str, now: float) -> list[Output]:
        if peer.state == SessionState.READY:
            self._note_loss(peer, now, reason)
        peer.state = SessionState.CLOSED
        return [Close(peer.id, reason)]

    def _fail(self, job: Job, code: ErrorCode, text: str, rank: int, reason: str) -> list[Output]:
        """The run is over for every rank, for one reason that all are told."""
        run = self._runs[job.name, job.run_id]
        error = messages.Error(int(code), text[:4_000], rank, reason[:1_000])
        return [Log(logging.ERROR, f"job {job.name!r}: {text}"), *self._end(run, error)]

    def _end(self, run: Run, error: messages.Error | None = None) -> list[Output]:
        job = run.job
        del self._runs[job.name, job.run_id]
        out: list[Output] = [job.to_all(error)] if error is not None else []
        for peer in self._sessions.values():
            if peer.job is job and peer.state == SessionState.READY:
                peer.state = SessionState.CLOSED
                out.append(Close(peer.id, error.message if error else "the run is over"))
        self._budget.close(job.ledger.window, job.world_size)
        out += job.drop_all()
        if error is None:
            out.append(Log(logging.INFO, f"job {job.name!r} run {job.run_id!r}: all have left"))
        return out

    # --- time -----------------------------------------------------------------------------------

    def _tick(self, event: events.Tick, now: float) -> list[Output]:
        out: list[Output] = []
        if now >= self._next_beat:
            self._next_beat = now + self._settings.heartbeat
            out += self._beat(now)
        if now >= self._next_sweep:
            self._next_sweep = now + 1.0
            for run in self._runs.values():
                run.job.keys.forget_idle(now - KEY_IDLE_SECONDS)
        for run in list(self._runs.values()):
            out += self._check_run(run, now)
        out += self._check_sessions(now)
        return out

    def _beat(self, now: float) -> list[Output]:
        out: list[Output] = []
        for run in self._runs.values():
            out += run.job.beat()
        heartbeat = payload_frame(MessageKind.HEARTBEAT, b"", self._settings.crc32c)
        for forming in self._forming.values():
            sessions = tuple(forming.sessions.values())
            if forming.changed:
                forming.changed = False
                out.append(self._pending(forming, sessions))
            else:
                out.append(Send(sessions, heartbeat, None, 0))
        return out

    def _check_run(self, run: Run, now: float) -> list[Output]:
        job = run.job
        gone = run.expired(now - self._settings.lost_grace)
        if gone is not None:
            rank, reason = gone
            text = f"rank {rank} of job {job.name!r} is lost: {reason}"
            return self._fail(job, ErrorCode.PEER_LOST, text, rank, reason)
        if now < run.next_stall:
            return []
        run.next_stall = now + self._settings.stall_after / 2
        return job.stall_report(now, self._settings.stall_after)

    def _check_sessions(self, now: float) -> list[Output]:
        out: list[Output] = []
        settings = self._settings
        for peer in list(self._sessions.values()):
            silent = now - peer.heard_at
            if peer.state == SessionState.NEW and now - peer.opened_at > settings.hello_deadline:
                text = f"no HELLO within {settings.hello_deadline:g} s"
                out += self._refuse(peer, ProtocolError(text), now)
            elif peer.state == SessionState.READY and silent > settings.silence:
                text = f"nothing was heard of {peer} for {silent:.1f} s"
                out += self._refuse(peer, PeerLostError(text), now - settings.lost_grace)
            elif peer.state == SessionState.LEFT and silent > settings.silence:
                out += self._close(peer, "has left and does not close", now)
        return out

    def _drain(self, event: events.Drain, now: float) -> list[Output]:
        self._draining = event.reason
        out: list[Output] = []
        for run in self._runs.values():
            run.job.draining = event.reason
            out.append(run.job.to_all(messages.Goaway(event.reason, run.job.epoch)))
        error = UnavailableError(f"this reducer is draining ({event.reason})")
        for peer in list(self._sessions.values()):
            if peer.job is None:
                out += self._refuse(peer, error, now)
        return out

    def _shutdown(self, event: events.Shutdown, now: float) -> list[Output]:
        self._draining = event.reason
        out: list[Output] = []
        text = f"this reducer has shut down ({event.reason})"
        for run in list(self._runs.values()):
            out += self._end(run, messages.Error(int(ErrorCode.UNAVAILABLE), text))
        for peer in list(self._sessions.values()):
            out += self._refuse(peer, UnavailableError(text), now)
        return out

    # --- frames ---------------------------------------------------------------------------------

    def _send(self, message: messages.Message, sessions: tuple[int, ...]) -> Send:
        return Send(sessions, control_frame(message, self._settings.crc32c), None, 0)
