"""The sessions of a lane, its forming runs, the members of its runs, and its ended runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Final, TypeVar

from reducer.core.limits.budget import Budget
from reducer.core.limits.quotas import Connections
from reducer.core.members.forming import Forming, FormingId
from reducer.core.members.session import Session, SessionState
from reducer.core.runs.run import Run
from reducer.core.surface.control_frames import control_frame
from reducer.core.surface.events import Close, Log, Output, Send
from reducer.core.surface.settings import LaneSettings
from reducer.wire import messages
from reducer.wire.codes import MAX_CONTROL_ITEMS
from reducer.wire.keys import split_run_id
from reducer.wire.messages import Absent

MAX_ABSENT: Final = 64


class Members:
    """The members of `run`; `left` are the members that said BYE.

    `sessions`: all connections of the run that have not ended, including replaced ones.
    """

    __slots__ = (
        "_disconnected", "_last_disconnect", "_told", "absence_from", "beat_at", "began_at",
        "digest_every", "incarnations", "last", "left", "losses", "next_beat", "next_stall", "run",
        "sessions", "silence",
    )  # fmt: skip

    def __init__(
        self,
        run: Run,
        incarnations: dict[int, bytes],
        digest_every: int,
        silence: float,
        now: float,
    ) -> None:
        self.run = run
        self.incarnations = incarnations
        self.digest_every = digest_every  # passed on to all ranks, not used here
        self.silence = silence  # seconds without a byte before a rank's session is closed
        # The session of each rank, open or not.
        self.last: list[int | None] = [None] * run.world_size
        self.left: set[int] = set()
        # The ranks that are out of the run, in order: when, and why as far as this lane knows.
        self.losses: list[tuple[int, float, str]] = []
        self.sessions: set[int] = set()
        self.began_at = now
        self.next_stall = now
        self.next_beat = now
        self.beat_at = now  # when the last heartbeat was sent
        self.absence_from = now  # when the next ABSENT may be sent
        # The ranks without a connection: since when, and why.
        self._disconnected: dict[int, tuple[float, str]] = {}
        self._last_disconnect = 0.0
        self._told: tuple[int, ...] = ()

    def seat(self, peer: Session, rank: int) -> None:
        """Note that the rank is connected, on this session."""
        self.sessions.add(peer.id)  # first: if this raises, nothing has changed
        peer.move(SessionState.READY)
        peer.rank, peer.run, peer.forming = rank, self.run, None
        peer.silence = self.silence
        self.run.seats.sessions[rank] = self.last[rank] = peer.id
        self._disconnected.pop(rank, None)

    def leave(self, peer: Session) -> None:
        peer.move(SessionState.LEFT)
        self.left.add(peer.rank)
        self.run.seats.sessions[peer.rank] = None
        if self.run.seats.departed is None:
            self.run.seats.departed = peer.rank

    def disconnect(self, peer: Session, since: float, reason: str) -> None:
        """The connection of a member has ended. The member may reconnect."""
        if peer.rank not in self.run.view.out and self.run.seats.sessions[peer.rank] == peer.id:
            # First: if this raises, `Refusals.disconnected` is called again.
            self._disconnected[peer.rank] = (since, reason)
            self._last_disconnect = max(self._last_disconnect, since)
            self.run.seats.sessions[peer.rank] = None

    def shift_clocks(self, seconds: float, now: float) -> None:
        """Shift deadlines: the lane was stopped for `seconds`, and no worker could reconnect."""
        for rank, (since, reason) in self._disconnected.items():
            self._disconnected[rank] = (min(now, since + seconds), reason)
        self._last_disconnect = min(now, self._last_disconnect + seconds)

    @property
    def all_connected(self) -> bool:
        """Whether every rank that has not left is connected."""
        return not self._disconnected

    def put_out(self, now: float) -> list[int]:
        """Forget the ranks that the view of the run excludes. Returns their sessions."""
        sessions = []
        known = {rank for rank, _, _ in self.losses}
        for _, rank in self.run.view.lost:
            if rank in known:
                continue
            reason = "left" if rank in self.left else "taken for lost by the others"
            gone = self._disconnected.pop(rank, None)
            self.losses.append((rank, now, reason if gone is None else gone[1]))
            self.left.discard(rank)
            session, self.run.seats.sessions[rank] = self.run.seats.sessions[rank], None
            if session is not None:
                sessions.append(session)
        return sessions

    @property
    def all_left(self) -> bool:
        """Whether every member has said BYE."""
        return len(self.left) == self.run.view.count

    def deserted(self, before: float) -> bool:
        """Whether no member has been connected since `before`."""
        gone = len(self._disconnected) + len(self.left) == self.run.view.count
        return gone and self._last_disconnect <= before

    def absent(self, before: float) -> Absent:
        """The ranks without a connection since `before`, with reasons, and the ranks that have
        left.
        """
        gone = tuple((rank, self._disconnected[rank][1][:200]) for rank in self._gone(before))
        left = tuple(sorted(self.left)[:MAX_CONTROL_ITEMS])
        return Absent(gone, left, len(self.left))

    def absence(self, before: float) -> Absent | None:
        """Like `absent`; None if the ranks are the same as in the last call."""
        told = (*self._gone(before), -1, len(self.left))
        if told == self._told or (not self._told and told == (-1, 0)):
            return None
        self._told = told
        return self.absent(before)

    def _gone(self, before: float) -> list[int]:
        """The ranks without a connection since `before`, MAX_ABSENT of them at most.

        Each tick asks, and thousands of ranks may be absent for an hour.
        """
        gone = []
        for rank, (since, _) in self._disconnected.items():
            if since <= before:
                gone.append(rank)
                if len(gone) == MAX_ABSENT:
                    break
        return gone


# The time that forgetting a run takes, in bytes of records of keys.
RUN: Final = 16 << 10

T = TypeVar("T")


def in_turns(of_jobs: Mapping[str, list[T]], turn: int) -> list[list[T]]:
    """The lists of all jobs. In each turn the list of another job comes first."""
    lists = list(of_jobs.values())
    first = turn % max(1, len(lists))
    return lists[first:] + lists[:first]


def fault_text(error: Exception) -> str:
    return f"internal error of the reducer: {type(error).__name__}: {error}"


class Ended:
    """The members of an ended run; `room` is the memory that the run still reserves.

    `room_for_chunks` is the part of `room` that is for chunks. While `is_dropped` is False, the run
    has buffers: an allocation has failed.
    """

    __slots__ = ("is_dropped", "members", "room", "room_for_chunks")

    def __init__(self, members: Members) -> None:
        self.members = members
        self.is_dropped = False
        limits, world_size = members.run.accounts.limits, members.run.world_size
        self.room = limits.reserve(world_size)
        self.room_for_chunks = limits.room_for_chunks(world_size)


class EndedRuns:
    """The ended runs by number, until their memory is given back.

    A run gives its memory back when its last connection has ended, as connections may hold results
    until then. Keys keep their part of the memory until they are forgotten.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._runs: dict[int, Ended] = {}
        self._forgotten_first = 0  # which job has the first turn of a tick

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Ended]:
        return iter(self._runs.values())

    def get(self, number: int) -> Ended | None:
        return self._runs.get(number)

    def add(self, members: Members) -> Ended:
        """Add a run that has ended; its state is not dropped yet."""
        ended = self._runs[members.run.number] = Ended(members)
        return ended

    def of(self, job: str) -> list[Ended]:
        """The ended runs of the job, which still reserve memory."""
        return [ended for ended in self._runs.values() if ended.members.run.name == job]

    def drop(self, ended: Ended, out: list[Output]) -> None:
        out += ended.members.run.drop_all()
        ended.is_dropped = True

    def forget_some(self, most: int, out: list[Output]) -> None:
        """Forget keys of ended runs: about `most` bytes of records, and each run counts as RUN
        bytes.

        In each tick another job has the first turn, so the ended runs of one job do not delay the
        others.
        """
        by_job: dict[str, list[Ended]] = {}
        for ended in self._runs.values():
            if ended.is_dropped and ended.members.run.idle.is_clean:  # only connections are left
                continue
            by_job.setdefault(ended.members.run.name, []).append(ended)
        took = 0
        self._forgotten_first += 1
        for of_one in in_turns(by_job, self._forgotten_first):
            for ended in of_one:
                if took >= most:
                    return
                took += self.forget(ended, most - took, out)

    def forget(self, ended: Ended, most: int, out: list[Output]) -> int:
        """Forget keys of the run. Returns the bytes of their records, `most` at most, plus RUN.

        An error here must not keep the memory of this run reserved or hinder other runs. The rest
        of the run is then dropped as it is: its reservation ends at once, and its memory is freed
        when the lane looks for cycles.
        """
        took = RUN
        try:
            if not ended.is_dropped:
                self.drop(ended, out)
            took += ended.members.run.idle.take_apart(most)
            self.maybe_close_room(ended)
        except Exception as bug:
            self._drop_after_fault(ended, bug, out)
        return took

    def cut_off(self, ended: Ended, most: int, out: list[Output]) -> int:
        """A new run of the job needs the memory: close the ended run's connections at once.

        Results that were not read there are lost. Some keys are forgotten at once; returns the
        bytes as `forget` does. The other keys keep their part of the memory, as in each run that
        has ended.
        """
        run = ended.members.run
        reason = "the run is over, and the next one needs its memory"
        out += [
            Close(run.number, session, reason, at_once=True) for session in ended.members.sessions
        ]
        ended.members.sessions.clear()
        return self.forget(ended, most, out)

    def maybe_close_room(self, ended: Ended) -> None:
        """Give back the memory that neither connections nor keys of the run need."""
        if ended.members.sessions or not ended.is_dropped:
            return
        run = ended.members.run
        room = 0 if run.idle.is_clean else run.records.used
        self._budget.give(run.name, ended.room - room, ended.room_for_chunks)
        ended.room, ended.room_for_chunks = room, 0
        if not room:
            del self._runs[run.number]

    def _drop_after_fault(self, ended: Ended, bug: Exception, out: list[Output]) -> None:
        run = ended.members.run
        run.idle.drop_ended()
        ended.is_dropped = True
        self.maybe_close_room(ended)
        text = f"job {run.title!r}: the rest of an ended run is dropped: {fault_text(bug)}"
        out.append(Log(run.number, logging.ERROR, text, run.about(), bug))


class Roster:
    """Sessions by number, runs by (job, run id) and by number, and their common limits.

    `draining`: why the lane takes no new run; empty while it does.
    """

    def __init__(self, settings: LaneSettings) -> None:
        self.settings = settings
        self.budget = Budget(
            settings.budget, settings.credit, settings.job_budget, settings.records
        )
        self.connections = Connections()
        self.askers = Connections()  # of the registry
        self.sessions: dict[int, Session] = {}
        self.forming: dict[FormingId, Forming] = {}
        self.runs: dict[tuple[str, str], Members] = {}
        self.runs_by_number: dict[int, Members] = {}
        self.ended = EndedRuns(self.budget)
        self.draining = ""

    def add(self, members: Members) -> None:
        self.runs[members.run.name, members.run.run_id] = members
        self.runs_by_number[members.run.number] = members

    def remove(self, members: Members) -> None:
        """Remove a run that is over."""
        run = members.run
        self.runs.pop((run.name, run.run_id), None)
        self.runs_by_number.pop(run.number, None)

    def deserted(self, job: str, run_id: str, now: float) -> list[Members]:
        """The deserted runs of the job that run `run_id` replaces.

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
        """The bytes that are reserved by the deserted runs which run `run_id` replaces."""
        return sum(map(room_of, self.deserted(job, run_id, now)))

    def shift_clocks(self, seconds: float, now: float) -> None:
        """The process was stopped for `seconds`: that time does not count as silence."""
        for peer in self.sessions.values():
            peer.opened_at = min(now, peer.opened_at + seconds)
            peer.heard_at = min(now, peer.heard_at + seconds)
        for members in self.runs.values():
            members.shift_clocks(seconds, now)

    def send(self, run: int, message: messages.Message, sessions: tuple[int, ...]) -> Send:
        return Send(run, sessions, control_frame(message, self.settings.crc32c), None, 0)


def room_of(members: Members) -> int:
    """The bytes that the run has reserved."""
    return members.run.accounts.limits.reserve(members.run.world_size)
