"""One lane: the way from an event to the session or the run that it is for.

Sans-I/O: `handle(event, now)` returns what the shell has to do. No socket, clock, thread, array or
random number is in here or below.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

from reducer.core.limits.budget import LEAST_FRAMES
from reducer.core.measures.ranking import MAX_RANKS, MAX_RANKS_OF_JOB
from reducer.core.members.forming import Forming
from reducer.core.members.joining import Joining
from reducer.core.members.members import Members
from reducer.core.members.roster import Roster, fault_text, few, in_turns
from reducer.core.members.session import Session, SessionState
from reducer.core.report import (
    MAX_ROUNDS,
    MAX_ROUNDS_IN_ALL,
    forming_report,
    job_numbers,
    ranks_in,
    run_report,
)
from reducer.core.rounds.route import Route
from reducer.core.rounds.untold import entries_in
from reducer.core.runs.run import Run
from reducer.core.surface import events
from reducer.core.surface.buffer import Buffer
from reducer.core.surface.events import NOTHING, Admission, Close, Event, Free, Log, Output, Send
from reducer.core.surface.frames import payload_frame
from reducer.core.surface.settings import LaneSettings
from reducer.wire import messages
from reducer.wire.codes import MAX_EARLY_BYTES, MAX_HEARTBEAT_ENTRIES, ErrorCode, MessageKind
from reducer.wire.errors import (
    PEER_ERRORS,
    IntegrityError,
    InternalError,
    PeerLostError,
    ProtocolError,
    RecordsError,
    ReductionError,
    UnavailableError,
    UnstableError,
)
from reducer.wire.header import Header

# A rank may miss what became stable until its connection is known to be dead (Members.silence);
# and it announces an idle key again after 1 s. The lane keeps the key for so much longer than that
# time.
KEY_IDLE_SECONDS: Final = 7.0
# What one rank says of another holds for all: they raise the same.
_VERDICTS: Final = frozenset((int(ErrorCode.PEER_LOST), int(ErrorCode.INTEGRITY)))
# So long after the one before, a tick is late: this process stood still. The engine has the same.
LATE_TICK: Final = 0.5
# With GOAWAY the workers leave within milliseconds, if they have anywhere to go.
DRAIN_PATIENCE: Final = 1.0
# What a tick tells all runs, in stable positions sent: to make one ready costs as much as to send
# it to MADE ranks, and a frame as much as LEAST_TOLD positions. Runs that have more to tell, or
# have waited less, have their turn at the next ticks. But each run has a heartbeat in every
# interval, of TOLD_ANYWAY positions: workers give up a lane that they do not hear.
MOST_TOLD: Final = 65_536
MADE: Final = 16
LEAST_TOLD: Final = 256
TOLD_ANYWAY: Final = 16
# What a tick does of work that nobody waits for; the rest has its turn at the next ones. Bytes of
# the records of keys that are idle, or whose run or stream is over, 0.5 ms; runs that nobody has
# come back to; what runs are told of their rounds that wait, in frames and lines of the log; and
# connections that have said nothing and are refused, a line each, which takes 0.1 to 0.2 ms.
MOST_IDLE: Final = 1 << 20
MOST_ENDED: Final = 16
MOST_STALLED: Final = 32
MOST_REFUSED: Final = 16
# Ranks that a tick tells who is absent; a run is told in every interval of its heartbeat at most.
MOST_TOLD_ABSENCE: Final = 1_024
_SLOTS_NAMED: Final = 8  # in a log line


class Lane:
    """All runs of one lane process."""

    def __init__(self, settings: LaneSettings) -> None:
        self._settings = settings
        self._roster = Roster(settings)
        self._joining = Joining(self._roster)
        self._drains_since = 0.0
        self._ticked_at = 0.0
        self._next_beat = 0.0
        self._told_at: dict[str, float] = {}  # when there was news for a job
        self._sweeps = 0  # ticks that have looked for idle keys
        self._handlers: dict[type[Any], Callable[[Any, float], list[Output]]] = {
            events.Folded: self._folded,
            events.Reduced: self._reduced,
            events.Failed: self._failed,
            events.ControlReceived: self._control,
            events.Opened: self._opened,
            events.Lost: self._lost,
            events.Broken: self._broken,
            events.CatchUp: self._catch_up,
            events.Tick: self._tick,
            events.Drain: self._drain,
            events.Shutdown: self._shutdown,
        }
        self._controls: dict[int, Callable[[Session, Any, float, list[Output]], None]] = {
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
        """What to do about `event`; never raises for what a peer has sent.

        What raises in the data path ends its run; elsewhere the shell reports it as Broken.
        """
        if isinstance(event, events.Contributed):
            return self._contributed(event, now)
        return self._handlers[type(event)](event, now)

    def admit(self, session: int, header: Header, unread: int) -> Admission | None:
        """What goes with a contribution that memory is to be taken for; raises the ProtocolError
        family.

        `unread` bytes wait to be sent to the session. None: its bytes are to be thrown away.
        """
        peer = self._roster.sessions[session]
        return self._ready_run(peer).contributions.admit(peer.rank, header, unread)

    def unread_room(self, session: int) -> tuple[int, int]:
        """The bytes that may wait to be sent to the session, at any time and now; with more it does
        not read."""
        peer = self._roster.sessions.get(session)
        if peer is None or peer.run is None:
            return LEAST_FRAMES, LEAST_FRAMES
        ledger = peer.run.ledger
        return ledger.slack, ledger.unread_room(peer.rank)

    def admit_long(self, session: int, header: Header, unread: int) -> None:
        """Whether memory may be taken for a control frame of more than MAX_EARLY_BYTES; as `admit`.

        Only a complete run has reserved any.
        """
        peer = self._roster.sessions[session]
        if peer.run is None:
            raise ProtocolError(
                f"{peer} sent {MessageKind(header.kind).name} of {header.length:,} bytes before "
                f"the welcome, the limit is {MAX_EARLY_BYTES:,}"
            )
        if unread + header.length > peer.run.ledger.unread_room(peer.rank):
            raise peer.run.ledger.too_slow(peer.rank, header.length, unread)

    def behind(self, session: int) -> bool:
        """Whether the session's run has work left for its turns (CatchUp)."""
        peer = self._roster.sessions.get(session)
        return peer is not None and peer.run is not None and peer.run.is_behind

    def heard(self, session: int, now: float) -> None:
        """Bytes have come, whole frames or not: the peer is not silent."""
        peer = self._roster.sessions.get(session)
        if peer is not None:
            peer.heard_at = now

    def job_named_by(self, session: int) -> str:
        """The job that the session has said HELLO for; "" if it has not, or was not let in."""
        peer = self._roster.sessions.get(session)
        return "" if peer is None else peer.named

    def run_of(self, session: int) -> int:
        """The number of the run that it is in, 0 for none."""
        peer = self._roster.sessions.get(session)
        return 0 if peer is None else peer.run_number

    def world_size_of(self, session: int) -> int:
        """How many ranks the session's run has; 0 where it is in none."""
        peer = self._roster.sessions.get(session)
        return 0 if peer is None or peer.run is None else peer.run.world_size

    @property
    def idle(self) -> bool:
        """Whether no run is here, complete or forming, and nothing of one that has ended."""
        return not (self._roster.runs or self._roster.forming or self._roster.ended)

    @property
    def runs_ended(self) -> int:
        """So far."""
        return self._roster.runs_ended

    def drained(self, now: float) -> bool:
        """Nothing is to be waited for: the runs have gone elsewhere, or cannot and are idle."""
        runs = [members.run for members in self._roster.runs.values()]
        if not any(run.streams.live for run in runs):
            return True
        return now - self._drains_since >= DRAIN_PATIENCE and not any(run.open for run in runs)

    def snapshot(self) -> dict[str, Any]:
        """Returns the lane's own numbers, for metrics; `parts` returns those of its runs."""
        return {
            "lane": self._settings.lane,
            "sessions": len(self._roster.sessions),
            "forming": len(self._roster.forming),
            "errors": {code.name.lower(): n for code, n in self._roster.errors.items()},
            "reserved_bytes": self._roster.budget.reserved,
            "budget_bytes": self._roster.budget.total,
        }

    def parts(self, now: float) -> Iterator[dict[str, Any]]:
        """Numbers for metrics, and who is here and who is waited for: one run after the other.

        The lane may handle events between two of them. Runs that have ended by then are left out.
        The runs that are complete tell of MAX_ROUNDS_IN_ALL waiting rounds at most, and those of
        one job of MAX_RANKS_OF_JOB ranks.
        """
        rounds = MAX_ROUNDS_IN_ALL
        ranks: Counter[str] = Counter()  # that each job has told of
        for number, members in list(self._roster.runs_by_number.items()):
            if number in self._roster.runs_by_number:
                report = run_report(members, now, min(rounds, MAX_ROUNDS))
                rounds -= len(report["waiting"])
                job = members.run.name
                numbers = job_numbers(members.run, min(MAX_RANKS, MAX_RANKS_OF_JOB - ranks[job]))
                ranks[job] += ranks_in(numbers)
                yield {"run": report, "numbers": numbers}
        for forming in list(self._roster.forming.values()):
            if self._roster.forming.get(forming.id) is forming:
                yield {"forming": forming_report(forming)}

    # --- data -----------------------------------------------------------------------------------

    def _contributed(self, event: events.Contributed, now: float) -> list[Output]:
        peer = self._roster.sessions[event.session]
        peer.heard_at = now
        out: list[Output] = []
        try:
            self._take(peer, event, now, out)
        except Exception as bug:
            self._fault(self._roster.runs_by_number.get(peer.run_number), bug, event.buffer, out)
        return out

    def _take(
        self, peer: Session, event: events.Contributed, now: float, out: list[Output]
    ) -> None:
        try:
            self._ready_run(peer).contributions.take(peer.rank, event, now, out)
        except PEER_ERRORS as error:
            if event.buffer is not None:
                out.append(Free(peer.run_number, (event.buffer,)))
            out += self._untaken(peer, error, now)

    def _untaken(self, peer: Session, error: ReductionError, now: float) -> list[Output]:
        """A frame could not be taken: end the session, or the run where that is the law."""
        run = peer.run
        if peer.state == SessionState.CLOSED or run is None:
            return self._roster.refuse(peer, error, now)
        departed = run.seats.departed
        if isinstance(error, PeerLostError) and departed is not None:
            return self._roster.fail(run, ErrorCode.PEER_LOST, str(error), departed, "left")
        if isinstance(error, IntegrityError):
            return self._roster.fail(run, ErrorCode.INTEGRITY, str(error), peer.rank, "integrity")
        if isinstance(error, RecordsError):
            return self._roster.fail(run, ErrorCode.QUOTA, str(error), peer.rank, "records")
        if isinstance(error, UnstableError):
            return self._roster.fail(run, ErrorCode.QUOTA, str(error), error.rank, "unstable")
        return self._roster.refuse(peer, error, now)

    def _folded(self, event: events.Folded, now: float) -> list[Output]:
        out: list[Output] = []
        members = self._roster.runs_by_number.get(event.run)
        if members is None:  # it has ended meanwhile
            if event.taken is not None:
                out.append(Free(event.run, (event.taken,)))
            return out
        try:
            members.run.sums.folded(event, out)
        except Exception as bug:
            self._fault(members, bug, event.taken, out)
        return out

    def _reduced(self, event: events.Reduced, now: float) -> list[Output]:
        out: list[Output] = []
        members = self._roster.runs_by_number.get(event.run)
        if members is None:
            return out
        try:
            members.run.sums.reduced(event, now, out)
        except Exception as bug:
            self._fault(members, bug, None, out)
        return out

    def _failed(self, event: events.Failed, now: float) -> list[Output]:
        """An output could not be carried out: its run ends, or the sessions that it was for."""
        members = self._roster.runs_by_number.get(event.run)
        if members is not None:
            return self._roster.fault(members, event.error)
        text = fault_text(event.error)
        peers = [p for s in event.sessions if (p := self._roster.sessions.get(s)) is not None]
        out: list[Output] = [Log(event.run, logging.ERROR, text, NOTHING, event.error)]
        for peer in peers:
            self._roster.close(peer, text, now)
            out.append(Close(event.run, peer.id, text, at_once=True))
        return out

    def _fault(
        self, members: Members | None, error: Exception, buffer: Buffer | None, out: list[Output]
    ) -> None:
        """A bug of ours while the run's state changed. `buffer` may be the run's or the event's."""
        if members is None:
            out.append(Log(0, logging.ERROR, fault_text(error), NOTHING, error))
        else:
            out += self._roster.fault(members, error)
        given = [o.buffers for o in out if isinstance(o, Free)]
        if buffer is not None and not any(buffer is b for buffers in given for b in buffers):
            out.append(Free(0, (buffer,)))

    def _ready_run(self, peer: Session) -> Run:
        if peer.run is None or peer.state != SessionState.READY:
            raise ProtocolError(f"{peer} sent a contribution while {peer.state.name}")
        return peer.run

    # --- control --------------------------------------------------------------------------------

    def _control(self, event: events.ControlReceived, now: float) -> list[Output]:
        peer = self._roster.sessions[event.session]
        if peer.state >= SessionState.LEFT:
            return []
        peer.heard_at = now
        out: list[Output] = []
        try:
            self._dispatch(peer, event, now, out)
        except PEER_ERRORS as error:
            out += self._untaken(peer, error, now)
        except Exception as bug:
            members = self._roster.runs_by_number.get(peer.run_number)
            if members is None:
                raise
            self._fault(members, bug, None, out)
        return out

    def _dispatch(
        self, peer: Session, event: events.ControlReceived, now: float, out: list[Output]
    ) -> None:
        kind = event.header.kind
        handler = self._controls.get(kind)
        if handler is None:
            raise ProtocolError(f"{peer} sent {MessageKind(kind).name}, which only lanes send")
        if kind == MessageKind.HELLO or peer.run is not None:
            handler(peer, event, now, out)
        elif kind in (MessageKind.ERROR, MessageKind.BYE):
            out += self._roster.close(peer, "left before it joined", now)
        elif kind != MessageKind.HEARTBEAT or peer.state == SessionState.NEW:
            raise ProtocolError(f"{peer} sent frames before the welcome")

    def _hello(
        self, peer: Session, event: events.ControlReceived, now: float, out: list[Output]
    ) -> None:
        hello = messages.decode(messages.Hello, event.payload or b"")
        out += self._joining.hello(peer, hello, now)

    def _catch_up(self, event: events.CatchUp, now: float) -> list[Output]:
        if not self.behind(event.session):
            return []
        return self._run_of(self._roster.sessions[event.session]).catch_up(now)

    def _route(
        self, peer: Session, event: events.ControlReceived, now: float, out: list[Output]
    ) -> None:
        """A route that is new here moves streams, and goes on to all other ranks."""
        message = messages.decode(messages.Route, event.payload or b"")
        run = self._run_of(peer)
        route = Route(message.route, message.since, message.live, message.lanes_by_slot)
        if not len(route.since) == len(route.live) == len(route.lanes) == len(run.route.live):
            raise ProtocolError(
                f"{peer} sent a route of {len(route.live)} slots, the job has {len(run.route.live)}"
            )
        if route.number <= run.route.number:
            return
        text = f"job {run.title!r}: route {route.number}, {_slots(route)}"
        out += run.move(route)
        out.append(run.seats.to_others(peer.rank, message))
        out.append(Log(run.number, logging.INFO, text, peer.about()))

    def _suspect(
        self, peer: Session, event: events.ControlReceived, now: float, out: list[Output]
    ) -> None:
        """To rank 0, which decides."""
        message = messages.decode(messages.Suspect, event.payload or b"")
        if message.rank != peer.rank:
            raise ProtocolError(f"{peer} sent a suspicion of rank {message.rank}")
        out.append(self._run_of(peer).seats.to_rank(0, message))

    def _key(
        self, peer: Session, event: events.ControlReceived, now: float, out: list[Output]
    ) -> None:
        message = messages.decode(messages.Key, event.payload or b"")
        self._run_of(peer).notices.announce(peer.rank, event.header, message.name, now)

    def _stats(
        self, peer: Session, event: events.ControlReceived, now: float, out: list[Output]
    ) -> None:
        run = self._run_of(peer)
        stats = run.stats(run.stalls.waiting(now, self._settings.heartbeat))
        out.append(self._roster.send(run.number, stats, (peer.id,)))

    def _heartbeat(
        self, peer: Session, event: events.ControlReceived, now: float, out: list[Output]
    ) -> None:
        self._run_of(peer).positions.heartbeat(peer.rank, event.header, event.payload, now, out)

    def _describe(
        self, peer: Session, event: events.ControlReceived, now: float, out: list[Output]
    ) -> None:
        self._run_of(peer).notices.describe(peer.rank, event.header, now, out)

    def _abandon(
        self, peer: Session, event: events.ControlReceived, now: float, out: list[Output]
    ) -> None:
        cause = messages.decode(messages.Abandon, event.payload or b"")
        self._run_of(peer).notices.abandon(peer.rank, event.header, cause, now, out)

    def _error(
        self, peer: Session, event: events.ControlReceived, now: float, out: list[Output]
    ) -> None:
        """A member gives up: the run is over for all, for its reason or because of it."""
        error = messages.decode(messages.Error, event.payload or b"")
        if peer.state != SessionState.READY:
            out += self._roster.close(peer, error.message, now)
            return
        run = self._run_of(peer)
        if error.code in _VERDICTS and error.rank >= 0:
            code = ErrorCode(error.code)
            out += self._roster.fail(run, code, error.message, error.rank, error.reason)
            return
        text = f"rank {peer.rank} of job {run.title!r} has failed: {error.message}"
        # Where lanes welcomed it to different runs, nobody can join: no rank is to blame.
        code = ErrorCode.JOIN if error.code == ErrorCode.JOIN else ErrorCode.PEER_LOST
        out += self._roster.fail(run, code, text, peer.rank, "failed")

    def _bye(
        self, peer: Session, event: events.ControlReceived, now: float, out: list[Output]
    ) -> None:
        """The rank leaves cleanly; whatever still needs it is lost."""
        run = self._run_of(peer)
        members = self._roster.runs[run.name, run.run_id]
        members.leave(peer)
        if len(members.left) == run.world_size:
            out += self._roster.end(members)
            return
        waiting = run.open.that_wants(peer.rank)
        if waiting is None:
            return
        text = f"rank {peer.rank} left job {run.title!r} before round {waiting.number} was complete"
        out += self._roster.fail(run, ErrorCode.PEER_LOST, text, peer.rank, "left")

    def _run_of(self, peer: Session) -> Run:
        if peer.run is None:
            raise ProtocolError(f"{peer} is not in a run")
        return peer.run

    # --- the end of sessions and runs -----------------------------------------------------------

    def _opened(self, event: events.Opened, now: float) -> list[Output]:
        self._roster.sessions[event.session] = Session(event.session, now, event.permit)
        return []

    def _lost(self, event: events.Lost, now: float) -> list[Output]:
        return self._roster.lose(event.session, event.reason, now)

    def _broken(self, event: events.Broken, now: float) -> list[Output]:
        peer = self._roster.sessions.get(event.session)
        if isinstance(event.error, PEER_ERRORS):
            return [] if peer is None else self._untaken(peer, event.error, now)
        if peer is None:  # nothing is lost but the connection
            return [Log(0, logging.ERROR, fault_text(event.error), NOTHING, event.error)]
        members = self._roster.runs_by_number.get(peer.run_number)
        if members is not None:
            return self._roster.fault(members, event.error)
        text = fault_text(event.error)
        out: list[Output] = [Log(0, logging.ERROR, f"{peer}: {text}", peer.about(), event.error)]
        if peer.state == SessionState.CLOSED:
            self._roster.tell_again(out)
        return out + self._roster.refuse(peer, InternalError(text), now)

    # --- time -----------------------------------------------------------------------------------

    def _tick(self, event: events.Tick, now: float) -> list[Output]:
        if now - self._ticked_at > LATE_TICK:
            self._roster.shift_clocks(now - self._ticked_at, now)
        self._ticked_at = now
        out: list[Output] = []
        self._roster.tell_again(out)
        self._beat(now, out)
        self._forget_idle(now, out)
        self._check_runs(now, out)
        self._tell_stalls(now, out)
        may_refuse = MOST_REFUSED
        for peer in list(self._roster.sessions.values()):
            try:
                if not self._is_overdue(peer, now):
                    out += self._check_session(peer, now)
                elif may_refuse > 0:
                    may_refuse -= 1
                    out += self._refuse_overdue(peer, now)
            except Exception as bug:
                out += self._broken(events.Broken(peer.id, bug), now)
        return out

    def _check_runs(self, now: float, out: list[Output]) -> None:
        deserted = []
        may_tell = MOST_TOLD_ABSENCE
        for members in sorted(self._roster.runs.values(), key=_absence_from):
            try:
                if members.deserted(now - self._settings.deserted_after):
                    deserted.append(members)
                    continue
                if may_tell > 0 and members.absence_from <= now:
                    may_tell -= self._tell_absence(members, now, out)
                if members.run.is_behind:  # whoever had its turns for that may have gone
                    members.run.seats.ask_for_turns(out)
            except Exception as bug:
                self._fault(members, bug, None, out)
        self._end_deserted(few(deserted, MOST_ENDED), out)

    def _beat(self, now: float, out: list[Output]) -> None:
        may_tell = MOST_TOLD
        for members in self._due(now):
            try:
                told = self._beat_run(members, now, may_tell, out)
                if told and may_tell > 0:
                    self._told_at[members.run.name] = now
                may_tell -= told
            except Exception as bug:
                self._fault(members, bug, None, out)
        if now >= self._next_beat:
            self._next_beat = now + self._settings.heartbeat
            self._beat_forming(now, out)

    def _due(self, now: float) -> list[Members]:
        """The runs whose heartbeat is due: of each job the one that has waited longest, then the
        next one of each. The job that was told something last comes last."""
        runs = self._roster.runs.values()
        self._told_at = {
            members.run.name: self._told_at.get(members.run.name, 0.0) for members in runs
        }
        due: dict[str, list[Members]] = {}
        for members in sorted(runs, key=_next_beat):
            if members.next_beat <= now:
                due.setdefault(members.run.name, []).append(members)
        waves: list[list[Members]] = []
        for job in sorted(due, key=self._told_at.__getitem__):
            for number, members in enumerate(due[job]):
                if number == len(waves):
                    waves.append([])
                waves[number].append(members)
        return [members for wave in waves for members in wave]

    def _beat_run(self, members: Members, now: float, may_tell: int, out: list[Output]) -> int:
        """HEARTBEATs of what there is to tell, or an empty one; what that takes of MOST_TOLD."""
        run, interval = members.run, self._settings.heartbeat
        if may_tell <= 0 and run.positions.has_news and now < members.beat_at + interval:
            return 0
        each = MADE + len(run.seats.present)
        most = TOLD_ANYWAY
        if may_tell > 0:
            most = min(max(LEAST_TOLD, MOST_TOLD // each), MAX_HEARTBEAT_ENTRIES)
        has_news, told = run.positions.has_news, 0
        while has_news and (not told or told < may_tell):
            beat = run.positions.beat(most)
            out.append(beat)
            told += max(LEAST_TOLD, entries_in(beat.frame)) * each
            has_news = run.positions.has_news
        if not told:
            out.append(run.seats.empty_heartbeat())
        members.beat_at = now
        if not has_news:
            members.next_beat += interval * ((now - members.next_beat) // interval + 1)
        elif may_tell > 0:
            members.next_beat = now  # behind those that have waited longer
        return told

    def _beat_forming(self, now: float, out: list[Output]) -> None:
        for forming in list(self._roster.forming.values()):
            try:
                out.append(self._beat_of(forming))
            except Exception as bug:
                out += self._roster.break_up(forming, bug, now)

    def _beat_of(self, forming: Forming) -> Send:
        """Whom the run waits for, where that has changed."""
        sessions = tuple(forming.sessions.values())
        if not forming.changed:
            heartbeat = payload_frame(MessageKind.HEARTBEAT, b"", self._settings.crc32c)
            return Send(0, sessions, heartbeat, None, 0)
        forming.changed = False
        return self._joining.pending(forming, sessions)

    def _forget_idle(self, now: float, out: list[Output]) -> None:
        """At each tick the first turn is another job's, and in that another run's."""
        self._roster.forget_ended(MOST_IDLE, out)
        looked = 0
        for members in self._to_sweep():
            try:
                looked += self._forget_idle_of(members, now)
            except Exception as bug:
                self._fault(members, bug, None, out)
            if looked >= MOST_IDLE:
                break

    def _to_sweep(self) -> list[Members]:
        by_job: dict[str, list[Members]] = {}
        for members in self._roster.runs_by_number.values():
            by_job.setdefault(members.run.name, []).append(members)
        self._sweeps += 1
        order: list[Members] = []
        for runs in in_turns(by_job, self._sweeps):
            first = self._sweeps // len(by_job) % len(runs)
            order += runs[first:] + runs[:first]
        return order

    def _forget_idle_of(self, members: Members, now: float) -> int:
        idle = members.run.idle
        if not members.complete:  # who is back must be told of idle keys
            return idle.take_apart(MOST_IDLE)
        return idle.forget(now - members.silence - KEY_IDLE_SECONDS, MOST_IDLE)

    def _end_deserted(self, runs: list[Members], out: list[Output]) -> None:
        for members in runs:
            run = members.run
            try:
                text = f"job {run.name!r} run {run.run_id!r}: nobody has come back"
                line = Log(run.number, logging.WARNING, text, run.about())
                out += [*self._roster.end(members), line]
            except Exception as bug:
                self._fault(members, bug, None, out)

    def _tell_absence(self, members: Members, now: float, out: list[Output]) -> int:
        """ABSENT to all its ranks, if it has changed; how many these are."""
        absence = members.absence(now - self._settings.lost_grace)
        if absence is None:
            return 0
        members.absence_from = now + self._settings.heartbeat
        out.append(members.run.seats.to_all(absence))
        return len(members.run.seats.present)

    def _tell_stalls(self, now: float, out: list[Output]) -> None:
        after = self._settings.stall_after
        runs = self._roster.runs.values()
        due = [
            members for members in runs if members.next_stall <= now and not members.deserted(now)
        ]
        due.sort(key=_next_stall)
        told = 0
        for members in due:
            if told >= MOST_STALLED:
                break
            try:
                members.next_stall = now + after / 2
                report = members.run.stalls.report(now, after)
                out += report
                told += len(report)
            except Exception as bug:
                self._fault(members, bug, None, out)

    def _is_overdue(self, peer: Session, now: float) -> bool:
        """Whether it has not said HELLO in time."""
        late = now - peer.opened_at > self._settings.hello_deadline
        return late and peer.state == SessionState.NEW

    def _refuse_overdue(self, peer: Session, now: float) -> list[Output]:
        error = ProtocolError(f"no HELLO within {self._settings.hello_deadline:g} s")
        return self._roster.refuse(peer, error, now)

    def _check_session(self, peer: Session, now: float) -> list[Output]:
        silent = now - peer.heard_at
        if peer.state == SessionState.READY and silent > peer.silence:
            # No ERROR: it may only be this lane that does not hear it.
            text = f"nothing was heard of it for {silent:.1f} s"
            return self._roster.close(peer, text, now - self._settings.lost_grace)
        if peer.state == SessionState.LEFT and silent > peer.silence:
            return self._roster.close(peer, "has left and does not close", now)
        return []

    def _drain(self, event: events.Drain, now: float) -> list[Output]:
        self._roster.draining, self._drains_since = event.reason, now
        goaway = messages.Goaway(event.reason)
        out: list[Output] = [
            members.run.seats.to_all(goaway) for members in self._roster.runs.values()
        ]
        # Who has said nothing yet may be back in a run.
        error = UnavailableError(f"this reducer is draining ({event.reason})")
        return out + self._refuse_forming(error, now)

    def _shutdown(self, event: events.Shutdown, now: float) -> list[Output]:
        self._roster.draining = event.reason
        out: list[Output] = []
        text = f"this reducer has shut down ({event.reason})"
        for members in list(self._roster.runs.values()):
            out += self._roster.end(members, messages.Error(int(ErrorCode.UNAVAILABLE), text))
        out += self._refuse_forming(UnavailableError(text), now)
        for peer in list(self._roster.sessions.values()):
            out += self._roster.refuse(peer, UnavailableError(text), now)
        return out

    def _refuse_forming(self, error: ReductionError, now: float) -> list[Output]:
        """One frame and one line in the log for each run, however many wait for it."""
        out: list[Output] = []
        for forming in list(self._roster.forming.values()):
            out += self._roster.refuse_all(forming, error, now)
        return out


def _next_beat(members: Members) -> float:
    return members.next_beat


def _absence_from(members: Members) -> float:
    return members.absence_from


def _next_stall(members: Members) -> float:
    return members.next_stall


def _slots(route: Route) -> str:
    dead = [slot for slot, live in enumerate(route.live) if not live]
    text = f"{len(route.live) - len(dead)} of {len(route.live)} slots live"
    if not dead:
        return text
    more = f" and {len(dead) - _SLOTS_NAMED} more" if len(dead) > _SLOTS_NAMED else ""
    return f"{text}, without {', '.join(map(str, dead[:_SLOTS_NAMED]))}{more}"
