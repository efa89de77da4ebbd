"""One lane: sessions, the runs that form and live on it, and the way from an event to a job.

Sans-I/O: `handle(event, now)` returns what the shell has to do. No socket, clock, thread, array or
random number is in here or below.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from reducer.core import events
from reducer.core.credits import Budget
from reducer.core.events import Close, Event, Free, Log, Output, Send
from reducer.core.forming import Forming
from reducer.core.frames import control_frame, payload_frame
from reducer.core.job import Job
from reducer.core.quotas import (
    Connections,
    allowed_connections,
    too_many_connections,
    too_many_runs,
)
from reducer.core.ranking import most
from reducer.core.report import forming_report, run_report
from reducer.core.route import Route
from reducer.core.run import Run
from reducer.core.session import Session, SessionState
from reducer.errors import (
    PEER_ERRORS,
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

PENDING_RANKS: Final = 64
# A rank may miss what became stable until its connection is known to be dead (`silence`); and it
# announces an idle key again after 1 s. The lane keeps the key longer than both.
KEY_IDLE_SECONDS: Final = 12.0
# What one rank says of another holds for all: they raise the same.
_VERDICTS: Final = frozenset((int(ErrorCode.PEER_LOST), int(ErrorCode.INTEGRITY)))
# With GOAWAY the workers leave within milliseconds, if they have anywhere to go.
DRAIN_PATIENCE: Final = 1.0


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
    deserted_after: float = 5.0
    job_budget: int = 0  # of one job; 0: as much as there is
    max_jobs: int = 1_000
    max_runs: int = 1_000  # of one job
    max_keys: int = 200_000


class Lane:
    """All jobs of one lane process."""

    def __init__(self, settings: LaneSettings) -> None:
        self._settings = settings
        self._budget = Budget(settings.budget, settings.credit, settings.job_budget)
        self._connections = Connections()
        self._sessions: dict[int, Session] = {}
        self._forming: dict[tuple[str, str], Forming] = {}
        self._runs: dict[tuple[str, str], Run] = {}
        self._draining = ""
        self._drains_since = 0.0
        self._instances = 0
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
            MessageKind.ROUTE: self._route,
            MessageKind.SUSPECT: self._suspect,
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

    def drained(self, now: float) -> bool:
        """Nothing is to be waited for: the runs have gone elsewhere, or cannot and are idle."""
        jobs = [run.job for run in self._runs.values()]
        if not any(job.streams for job in jobs):
            return True
        return now - self._drains_since >= DRAIN_PATIENCE and not any(job.open for job in jobs)

    def snapshot(self) -> dict[str, Any]:
        """Numbers for metrics, of this lane and of each of its jobs (runs of one name added up)."""
        jobs: dict[str, dict[str, Any]] = {}
        for (name, _), run in self._runs.items():
            numbers = dataclasses.asdict(run.job.stats())
            numbers["lateness"] = most(run.job.lateness.waited)
            numbers["nonfinite"] = most(run.job.nonfinite)
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

    def report(self, now: float) -> dict[str, Any]:
        """Who is here and who is waited for, by run."""
        return {
            "runs": [run_report(run, now) for run in self._runs.values()],
            "forming": [forming_report(forming) for forming in self._forming.values()],
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
        if peer.permit is not None:
            peer.permit.check(hello.job, hello.rank)
        if not peer.named:
            crowd = self._name(peer, hello.job)
            if crowd is not None:
                return crowd
        run = self._runs.get((hello.job, hello.run_id))
        if run is not None and self._is_dead(run, hello):
            # From the top: what the end gives back must not be lost if the hello is refused.
            return [*self._end(run), *self._control(event, now)]
        if run is not None:
            return self._rejoin(run, peer, hello, now)
        if self._draining:
            raise UnavailableError(f"this reducer is draining ({self._draining})")
        id_ = (hello.job, hello.run_id if hello.rejoin else "")
        forming = self._forming.get(id_)
        if forming is None:
            if len(self._forming) + len(self._runs) >= self._settings.max_jobs:
                raise QuotaError(f"this reducer serves {self._settings.max_jobs} jobs already")
            if self._run_count(hello.job, now) >= self._settings.max_runs:
                raise too_many_runs(hello.job, self._settings.max_runs)
            forming = Forming(hello)
        replaced = forming.admit(hello, peer.id)
        self._forming[id_] = forming
        out: list[Output] = []
        if replaced is not None:
            out += self._close(self._sessions[replaced], "replaced by a new connection", now)
        peer.state, peer.rank = SessionState.JOINING, hello.rank
        peer.forming = forming
        if forming.complete:
            return out + self._complete(forming, now)
        return [*out, self._pending(forming, (peer.id,))]

    def _name(self, peer: Session, job: str) -> list[Output] | None:
        """Count the connection for its job; raises QuotaError for one too many.

        Of those that are refused so, as many again may wait to read why; more end at once.
        """
        peer.named = job
        count = self._connections.enter(job)
        workers = sum(run.job.world_size for (name, _), run in self._runs.items() if name == job)
        forming = [f for f in self._forming.values() if f.job == job]
        workers += sum(len(f.sessions) for f in forming) + 1
        allowed = allowed_connections(workers)
        if count > 2 * allowed:
            peer.state = SessionState.CLOSED
            return [Close(peer.id, f"job {job!r} has {count:,} connections", at_once=True)]
        if count > allowed:
            raise too_many_connections(job, workers, count)
        return None

    def _run_count(self, job: str, now: float) -> int:
        """Runs of the job that form or that somebody is in."""
        forming = sum(f.job == job for f in self._forming.values())
        runs = (run for (name, _), run in self._runs.items() if name == job)
        return forming + sum(not run.deserted(now) for run in runs)

    def _is_dead(self, run: Run, hello: messages.Hello) -> bool:
        """All have gone, and a new process asks for the run: it was restarted at once."""
        gone = not hello.rejoin and not run.job.seats.present
        return gone and hello.incarnation not in run.incarnations.values()

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
        del self._forming[forming.id]
        settings = self._settings
        out = self._end_deserted(forming.job, now)
        try:
            if (forming.job, forming.run_id) in self._runs:
                raise JoinError(f"run {forming.run_id!r} of job {forming.job!r} is in use")
            window = self._budget.open(forming.job, forming.world_size, forming.table)
        except PEER_ERRORS as error:
            for session in list(forming.sessions.values()):
                out += self._refuse(self._sessions[session], error, now)
            return out
        # Until a ROUTE says more, the lanes of the other slots do not matter.
        route = Route.first((settings.lanes,) * forming.reducers)
        job = Job(
            forming.job, forming.run_id, forming.slot, settings.lane, route, forming.world_size,
            forming.table, window, settings.max_keys, settings.crc32c, settings.acc_itemsize,
        )  # fmt: skip
        self._instances += 1
        run = Run(job, forming.incarnations, self._instances, forming.digest_every, now)
        self._runs[job.name, job.run_id] = run
        for rank, session in forming.sessions.items():
            run.seat(self._sessions[session], rank)
        text = f"job {job.name!r} run {job.run_id!r}: {job.world_size} workers joined"
        out.append(self._welcome(run, tuple(forming.sessions.values())))
        return [*out, Log(logging.INFO, text)]

    def _end_deserted(self, job: str, now: float) -> list[Output]:
        """Earlier runs of the job that nobody is in make room for the next."""
        runs = [run for (name, _), run in self._runs.items() if name == job]
        return [out for run in runs if run.deserted(now) for out in self._end(run)]

    def _welcome(self, run: Run, sessions: tuple[int, ...]) -> Send:
        settings, job, route = self._settings, run.job, run.job.route
        moved = route.number > 0
        welcome = messages.Welcome(
            job.run_id, job.streams.slot, len(route.live), settings.lanes, settings.lane,
            settings.incarnation, job.world_size, job.seats.epoch, route.number, job.table,
            job.ledger.window.credit, job.ledger.window.grant, int(settings.heartbeat * 1000),
            instance=run.instance,
            since=route.since if moved else (),
            live=route.live if moved else (),
            lanes_by_slot=route.lanes if moved else (),
            digest_every=run.digest_every,
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
        old = job.seats.sessions[hello.rank]
        if old is not None:
            out += self._close(self._sessions[old], "replaced by a new connection", now)
        run.seat(peer, hello.rank)
        out.append(self._welcome(run, (peer.id,)))
        absent = run.absent(now - self._settings.lost_grace)
        if absent.absent or absent.left:
            out.append(self._send(absent, (peer.id,)))
        if self._draining:
            out.append(self._send(messages.Goaway(self._draining), (peer.id,)))
        return out + job.rejoined(peer.rank, now)

    def _route(self, peer: Session, event: events.ControlReceived, now: float) -> list[Output]:
        """A route that is new here moves streams, and goes on to all other ranks."""
        message = messages.decode(messages.Route, event.payload or b"")
        job = self._job_of(peer)
        route = Route(message.route, message.since, message.live, message.lanes_by_slot)
        if not len(route.since) == len(route.live) == len(route.lanes) == len(job.route.live):
            raise ProtocolError(
                f"{peer} sent a route of {len(route.live)} slots, the job has {len(job.route.live)}"
            )
        if not any(route.live):
            raise ProtocolError(f"{peer} sent a route without a live slot")
        if route.number <= job.route.number:
            return []
        text = f"job {job.name!r}: route {route.number}, live slots {_slots(route)}"
        moved = job.move(route)
        return [*moved, job.seats.to_others(peer.rank, message), Log(logging.INFO, text)]

    def _suspect(self, peer: Session, event: events.ControlReceived, now: float) -> list[Output]:
        """To rank 0, which decides."""
        message = messages.decode(messages.Suspect, event.payload or b"")
        if message.rank != peer.rank:
            raise ProtocolError(f"{peer} sent a suspicion of rank {message.rank}")
        return [self._job_of(peer).seats.to_rank(0, message)]

    def _key(self, peer: Session, event: events.ControlReceived, now: float) -> list[Output]:
        message = messages.decode(messages.Key, event.payload or b"")
        self._job_of(peer).announce(peer.rank, event.header, message.name, now)
        return []

    def _stats(self, peer: Session, event: events.ControlReceived, now: float) -> list[Output]:
        job = self._job_of(peer)
        return [self._send(job.stats(job.waiting(now)), (peer.id,))]

    def _heartbeat(self, peer: Session, event: events.ControlReceived, now: float) -> list[Output]:
        return self._job_of(peer).heartbeat(peer.rank, event.header, event.payload, now)

    def _describe(self, peer: Session, event: events.ControlReceived, now: float) -> list[Output]:
        return self._job_of(peer).describe(peer.rank, event.header, now)

    def _abandon(self, peer: Session, event: events.ControlReceived, now: float) -> list[Output]:
        cause = messages.decode(messages.Abandon, event.payload or b"")
        return self._job_of(peer).abandon(peer.rank, event.header, cause, now)

    def _error(self, peer: Session, event: events.ControlReceived, now: float) -> list[Output]:
        """A member gives up: the run is over for all, for its reason or because of it."""
        error = messages.decode(messages.Error, event.payload or b"")
        if peer.state != SessionState.READY:
            return self._close(peer, error.message, now)
        job = self._job_of(peer)
        if error.code in _VERDICTS and error.rank >= 0:
            code = ErrorCode(error.code)
            return self._fail(job, code, error.message, error.rank, error.reason)
        text = f"rank {peer.rank} of job {job.name!r} has failed: {error.message}"
        return self._fail(job, ErrorCode.PEER_LOST, text, peer.rank, "failed")

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
        self._sessions[event.session] = Session(event.session, now, event.permit)
        return []

    def _lost(self, event: events.Lost, now: float) -> list[Output]:
        peer = self._sessions.pop(event.session, None)
        if peer is None:
            return []
        if peer.named:
            self._connections.leave(peer.named)
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
        if not forming.sessions and self._forming.get(forming.id) is forming:
            del self._forming[forming.id]

    def _note_loss(self, peer: Session, now: float, reason: str) -> None:
        """A member's connection is gone; the others hear of it unless it is back in time."""
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
        out: list[Output] = [job.seats.to_all(error)] if error is not None else []
        for peer in self._sessions.values():
            if peer.job is job and peer.state == SessionState.READY:
                peer.state = SessionState.CLOSED
                out.append(Close(peer.id, error.message if error else "the run is over"))
        self._budget.close(job.name, job.ledger.window, job.world_size)
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
                self._forget_idle(run, now)
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

    def _forget_idle(self, run: Run, now: float) -> None:
        if run.complete:  # else who is back must be told
            for stream in run.job.streams:
                stream.keys.forget_idle(now - KEY_IDLE_SECONDS)

    def _check_run(self, run: Run, now: float) -> list[Output]:
        job = run.job
        if run.deserted(now - self._settings.deserted_after):
            text = f"job {job.name!r} run {job.run_id!r}: nobody has come back"
            return [*self._end(run), Log(logging.WARNING, text)]
        absence = run.absence(now - self._settings.lost_grace)
        out: list[Output] = [] if absence is None else [job.seats.to_all(absence)]
        return out + self._maybe_stall(run, now)

    def _maybe_stall(self, run: Run, now: float) -> list[Output]:
        if now < run.next_stall:
            return []
        run.next_stall = now + self._settings.stall_after / 2
        return run.job.stall_report(now, self._settings.stall_after)

    def _check_sessions(self, now: float) -> list[Output]:
        out: list[Output] = []
        settings = self._settings
        for peer in list(self._sessions.values()):
            silent = now - peer.heard_at
            if peer.state == SessionState.NEW and now - peer.opened_at > settings.hello_deadline:
                text = f"no HELLO within {settings.hello_deadline:g} s"
                out += self._refuse(peer, ProtocolError(text), now)
            elif peer.state == SessionState.READY and silent > settings.silence:
                # No ERROR: it may only be this lane that does not hear it.
                text = f"nothing was heard of it for {silent:.1f} s"
                out += self._close(peer, text, now - settings.lost_grace)
            elif peer.state == SessionState.LEFT and silent > settings.silence:
                out += self._close(peer, "has left and does not close", now)
        return out

    def _drain(self, event: events.Drain, now: float) -> list[Output]:
        self._draining, self._drains_since = event.reason, now
        goaway = messages.Goaway(event.reason)
        out: list[Output] = [run.job.seats.to_all(goaway) for run in self._runs.values()]
        error = UnavailableError(f"this reducer is draining ({event.reason})")
        for peer in list(self._sessions.values()):
            if peer.forming is not None:  # who has said nothing yet may be back in a run
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


def _slots(route: Route) -> str:
    return ", ".join(str(slot) for slot, live in enumerate(route.live) if live)
