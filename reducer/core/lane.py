"""One lane: brings each event to the session or the run that it concerns.

Sans-I/O: `handle(event, now)` returns what the shell has to do. This package contains no socket,
clock, thread, array or random number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from reducer.core.controls import Controls
from reducer.core.lane_end import LaneEnd
from reducer.core.limits.budget import LEAST_FRAMES
from reducer.core.members.joining import Joining
from reducer.core.members.roster import Roster
from reducer.core.members.run_endings import Endings, Refusals
from reducer.core.members.session import Session, SessionState
from reducer.core.registry.desk import Desk
from reducer.core.report import lane_numbers, parts_of
from reducer.core.runs.flow import UnreadError
from reducer.core.runs.run import Run
from reducer.core.surface import events
from reducer.core.surface.events import Admission, Close, Event, Free, Output
from reducer.core.surface.numbers import CoreNumbers, Part
from reducer.core.surface.settings import LaneSettings
from reducer.core.tables.context import Context
from reducer.core.tables.desk import TableDesk
from reducer.core.ticks import Beats, Ticks
from reducer.registry.limits import MAX_LEASES_BYTES
from reducer.wire.codes import LOG, MAX_EARLY_BYTES, PUSH, MessageKind
from reducer.wire.errors import PEER_ERRORS, ProtocolError
from reducer.wire.header import Header

# The most unread bytes of a client of the registry: the largest record in several frames.
ASKED_ROOM: Final = MAX_LEASES_BYTES + 4 * LEAST_FRAMES


_OF_TABLES: Final = (PUSH, LOG)  # kinds of chunks


class Lane:
    """All runs of one lane process."""

    def __init__(self, settings: LaneSettings) -> None:
        self._roster = roster = Roster(settings)
        self._endings = endings = Endings(roster)
        self._refusals = refusals = Refusals(roster, endings)
        joining = Joining(roster, endings, refusals)
        beats = Beats(roster, endings, refusals, joining)
        self._desk = desk = Desk(settings)
        context = Context(settings, roster.budget)
        self._tables = tables = TableDesk(context)
        self._works = context.works
        self._links = context.links
        controls = Controls(roster, endings, refusals, joining, desk, tables, context.links)
        self._ticks = Ticks(roster, endings, refusals, beats)
        self._end = LaneEnd(roster, endings, refusals)
        self._handlers: dict[type[Any], Callable[[Any, float], list[Output]]] = {
            events.Folded: self._folded,
            events.Reduced: self._reduced,
            events.Failed: self._refusals.failed,
            events.Stored: self._desk.stored,
            events.Dialed: self._dialed,
            events.DialFailed: self._dial_failed,
            events.Inspected: self._works.done,
            events.Filled: self._works.done,
            events.Applied: self._works.done,
            events.Copied: self._works.done,
            events.Averaged: self._works.done,
            events.WorkFailed: self._works.done,
            events.ControlReceived: controls.take,
            events.Opened: self._opened,
            events.Disconnected: self._disconnected,
            events.Broken: self._broken,
            events.CatchUp: self._catch_up,
            events.Tick: self._tick,
            events.Drain: self._end.begin,
            events.Shutdown: self._end.shut_down,
        }

    def handle(self, event: Event, now: float) -> list[Output]:
        """Return the outputs for `event`. Nothing that a peer sends makes this raise.

        An internal error on the data path ends the run. Other internal errors may be raised; the
        shell then reports Broken.
        """
        if isinstance(event, events.Contributed):
            return self._contributed(event, now)
        return self._handlers[type(event)](event, now)

    # --- before memory is taken -----------------------------------------------------------------

    def admit(self, session: int, header: Header, unread: int) -> Admission | None:
        """Return where a contribution belongs, before memory is taken for it.

        `unread` bytes wait to be sent to the session. None: the payload is to be discarded. Raises
        the ProtocolError family.
        """
        peer = self._roster.sessions[session]
        if header.kind in _OF_TABLES:
            self._check_tables(peer, header)
            if unread > self._tables.room(session):
                raise UnreadError(f"{peer} keeps sending, and {unread:,} bytes wait for it")
            return self._tables.admit(session, header)
        return _ready_run(peer).contributions.admit(peer.rank, header, unread)

    def _check_tables(self, peer: Session, header: Header) -> None:
        """Raises ProtocolError if the session may not send this."""
        if not self._tables.has(peer.id) or self._tables.is_link(peer.id) != (header.kind == LOG):
            what = MessageKind(header.kind).name
            raise ProtocolError(f"{peer} sent {what} and has not opened tables for that")

    def unread_room(self, session: int) -> tuple[int, int]:
        """Returns how many bytes may always wait for the session, and how many may wait now.

        A session with more bytes waiting than the second number is a slow reader.
        """
        peer = self._roster.sessions.get(session)
        if self._tables.has(session):
            room = self._tables.room(session)
            return room, room
        if peer is not None and peer.state == SessionState.LINKED:
            room = self._roster.budget.total  # workers' credits bound the log
            return room, room
        if peer is None or peer.run is None:
            asks = peer is not None and peer.state == SessionState.ASKING
            return LEAST_FRAMES, ASKED_ROOM if asks else LEAST_FRAMES
        accounts = peer.run.accounts
        return accounts.slack, accounts.unread_room(peer.rank)

    def admit_long(self, session: int, header: Header, unread: int) -> None:
        """Like `admit`, for a control frame of more than MAX_EARLY_BYTES.

        Only a formed run has reserved memory for such a frame. A client of the registry has room
        for one.
        """
        peer = self._roster.sessions[session]
        if peer.state == SessionState.ASKING:
            if unread + header.length > max(ASKED_ROOM, self.unread_room(session)[1]):
                raise UnreadError(f"{peer} keeps calling, and {unread:,} bytes wait for it")
            return
        if peer.run is None:
            raise ProtocolError(
                f"{peer} sent {MessageKind(header.kind).name} of {header.length:,} bytes before "
                f"the welcome, the limit is {MAX_EARLY_BYTES:,}"
            )
        if unread + header.length > peer.run.accounts.unread_room(peer.rank):
            raise peer.run.accounts.too_slow(peer.rank, header.length, unread)

    # --- what the shell asks --------------------------------------------------------------------

    def behind(self, session: int) -> bool:
        """Whether the session's run has work left for its turns (CatchUp)."""
        peer = self._roster.sessions.get(session)
        return peer is not None and peer.run is not None and peer.run.is_behind

    def heard(self, session: int, now: float) -> None:
        """Note that bytes have come from the peer, whole frames or not."""
        peer = self._roster.sessions.get(session)
        if peer is not None:
            peer.heard_at = now

    def job_named_by(self, session: int) -> str:
        """The job that the session's HELLO named; "" before the HELLO, or if its permit forbids the
        job.
        """
        peer = self._roster.sessions.get(session)
        return "" if peer is None else peer.counted_job

    def run_of(self, session: int) -> int:
        """The number of the session's run, 0 for none."""
        peer = self._roster.sessions.get(session)
        return 0 if peer is None else peer.run_number

    def world_size_of(self, session: int) -> int:
        """How many ranks the session's run has; 0 if the session is in no run."""
        peer = self._roster.sessions.get(session)
        return 0 if peer is None or peer.run is None else peer.run.world_size

    @property
    def idle(self) -> bool:
        """Whether the lane has no table and no run at all: none forming, formed or ended."""
        runs = self._roster.runs or self._roster.forming or len(self._roster.ended)
        return self._tables.is_empty and not runs

    @property
    def room_for_chunks(self) -> int:
        """Bytes of the lane's memory that no run has reserved for anything but chunks."""
        return self._roster.budget.left_for_chunks

    @property
    def runs_ended(self) -> int:
        """How many runs have ended so far."""
        return self._endings.runs_ended

    def drained(self, now: float) -> bool:
        """Whether a draining lane may close.

        The routes of all runs leave its slot out, or no round is open although the workers had
        DRAIN_PATIENCE to move.
        """
        return self._end.is_over(now)

    def snapshot(self) -> CoreNumbers:
        """Returns the lane's own numbers, for metrics; `parts` returns those of its runs."""
        return lane_numbers(self._roster, self._tables, self._endings.errors, self._desk.count)

    def parts(self, now: float) -> Iterator[Part]:
        """Yields the numbers and the report of each run and table.

        The lane may handle events between two parts. Runs that have ended by then are left out.
        """
        return parts_of(self._roster, self._endings.past, self._tables, now)

    # --- events ---------------------------------------------------------------------------------

    def _contributed(self, event: events.Contributed, now: float) -> list[Output]:
        peer = self._roster.sessions[event.session]
        peer.heard_at = now
        out: list[Output] = []
        if event.header.kind in _OF_TABLES:
            self._take_push(peer, event, now, out)
            return out
        try:
            self._take(peer, event, now, out)
        except Exception as bug:
            self._endings.fault_in(peer.run_number, bug, event.buffer, out)
        return out

    def _take(
        self, peer: Session, event: events.Contributed, now: float, out: list[Output]
    ) -> None:
        try:
            _ready_run(peer).contributions.take(peer.rank, event, now, out)
        except PEER_ERRORS as error:
            if event.buffer is not None:
                out.append(Free(peer.run_number, (event.buffer,)))
            out += self._refusals.refuse_frame(peer, error, now)

    def _take_push(
        self, peer: Session, event: events.Contributed, now: float, out: list[Output]
    ) -> None:
        if peer.state >= SessionState.LEFT:
            if event.buffer is not None:
                out.append(Free(0, (event.buffer,)))
            return
        try:
            self._check_tables(peer, event.header)  # what has no payload was not admitted before
            self._tables.push(peer.id, event.header, event.buffer, now, out)
        except PEER_ERRORS as error:
            if event.buffer is not None:
                out.append(Free(0, (event.buffer,)))
            out += self._refusals.refuse_frame(peer, error, now)

    def _folded(self, event: events.Folded, now: float) -> list[Output]:
        out: list[Output] = []
        members = self._roster.runs_by_number.get(event.run)
        if members is None:  # the run has ended meanwhile
            if event.taken is not None:
                out.append(Free(event.run, (event.taken,)))
            return out
        try:
            members.run.sums.folded(event, out)
        except Exception as bug:
            self._endings.fault_in(event.run, bug, event.taken, out)
        return out

    def _reduced(self, event: events.Reduced, now: float) -> list[Output]:
        out: list[Output] = []
        members = self._roster.runs_by_number.get(event.run)
        if members is None:
            return out
        try:
            members.run.sums.reduced(event, now, out)
        except Exception as bug:
            self._endings.fault_in(event.run, bug, None, out)
        return out

    def _catch_up(self, event: events.CatchUp, now: float) -> list[Output]:
        peer = self._roster.sessions.get(event.session)
        if peer is None or peer.run is None or not peer.run.is_behind:
            return []
        return peer.run.catch_up(now)

    def _opened(self, event: events.Opened, now: float) -> list[Output]:
        self._roster.sessions[event.session] = Session(event.session, now, event.permit)
        return []

    def _disconnected(self, event: events.Disconnected, now: float) -> list[Output]:
        self._desk.forget(event.session)
        link = self._links.ended(event.session)
        out: list[Output] = []
        if link is not None:
            link.disconnected(event.reason, now, out)
        out += self._tables.forget(event.session, now)
        return out + self._refusals.disconnected(event.session, event.reason, now)

    def _dialed(self, event: events.Dialed, now: float) -> list[Output]:
        """The lane has connected to another lane."""
        peer = self._roster.sessions[event.session] = Session(event.session, now)
        peer.link = event.link
        peer.move(SessionState.LINKED)
        out: list[Output] = []
        link = self._links.dialed(event.link, event.session)
        if link is None:
            return self._refusals.close(peer, "nobody needs this link any more", now)
        link.dialed(event.session, now, out)
        return out

    def _dial_failed(self, event: events.DialFailed, now: float) -> list[Output]:
        out: list[Output] = []
        link = self._links.failed(event.link)
        if link is not None:
            link.failed(event.reason, now, out)
        return out

    def _broken(self, event: events.Broken, now: float) -> list[Output]:
        return self._refusals.broken(event.session, event.error, now)

    def _tick(self, event: events.Tick, now: float) -> list[Output]:
        out = self._ticks.tick(now)
        for output in out:
            if isinstance(output, Close):  # its worker was silent for long enough
                self._tables.closed(output.session)
        return out + self._desk.tick(now) + self._tables.tick(now)


def _ready_run(peer: Session) -> Run:
    if peer.run is None or peer.state != SessionState.READY:
        raise ProtocolError(f"{peer} sent a contribution in state {peer.state.name}")
    return peer.run
