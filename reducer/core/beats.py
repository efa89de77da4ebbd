"""HEARTBEATs of a lane: what became stable, to each run in its turn."""

from __future__ import annotations

from typing import Final

from reducer.core.members.endings import Endings
from reducer.core.members.forming import Forming
from reducer.core.members.joining import Joining
from reducer.core.members.members import Members
from reducer.core.members.refusals import Refusals
from reducer.core.members.roster import Roster
from reducer.core.rounds.untold import entries_in
from reducer.core.surface.events import Output, Send
from reducer.core.surface.frames import payload_frame
from reducer.wire.codes import MAX_HEARTBEAT_ENTRIES, MessageKind

# What a tick tells all runs, in stable positions sent: to make one ready costs as much as to send
# it to MADE ranks, and a frame as much as LEAST_TOLD positions. Runs that have more to tell, or
# have waited less, have their turn at the next ticks. But each run has a heartbeat in every
# interval, of TOLD_ANYWAY positions: workers give up a lane that they do not hear.
MOST_TOLD: Final = 65_536
MADE: Final = 16
LEAST_TOLD: Final = 256
TOLD_ANYWAY: Final = 16


class Beats:
    """`_told_at`: when there was news for each job."""

    def __init__(
        self, roster: Roster, endings: Endings, refusals: Refusals, joining: Joining
    ) -> None:
        self._roster = roster
        self._endings = endings
        self._refusals = refusals
        self._joining = joining
        self._settings = roster.settings
        self._next_beat = 0.0  # of the runs that form
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
                out += self._refusals.break_up(forming, bug, now)

    def _beat_of(self, forming: Forming) -> Send:
        """Whom the run waits for, where that has changed."""
        sessions = tuple(forming.sessions.values())
        if not forming.changed:
            heartbeat = payload_frame(MessageKind.HEARTBEAT, b"", self._settings.crc32c)
            return Send(0, sessions, heartbeat, None, 0)
        forming.changed = False
        return self._joining.pending(forming, sessions)


def _next_beat(members: Members) -> float:
    return members.next_beat
