"""Handles the control frames of workers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from reducer.core.members.asking import Asking, why_there_is_no_registry
from reducer.core.members.joining import Joining
from reducer.core.members.roster import Roster
from reducer.core.members.run_endings import Endings, Refusals
from reducer.core.members.session import Session, SessionState
from reducer.core.registry.desk import Desk
from reducer.core.rounds.chunk_owners import Route
from reducer.core.rounds.texts import ranks_text
from reducer.core.runs.run import Run
from reducer.core.surface.events import ControlReceived, Log, Output
from reducer.core.tables.desk import TableDesk
from reducer.wire import messages
from reducer.wire.codes import ErrorCode, MessageKind
from reducer.wire.errors import PEER_ERRORS, ProtocolError, UnavailableError
from reducer.wire.losses import parse_losses
from reducer.wire.table_messages import TableCall

# An ERROR with one of these codes names a rank, and every rank raises the same error.
_NAMES_A_RANK: Final = frozenset((int(ErrorCode.PEER_LOST), int(ErrorCode.INTEGRITY)))
_OF_NO_RUN: Final = frozenset(
    (int(MessageKind.HELLO), int(MessageKind.REGISTRY), int(MessageKind.TABLE))
)
_OF_TABLES: Final = frozenset(
    (int(MessageKind.PULL), int(MessageKind.HEARTBEAT), int(MessageKind.BYE))
)
_SLOTS_NAMED: Final = 8  # in a log line


class Controls:
    """One method for each kind of frame that workers send."""

    def __init__(
        self,
        roster: Roster,
        endings: Endings,
        refusals: Refusals,
        joining: Joining,
        desk: Desk,
        tables: TableDesk,
    ) -> None:
        self._roster = roster
        self._desk = desk
        self._tables = tables
        self._asking = Asking(roster)
        self._endings = endings
        self._refusals = refusals
        self._joining = joining
        self._heartbeat_seconds = roster.settings.heartbeat
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
            MessageKind.REGISTRY: self._registry,
            MessageKind.TABLE: self._table,
        }

    def take(self, event: ControlReceived, now: float) -> list[Output]:
        peer = self._roster.sessions[event.session]
        if peer.state >= SessionState.LEFT:
            return []
        peer.heard_at = now
        out: list[Output] = []
        try:
            self._dispatch(peer, event, now, out)
        except PEER_ERRORS as error:
            out += self._refusals.refuse_frame(peer, error, now)
        except Exception as bug:
            members = self._roster.runs_by_number.get(peer.run_number)
            if members is None:
                raise
            out += self._endings.fault(members, bug)
        return out

    def _dispatch(
        self, peer: Session, event: ControlReceived, now: float, out: list[Output]
    ) -> None:
        kind = event.header.kind
        if self._tables.has(peer.id) and kind in _OF_TABLES:
            self._of_tables(peer, event, now, out)
            return
        handler = self._controls.get(kind)
        if handler is None:
            raise ProtocolError(f"{peer} sent {MessageKind(kind).name}, which only lanes send")
        if kind in _OF_NO_RUN or peer.run is not None:
            handler(peer, event, now, out)
        elif kind in (MessageKind.ERROR, MessageKind.BYE):
            out += self._refusals.close(peer, "left before it joined", now)
        elif kind != MessageKind.HEARTBEAT or peer.state == SessionState.NEW:
            raise ProtocolError(f"{peer} sent frames before the welcome")

    def _hello(self, peer: Session, event: ControlReceived, now: float, out: list[Output]) -> None:
        hello = messages.decode(messages.Hello, event.payload or b"")
        out += self._joining.hello(peer, hello, now)

    def _registry(
        self, peer: Session, event: ControlReceived, now: float, out: list[Output]
    ) -> None:
        call = messages.decode(messages.RegistryCall, event.payload or b"")
        if peer.state > SessionState.ASKING:
            raise ProtocolError(f"{peer} is in a run: the registry needs a connection of its own")
        if (peer.state == SessionState.NEW) != (call.call == "open") or self._tables.has(peer.id):
            raise ProtocolError(f"{peer} called {call.call} in state {peer.state.name}")
        if not self._desk.is_open:
            raise UnavailableError(why_there_is_no_registry(self._roster.settings.lane))
        if peer.state == SessionState.NEW:
            out += self._asking.admit(peer, call.job, "the registry")
        if peer.state == SessionState.ASKING:
            self._desk.take(peer.id, peer.counted_job, event.header.key, call, now, out)

    def _table(self, peer: Session, event: ControlReceived, now: float, out: list[Output]) -> None:
        call = messages.decode(TableCall, event.payload or b"")
        if self._tables.has(peer.id):
            self._tables.call(peer.id, event.header.key, call, now, out)
            return
        if peer.state != SessionState.NEW or call.call != "open":
            raise ProtocolError(f"{peer} called {call.call} of tables in state {peer.state.name}")
        if self._roster.draining:
            raise UnavailableError(f"this reducer takes no new work: {self._roster.draining}")
        out += self._asking.admit(peer, call.job, "tables")
        if not self._is_closed(peer):
            peer.silence = call.silence_ms / 1000 or self._roster.settings.silence
            self._tables.open(peer.id, event.header.key, call, now, out)

    def _is_closed(self, peer: Session) -> bool:
        return peer.state == SessionState.CLOSED

    def _of_tables(
        self, peer: Session, event: ControlReceived, now: float, out: list[Output]
    ) -> None:
        """A frame, without a map, of a connection for tables."""
        kind = event.header.kind
        if kind == MessageKind.PULL:
            self._tables.pull(peer.id, event.header, out)
        elif kind == MessageKind.HEARTBEAT:
            out.append(self._tables.heartbeat(peer.id))
        else:
            self._tables.bye(peer.id, now, out)
            out += self._refusals.close(peer, "the worker has left its tables", now)

    def _route(self, peer: Session, event: ControlReceived, now: float, out: list[Output]) -> None:
        """A route that is new to the lane moves streams. The lane sends it to all other ranks."""
        payload = event.payload or b""
        message = messages.decode(messages.Route, payload)
        run = self._run_of(peer)
        route = Route(message.route, message.since, message.live, message.lanes_by_slot)
        lost = parse_losses(message.lost)
        if not len(route.since) == len(route.live) == len(route.lanes) == len(run.route.live):
            raise ProtocolError(
                f"{peer} sent a route of {len(route.live)} slots, the job has {len(run.route.live)}"
            )
        epoch = lost[-1][0] if lost else 0
        if (epoch, route.number) <= (run.view.epoch, run.route.number):
            return
        if lost and not run.terms.elastic:
            raise ProtocolError(f"{peer} sent a route without {len(lost)} ranks of a fixed run")
        view = run.view.after(lost)
        text = f"job {run.title!r}: route {route.number}, {_slots(route)}"
        if view is not run.view:
            gone = sorted(view.out - run.view.out)
            text += f", epoch {epoch} without {ranks_text(gone)}"
        out.append(run.seats.forward(peer.rank, MessageKind.ROUTE, payload))
        is_new_view = view is not run.view
        out += run.move(route, view)
        if is_new_view:
            self._put_out(run, now, out)
        out.append(Log(run.number, logging.INFO, text, peer.about()))

    def _put_out(self, run: Run, now: float, out: list[Output]) -> None:
        """Close the connections of ranks that are out; the route that says so is sent already."""
        members = self._roster.runs[run.name, run.run_id]
        for session in members.put_out(now):
            gone = self._roster.sessions[session]
            out += self._refusals.close(gone, f"{gone} is out of the run", now)
        if members.all_left:
            out += self._endings.end(members)

    def _suspect(
        self, peer: Session, event: ControlReceived, now: float, out: list[Output]
    ) -> None:
        """Passes the suspicion on to the lowest member, which decides."""
        message = messages.decode(messages.Suspect, event.payload or b"")
        if message.rank != peer.rank:
            raise ProtocolError(f"{peer} sent a suspicion of rank {message.rank}")
        seats = self._run_of(peer).seats
        out.append(seats.to_rank(seats.view.lowest, message))

    def _key(self, peer: Session, event: ControlReceived, now: float, out: list[Output]) -> None:
        message = messages.decode(messages.Key, event.payload or b"")
        self._run_of(peer).round_messages.announce(peer.rank, event.header, message.name, now)

    def _stats(self, peer: Session, event: ControlReceived, now: float, out: list[Output]) -> None:
        run = self._run_of(peer)
        stats = run.stats(run.stalls.waiting(now, self._heartbeat_seconds))
        out.append(self._roster.send(run.number, stats, (peer.id,)))

    def _heartbeat(
        self, peer: Session, event: ControlReceived, now: float, out: list[Output]
    ) -> None:
        self._run_of(peer).positions.heartbeat(peer.rank, event.header, event.payload, now, out)

    def _describe(
        self, peer: Session, event: ControlReceived, now: float, out: list[Output]
    ) -> None:
        self._run_of(peer).round_messages.describe(peer.rank, event.header, now, out)

    def _abandon(
        self, peer: Session, event: ControlReceived, now: float, out: list[Output]
    ) -> None:
        cause = messages.decode(messages.Abandon, event.payload or b"")
        self._run_of(peer).round_messages.abandon(peer.rank, event.header, cause, now, out)

    def _error(self, peer: Session, event: ControlReceived, now: float, out: list[Output]) -> None:
        """A member has failed: the run ends for all ranks, with the member's verdict or with its
        loss.
        """
        error = messages.decode(messages.Error, event.payload or b"")
        if peer.state != SessionState.READY:
            out += self._refusals.close(peer, error.message, now)
            return
        run = self._run_of(peer)
        is_loss = run.terms.elastic and error.code == ErrorCode.PEER_LOST  # of that rank alone
        if error.code in _NAMES_A_RANK and error.rank >= 0 and not is_loss:
            code = ErrorCode(error.code)
            out += self._endings.fail(run, code, error.message, error.rank, error.reason)
            return
        text = f"rank {peer.rank} of job {run.title!r} has failed: {error.message}"
        if run.terms.elastic:
            self._leave(peer, text, now, out)
            return
        # JOIN: lanes have welcomed the rank to different runs, so no rank is to blame.
        code = ErrorCode.JOIN if error.code == ErrorCode.JOIN else ErrorCode.PEER_LOST
        out += self._endings.fail(run, code, text, peer.rank, "failed")

    def _leave(self, peer: Session, text: str, now: float, out: list[Output]) -> None:
        """The rank has failed, and the others may go on without it."""
        run = self._run_of(peer)
        out.append(Log(run.number, logging.WARNING, text, peer.about()))
        members = self._roster.runs[run.name, run.run_id]
        members.leave(peer)
        out += self._refusals.close(peer, text, now)
        if members.all_left:
            out += self._endings.end(members)

    def _bye(self, peer: Session, event: ControlReceived, now: float, out: list[Output]) -> None:
        """The rank leaves cleanly. A round that still needs the rank ends the run."""
        run = self._run_of(peer)
        members = self._roster.runs[run.name, run.run_id]
        members.leave(peer)
        if members.all_left:
            out += self._endings.end(members)
            return
        if run.terms.elastic:
            return
        waiting = run.open.first_that_wants(peer.rank)
        if waiting is None:
            return
        text = f"rank {peer.rank} left job {run.title!r} before round {waiting.number} was complete"
        out += self._endings.fail(run, ErrorCode.PEER_LOST, text, peer.rank, "left")

    def _run_of(self, peer: Session) -> Run:
        if peer.run is None:
            raise ProtocolError(f"{peer} is not in a run")
        return peer.run


def _slots(route: Route) -> str:
    dead = [slot for slot, live in enumerate(route.live) if not live]
    text = f"{len(route.live) - len(dead)} of {len(route.live)} slots live"
    if not dead:
        return text
    more = f" and {len(dead) - _SLOTS_NAMED} more" if len(dead) > _SLOTS_NAMED else ""
    return f"{text}, without {', '.join(map(str, dead[:_SLOTS_NAMED]))}{more}"
