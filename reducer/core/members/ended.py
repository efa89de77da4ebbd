"""Runs that are over, and what they still have of the lane's memory."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Final, TypeVar

from reducer.core.limits.budget import Budget
from reducer.core.members.members import Members
from reducer.core.surface.events import Close, Log, Output

# To forget a run takes as long as to forget so many bytes of the records of its keys.
RUN: Final = 16 << 10

T = TypeVar("T")


def in_turns(of_jobs: Mapping[str, list[T]], turn: int) -> list[list[T]]:
    """What each job has: with each turn another job comes first."""
    lists = list(of_jobs.values())
    first = turn % max(1, len(lists))
    return lists[first:] + lists[:first]


def fault_text(error: Exception) -> str:
    return f"internal error of the reducer: {type(error).__name__}: {error}"


class Ended:
    """The members of a run that is over; `room` is what it still has of the lane's memory.

    Until it `is_dropped` it has buffers, too: an allocation has failed.
    """

    __slots__ = ("is_dropped", "members", "room")

    def __init__(self, members: Members) -> None:
        self.members = members
        self.is_dropped = False
        self.room = members.run.ledger.window.reserve(members.run.world_size)


class EndedRuns:
    """By number. A run gives its room back when the last connection has ended, as until then
    connections may hold results; its keys keep their room until they are forgotten.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._runs: dict[int, Ended] = {}
        self._forgotten_first = 0  # the job that has the first turn of the next tick

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Ended]:
        return iter(self._runs.values())

    def get(self, number: int) -> Ended | None:
        return self._runs.get(number)

    def add(self, members: Members) -> Ended:
        """The run is over; nothing of it is dropped yet."""
        ended = self._runs[members.run.number] = Ended(members)
        return ended

    def of(self, job: str) -> list[Ended]:
        """Those that have room of the lane's memory."""
        return [ended for ended in self._runs.values() if ended.members.run.name == job]

    def drop(self, ended: Ended, out: list[Output]) -> None:
        out += ended.members.run.drop_all()
        ended.is_dropped = True

    def forget_some(self, most: int, out: list[Output]) -> None:
        """Forget keys of runs that have ended: `most` bytes of their records, and RUN for each.

        The jobs take turns at being the first, however many runs of one have ended before.
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
        """Forget keys of the run; the bytes of their records, `most` at most, and RUN.

        What fails here must keep neither the room of the run nor the others. So the rest of its
        buffers and records gives its room back at once, and its memory as soon as the lane looks
        for cycles.
        """
        took = RUN
        try:
            if not ended.is_dropped:
                self.drop(ended, out)
            took += ended.members.run.idle.take_apart(most)
            self.maybe_close_room(ended)
        except Exception as bug:
            self._give_up(ended, bug, out)
        return took

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
        return self.forget(ended, most, out)

    def maybe_close_room(self, ended: Ended) -> None:
        """Give back what no connection holds, and no key that is not forgotten."""
        if ended.members.sessions or not ended.is_dropped:
            return
        run = ended.members.run
        room = 0 if run.idle.is_clean else run.records.used
        self._budget.give(run.name, ended.room - room)
        ended.room = room
        if not room:
            del self._runs[run.number]

    def _give_up(self, ended: Ended, bug: Exception, out: list[Output]) -> None:
        run = ended.members.run
        run.idle.give_up()
        ended.is_dropped = True
        self.maybe_close_room(ended)
        text = f"job {run.title!r}: what an ended run had is given up: {fault_text(bug)}"
        out.append(Log(run.number, logging.ERROR, text, run.about(), bug))
