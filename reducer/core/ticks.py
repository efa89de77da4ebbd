"""The work of a lane's ticks: heartbeats, silence, stalls, absent ranks, records to forget."""

from __future__ import annotations

import logging
from typing import Final

from reducer.core.members.forming import Forming
from reducer.core.members.joining import Joining
from reducer.core.members.past_runs import DESERTED
from reducer.core.members.roster import Members, Roster, in_turns
from reducer.core.members.run_endings import Endings, Refusals, few
from reducer.core.members.session import Session, SessionState
from reducer.core.rounds.key import entries_in
from reducer.core.surface.control_frames import payload_frame
from reducer.core.surface.events import Log, Output, Send
from reducer.wire.codes import MAX_HEARTBEAT_ENTRIES, MessageKind
from reducer.wire.errors import ProtocolError

# The most that one tick tells all runs, in stable positions sent. Preparing a position costs as
# much as sending it to RANKS_OF_PREPARING ranks, and a frame costs as much as POSITIONS_OF_FRAME
# positions. Runs that have more to tell, or have waited less, have their turn at the next ticks.
# Each run still gets a heartbeat of TOLD_ANYWAY positions in every interval, because workers
# suspect a lane that sends nothing.
MOST_TOLD: Final = 65_536
RANKS_OF_PREPARING: Final = 16
POSITIONS_OF_FRAME: Final = 256
TOLD_ANYWAY: Final = 16


class Beats:
    """Sends heartbeats. `_told_at`: when each job was last told stable positions."""

    def __init__(
        self, roster: Roster, endings: Endings, refusals: Refusals, joining: Joining
    ) -> None:
        self._roster = roster
        self._endings = endings
        self._refusals = refusals
        self._joining = joining
        self._settings = roster.settings
        self._next_beat = 0.0  # of the forming runs
        self._told_at: dict[str, float] = {}

    def beat(self, now: float, out: list[Output]) -> None:
        may_tell = MOST_TOLD
        for members in self._due(now):
            try:
                told = self._beat_run(members, now, may_tell, out)
                if told and may_tell > 0:
                    self._told_at[members.run.name] = now
                may_tell -= told
            except Exception as bug:
                out += self._endings.fault(members, bug)
        if now >= self._next_beat:
            self._next_beat = now + self._settings.heartbeat
            self._beat_forming(now, out)

    def _due(self, now: float) -> list[Members]:
        """The runs whose heartbeat is due, in their order.

        First comes one run of each job, the run that has waited longest; then the next run of each
        job. The job that was told most recently comes last.
        """
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
        """Send the run's stable positions, or an empty HEARTBEAT. Returns how much of MOST_TOLD
        this took.
        """
        run, interval = members.run, self._settings.heartbeat
        if may_tell <= 0 and run.positions.has_news and now < members.beat_at + interval:
            return 0
        each = RANKS_OF_PREPARING + len(run.seats.present)
        most = TOLD_ANYWAY
        if may_tell > 0:
            most = min(max(POSITIONS_OF_FRAME, MOST_TOLD // each), MAX_HEARTBEAT_ENTRIES)
        has_news, told = run.positions.has_news, 0
        while has_news and (not told or told < may_tell):
            beat = run.positions.beat(most)
            out.append(beat)
            told += max(POSITIONS_OF_FRAME, entries_in(beat.frame)) * each
            has_news = run.positions.has_news
        if not told:
            out.append(run.seats.empty_heartbeat())
        members.beat_at = now
        if not has_news:
            members.next_beat += interval * ((now - members.next_beat) // interval + 1)
        elif may_tell > 0:
            members.next_beat = now  # due again, after runs that have waited longer
        return told

    def _beat_forming(self, now: float, out: list[Output]) -> None:
        for forming in list(self._roster.forming.values()):
            try:
                out.append(self._beat_of(forming))
            except Exception as bug:
                out += self._refusals.break_up(forming, bug, now)

    def _beat_of(self, forming: Forming) -> Send:
        """PENDING if the set of absent ranks has changed, else an empty HEARTBEAT."""
        sessions = tuple(forming.sessions.values())
        if not forming.changed:
            heartbeat = payload_frame(MessageKind.HEARTBEAT, b"", self._settings.crc32c)
            return Send(0, sessions, heartbeat, None, 0)
        forming.changed = False
        return self._joining.pending(forming, sessions)


def _next_beat(members: Members) -> float:
    return members.next_beat


# How many seconds beyond Members.silence the lane keeps an idle key. Until then, a rank on a dead
# connection may have missed a stable position. A rank announces a key again after the key was idle
# for 1 s.
KEY_IDLE_SECONDS: Final = 7.0
# A tick is late if it comes this many seconds after the last one: the process was stopped. The
# engine has the same limit.
LATE_TICK: Final = 0.5
# Limits of one tick for work that nobody waits for; the rest is done at the next ticks.
# Bytes of records of keys that are idle, or whose run or stream has ended: 0.5 ms.
MOST_IDLE: Final = 1 << 20
# Deserted runs that are ended.
MOST_ENDED: Final = 16
# STALL frames and log lines about stalled rounds.
MOST_STALLED: Final = 32
# Connections that are refused for lack of a HELLO. A log line takes 0.1 to 0.2 ms.
MOST_REFUSED: Final = 16
# Ranks that are sent ABSENT. A run gets at most one ABSENT in a heartbeat interval.
MOST_TOLD_ABSENCE: Final = 1_024


class Ticks:
    """The work of a tick. `_sweeps` counts the ticks that have looked for idle keys."""

    def __init__(self, roster: Roster, endings: Endings, refusals: Refusals, beats: Beats) -> None:
        self._roster = roster
        self._endings = endings
        self._refusals = refusals
        self._beats = beats
        self._settings = roster.settings
        self._ticked_at = 0.0
        self._sweeps = 0

    def tick(self, now: float) -> list[Output]:
        if now - self._ticked_at > LATE_TICK:
            self._roster.shift_clocks(now - self._ticked_at, now)
        self._ticked_at = now
        out: list[Output] = []
        self._endings.tell_again(out)
        self._endings.past.tick(now)
        self._beats.beat(now, out)
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
                out += self._refusals.broken(peer.id, bug, now)
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
                if members.run.is_behind:  # the session that had the turns may have ended
                    members.run.seats.ask_for_turns(out)
            except Exception as bug:
                out += self._endings.fault(members, bug)
        self._end_deserted(few(deserted, MOST_ENDED), out)

    def _forget_idle(self, now: float, out: list[Output]) -> None:
        """Forget records of about MOST_IDLE bytes. Each tick begins with another job and another
        run.
        """
        self._roster.ended.forget_some(MOST_IDLE, out)
        looked = 0
        for members in self._to_sweep():
            try:
                looked += self._forget_idle_of(members, now)
            except Exception as bug:
                out += self._endings.fault(members, bug)
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
        if not members.all_connected:  # a rank that reconnects is told of idle keys
            return idle.take_apart(MOST_IDLE)
        return idle.forget(now - members.silence - KEY_IDLE_SECONDS, MOST_IDLE)

    def _end_deserted(self, runs: list[Members], out: list[Output]) -> None:
        for members in runs:
            run = members.run
            try:
                text = f"job {run.name!r} run {run.run_id!r}: nobody has come back"
                line = Log(run.number, logging.WARNING, text, run.about())
                out += [*self._endings.end(members, None, DESERTED), line]
            except Exception as bug:
                out += self._endings.fault(members, bug)

    def _tell_absence(self, members: Members, now: float, out: list[Output]) -> int:
        """Send ABSENT to all ranks of the run if it has changed. Returns the number of ranks."""
        absence = members.absence(now - self._settings.absent_after)
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
                out += self._endings.fault(members, bug)

    def _is_overdue(self, peer: Session, now: float) -> bool:
        """Whether the session has not said HELLO in time."""
        late = now - peer.opened_at > self._settings.hello_deadline
        return late and peer.state == SessionState.NEW

    def _refuse_overdue(self, peer: Session, now: float) -> list[Output]:
        error = ProtocolError(f"no HELLO within {self._settings.hello_deadline:g} s")
        return self._refusals.refuse(peer, error, now)

    def _check_session(self, peer: Session, now: float) -> list[Output]:
        silent = now - peer.heard_at
        if peer.state == SessionState.READY and silent > peer.silence:
            # No ERROR: perhaps only this lane hears nothing from the worker.
            text = f"it sent nothing for {silent:.1f} s"
            return self._refusals.close(peer, text, now - self._settings.absent_after)
        if peer.state == SessionState.ASKING and silent > peer.silence:
            return self._refusals.close(peer, f"it called nothing for {silent:.0f} s", now)
        if peer.state == SessionState.LEFT and silent > peer.silence:
            return self._refusals.close(peer, "said BYE and did not close", now)
        return []


def _absence_from(members: Members) -> float:
    return members.absence_from


def _next_stall(members: Members) -> float:
    return members.next_stall
