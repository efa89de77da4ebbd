"""Who is on a lane: its sessions, and the runs that form and live on it."""

from __future__ import annotations

from reducer.core.limits.budget import Budget
from reducer.core.limits.quotas import Connections
from reducer.core.members.ended import EndedRuns
from reducer.core.members.forming import Forming, FormingId
from reducer.core.members.members import Members
from reducer.core.members.session import Session
from reducer.core.surface.events import Send
from reducer.core.surface.frames import control_frame
from reducer.core.surface.settings import LaneSettings
from reducer.wire import messages
from reducer.wire.keys import split_run_id


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
        self.ended = EndedRuns(self.budget)
        self.draining = ""

    def add(self, members: Members) -> None:
        self.runs[members.run.name, members.run.run_id] = members
        self.runs_by_number[members.run.number] = members

    def remove(self, members: Members) -> None:
        """The run is over."""
        run = members.run
        self.runs.pop((run.name, run.run_id), None)
        self.runs_by_number.pop(run.number, None)

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
        return sum(map(room_of, self.deserted(job, run_id, now)))

    def shift_clocks(self, seconds: float, now: float) -> None:
        """This process stood still for so long: nobody is to blame for what it did not hear."""
        for peer in self.sessions.values():
            peer.opened_at = min(now, peer.opened_at + seconds)
            peer.heard_at = min(now, peer.heard_at + seconds)
        for members in self.runs.values():
            members.shift_clocks(seconds, now)

    def send(self, run: int, message: messages.Message, sessions: tuple[int, ...]) -> Send:
        return Send(run, sessions, control_frame(message, self.settings.crc32c), None, 0)


def room_of(members: Members) -> int:
    """What the run has reserved."""
    return members.run.ledger.window.reserve(members.run.world_size)
