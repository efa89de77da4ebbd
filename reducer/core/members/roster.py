"""Who is on a lane: its sessions, the runs that form and live on it, and how each of them ends."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final, TypeVar

from reducer.core.limits.budget import Budget
from reducer.core.limits.quotas import Connections
from reducer.core.limits.records import ROUND
from reducer.core.members.forming import Forming, FormingId
from reducer.core.members.members import Members
from reducer.core.members.session import Session, SessionState
from reducer.core.runs.run import Run
from reducer.core.surface.events import Close, Log, Output, Send
from reducer.core.surface.frames import control_frame
from reducer.core.surface.settings import LaneSettings
from reducer.wire import messages
from reducer.wire.codes import ErrorCode
from reducer.wire.errors import InternalError, ReductionError
from reducer.wire.keys import split_run_id

# Bytes of records that a run forgets when it ends: a small model has no more.
FORGOTTEN_AT_ONCE: Final = 64 << 10
# Runs without members that one HELLO ends, if it replaces them.
REPLACED_AT_ONCE: Final = 64
# Open rounds of all the runs that end at once, or of one run: each takes 3 us, and so do as many
# bytes of records of its chunks and ranks; what a rank has sent of a chunk takes a part of that.
ROUNDS_AT_ONCE: Final = 2_048
PARTS_OF_ROUND: Final = 8
STREAMS_OF_ROUND: Final = 4
# To forget a run takes as long as to forget so many bytes of the records of its keys.
RUN: Final = 16 << 10
# Bytes of records that ended runs forget when a new run needs their room: as many as at a tick.
CUT_OFF_AT_ONCE: Final = 1 << 20


T = TypeVar("T")


def in_turns(of_jobs: Mapping[str, list[T]], turn: int) -> list[list[T]]:
    """What each job has: with each turn another job comes first."""
    lists = list(of_jobs.values())
    first = turn % max(1, len(lists))
    return lists[first:] + lists[:first]


class Ended:
    """The members of a run that is over; `room` is what it still has of the lane's memory.

    Until it `is_dropped` it has buffers, too: an allocation has failed.
    """

    __slots__ = ("is_dropped", "members", "room")

    def __init__(self, members: Members) -> None:
        self.members = members
        self.is_dropped = False
        self.room = members.run.ledger.window.reserve(members.run.world_size)


class Roster:
    """Sessions by their numbers, runs by (job, run id) and by number; what they may take together.

    `draining` is why nobody new is taken, if so.
    """

    def __init__(self, settings: LaneSettings) -> None:
        self.settings = settings
        self.budget = Budget(
            settings.budget, settings.credit, settings.job_budget, settings.records
        )
        self.connections = Connections()
        self.sessions: dict[int, Session] = {}
        self.forming: dict[FormingId, Forming] = {}
        self.runs: dict[tuple[str, str], Members] = {}
        self.runs_by_number: dict[int, Members] = {}
        self.ended: dict[int, Ended] = {}  # by number
        self._ended_now: list[Ended] = []  # since the last tick
        self._forgotten_first = 0  # the job that has the first turn of the next tick
        self.runs_ended = 0
        self.draining = ""
        self.errors = dict.fromkeys(ErrorCode, 0)  # sessions refused, and runs ended, so far

    def lose(self, session: int, reason: str, now: float) -> list[Output]:
        """The connection of a session has ended; where this raises it can be said again."""
        peer = self.sessions.get(session)
        if peer is None:
            return []
        if peer.forming is not None:
            self._unjoin(peer, peer.forming)
        if peer.state == SessionState.READY:
            self._note_loss(peer, now, reason)
        ended = self.ended.get(peer.run_number)
        members = self.runs_by_number.get(peer.run_number) if ended is None else ended.members
        if members is not None:
            members.sessions.discard(session)
        if ended is not None:
            self._maybe_close_room(ended)
        del self.sessions[session]
        if peer.named:
            self.connections.leave(peer.named)
        text = f"{peer}: the connection has ended: {reason}"
        return [Log(peer.run_number, logging.DEBUG, text, peer.about())]

    def _unjoin(self, peer: Session, forming: Forming) -> None:
        peer.forming = None
        if forming.sessions.get(peer.rank) != peer.id:
            return
        forming.leave(peer.rank)
        if not forming.sessions and self.forming.get(forming.id) is forming:
            del self.forming[forming.id]

    def _note_loss(self, peer: Session, now: float, reason: str) -> None:
        """A member's connection is gone; the others hear of it unless it is back in time."""
        members = self.runs.get((peer.run.name, peer.run.run_id)) if peer.run is not None else None
        if members is not None:
            members.lose(peer, now, reason)

    def refuse(self, peer: Session, error: ReductionError, now: float) -> list[Output]:
        """ERROR to one session, and the end of it."""
        if peer.state == SessionState.CLOSED:
            return []
        message = messages.Error(int(error.code), str(error)[:4_000])
        self.errors[error.code] += 1
        about = {**peer.about(), "code": error.code.name.lower()}
        log = Log(peer.run_number, logging.WARNING, f"{peer}: {error}", about)
        return [
            log,
            self.send(peer.run_number, message, (peer.id,)),
            *self.close(peer, str(error), now),
        ]

    def close(self, peer: Session, reason: str, now: float) -> list[Output]:
        if peer.state == SessionState.READY:
            self._note_loss(peer, now, reason)
        if peer.forming is not None:  # else the run could be complete with who is gone
            self._unjoin(peer, peer.forming)
        peer.state = SessionState.CLOSED
        return [Close(peer.run_number, peer.id, reason)]

    def fail(self, run: Run, code: ErrorCode, text: str, rank: int, reason: str) -> list[Output]:
        """The run is over for every rank, for one reason that all are told."""
        members = self.runs[run.name, run.run_id]
        error = messages.Error(int(code), text[:4_000], rank, reason[:1_000])
        self.errors[code] += 1
        about = {**run.about(), "rank": rank, "code": code.name.lower()}
        line = Log(run.number, logging.ERROR, f"job {run.title!r}: {text}", about)
        return [line, *self.end(members, error)]

    def fault(self, members: Members, error: Exception) -> list[Output]:
        """A bug of ours, or no memory, where the run was served: nobody knows what it lacks now.

        The run ends for every rank. The workers come back and send again what was not answered.
        """
        run = members.run
        text = fault_text(error)
        about = {**run.about(), "code": ErrorCode.INTERNAL.name.lower()}
        line = Log(run.number, logging.ERROR, f"job {run.title!r}: {text}", about, error)
        self.errors[ErrorCode.INTERNAL] += 1
        out: list[Output] = [line]
        try:
            out.append(run.seats.to_all(messages.Error(int(ErrorCode.INTERNAL), text[:4_000])))
        except Exception as worse:  # then the connections end without a word
            text = f"{text}; and no ERROR could be made: {worse}"
        return out + self._end(members, text)

    def refuse_all(self, forming: Forming, error: ReductionError, now: float) -> list[Output]:
        """The run cannot come about; whoever waits for it is told why."""
        all_ = [self.sessions[session] for session in forming.sessions.values()]
        peers = [peer for peer in all_ if peer.state != SessionState.CLOSED]
        self.errors[error.code] += len(peers)
        about = {"job": forming.job, "code": error.code.name.lower()}
        text = f"job {forming.title!r}, {len(peers)} workers: {error}"
        message = messages.Error(int(error.code), str(error)[:4_000])
        out: list[Output] = [
            Log(0, logging.WARNING, text, about),
            self.send(0, message, tuple(peer.id for peer in peers)),
        ]
        for peer in peers:
            out += self.close(peer, str(error), now)
        return out

    def break_up(self, forming: Forming, error: Exception, now: float) -> list[Output]:
        """A bug of ours, or no memory, while the run forms."""
        text = fault_text(error)
        line = Log(0, logging.ERROR, text, {"job": forming.job}, error)
        return [line, *self.refuse_all(forming, InternalError(text), now)]

    def begin(self, members: Members) -> None:
        self.runs[members.run.name, members.run.run_id] = members
        self.runs_by_number[members.run.number] = members

    def end(self, members: Members, error: messages.Error | None = None) -> list[Output]:
        """The run is over; its members are told why, if there is a reason."""
        run = members.run
        if error is not None:
            return [run.seats.to_all(error), *self._end(members, error.message)]
        text = f"job {run.name!r} run {run.run_id!r}: all have left"
        line = Log(run.number, logging.INFO, text, run.about())
        return [*self._end(members, "the run is over"), line]

    def _end(self, members: Members, reason: str) -> list[Output]:
        """Drop what the run had, and close its connections.

        The run gives its room back when the last connection has ended: until then connections may
        hold results. The keys keep their room until they are forgotten, a part at each tick.
        """
        run = members.run
        out: list[Output] = []
        self.runs_ended += 1
        ended = Ended(members)
        self.ended[run.number] = ended
        self._ended_now.append(ended)
        self.runs.pop((run.name, run.run_id), None)
        self.runs_by_number.pop(run.number, None)
        peers = [self.sessions[session] for session in members.sessions]
        closed = [peer for peer in peers if peer.state == SessionState.READY]
        for peer in closed:
            peer.state = SessionState.CLOSED
        out += [Close(run.number, peer.id, reason) for peer in closed]
        self._drop(ended, out)
        self._forget(ended, FORGOTTEN_AT_ONCE, out)
        return out

    def _drop(self, ended: Ended, out: list[Output]) -> None:
        out += ended.members.run.drop_all()
        ended.is_dropped = True

    def tell_again(self, out: list[Output]) -> None:
        """Tell of the latest ends whoever is still open; each tick does.

        What was to tell him is lost where something has failed after the run was dropped; for all
        others these outputs do nothing.
        """
        text = "internal error of the reducer: the run has ended, and its end could not be told"
        for ended in self._ended_now:
            number = ended.members.run.number
            peers = [
                peer
                for id_ in ended.members.sessions
                if (peer := self.sessions.get(id_)) is not None
            ]
            open_ = tuple(peer.id for peer in peers if peer.state != SessionState.LEFT)
            if open_:
                out.append(self.send(number, messages.Error(int(ErrorCode.INTERNAL), text), open_))
                out += [Close(number, session, text) for session in open_]
        self._ended_now.clear()

    def _forget(self, ended: Ended, most: int, out: list[Output]) -> int:
        """Forget keys of the run; the bytes of their records, `most` at most, and RUN.

        What fails here must keep neither the room of the run nor the others. So the rest of its
        buffers and records gives its room back at once, and its memory as soon as the lane looks
        for cycles.
        """
        took = RUN
        try:
            if not ended.is_dropped:
                self._drop(ended, out)
            took += ended.members.run.idle.take_apart(most)
            self._maybe_close_room(ended)
        except Exception as bug:
            self._give_up(ended, bug, out)
        return took

    def _give_up(self, ended: Ended, bug: Exception, out: list[Output]) -> None:
        run = ended.members.run
        run.idle.give_up()
        ended.is_dropped = True
        self._maybe_close_room(ended)
        text = f"job {run.title!r}: what an ended run had is given up: {fault_text(bug)}"
        out.append(Log(run.number, logging.ERROR, text, run.about(), bug))

    def _maybe_close_room(self, ended: Ended) -> None:
        """Give back what no connection holds, and no key that is not forgotten."""
        if ended.members.sessions or not ended.is_dropped:
            return
        run = ended.members.run
        room = 0 if run.idle.is_clean else run.records.used
        self.budget.give(run.name, ended.room - room)
        ended.room = room
        if not room:
            del self.ended[run.number]

    def forget_ended(self, most: int, out: list[Output]) -> None:
        """Forget keys of runs that have ended: `most` bytes of their records, and RUN for each.

        The jobs take turns at being the first, however many runs of one have ended before.
        """
        by_job: dict[str, list[Ended]] = {}
        for ended in self.ended.values():
            if ended.is_dropped and ended.members.run.idle.is_clean:  # only connections are left
                continue
            by_job.setdefault(ended.members.run.name, []).append(ended)
        took = 0
        self._forgotten_first += 1
        for of_one in in_turns(by_job, self._forgotten_first):
            for ended in of_one:
                if took >= most:
                    return
                took += self._forget(ended, most - took, out)

    def ended_of(self, job: str) -> list[Ended]:
        """Those that have room of the lane's memory."""
        return [ended for ended in self.ended.values() if ended.members.run.name == job]

    def cut_off(self, ended: Ended, most: int, out: list[Output]) -> int:
        """The job needs the room of an ended run of its own: what was not read there is lost.

        Of its keys only some are forgotten at once: returns the bytes of their records, `most` at
        most, and RUN. The others keep their part of the room, as in each run that has ended.
        """
        run = ended.members.run
        reason = "the run is over, and the next one needs its memory"
        out += [
            Close(run.number, session, reason, at_once=True) for session in ended.members.sessions
        ]
        ended.members.sessions.clear()
        return self._forget(ended, most, out)

    def end_deserted(self, job: str, run_id: str, now: float) -> list[Output]:
        """End some of the runs that this one replaces, those with the most room first."""
        replaced = sorted(self.deserted(job, run_id, now), key=_room, reverse=True)
        return [out for members in few(replaced, REPLACED_AT_ONCE) for out in self.end(members)]

    def deserted(self, job: str, run_id: str, now: float) -> list[Members]:
        """Runs of the job that nobody is in, and that this one replaces.

        A group does not replace the other groups of its run, whose ranks may be about to rejoin.
        """
        own, group = split_run_id(run_id)
        runs = [
            members
            for (name, id_), members in self.runs.items()
            if name == job and not (group and split_run_id(id_)[0] == own)
        ]
        return [members for members in runs if members.deserted(now)]

    def room_of_deserted(self, job: str, run_id: str, now: float) -> int:
        """Bytes that the runs which this one replaces still have of the lane's memory."""
        return sum(map(_room, self.deserted(job, run_id, now)))

    def shift_clocks(self, seconds: float, now: float) -> None:
        """This process stood still for so long: nobody is to blame for what it did not hear."""
        for peer in self.sessions.values():
            peer.opened_at = min(now, peer.opened_at + seconds)
            peer.heard_at = min(now, peer.heard_at + seconds)
        for members in self.runs.values():
            members.shift_clocks(seconds, now)

    def send(self, run: int, message: messages.Message, sessions: tuple[int, ...]) -> Send:
        return Send(run, sessions, control_frame(message, self.settings.crc32c), None, 0)


def few(runs: list[Members], most: int) -> list[Members]:
    """The first of them: as many as can end before other jobs have their turns."""
    rounds, found = 0, list[Members]()
    for members in runs[:most]:
        if rounds >= ROUNDS_AT_ONCE:
            break
        run = members.run
        rounds += run.records.of_rounds // ROUND + run.held.parts // PARTS_OF_ROUND
        rounds += run.stream_count // STREAMS_OF_ROUND
        found.append(members)
    return found


def _room(members: Members) -> int:
    return members.run.ledger.window.reserve(members.run.world_size)


def fault_text(error: Exception) -> str:
    return f"internal error of the reducer: {type(error).__name__}: {error}"
