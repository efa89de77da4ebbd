"""How runs end: failed, faulty, over."""

from __future__ import annotations

import logging
from typing import Final

from reducer.core.limits.records import ROUND
from reducer.core.members.ended import Ended, fault_text
from reducer.core.members.members import Members
from reducer.core.members.roster import Roster, room_of
from reducer.core.members.session import SessionState
from reducer.core.runs.run import Run
from reducer.core.surface.buffer import Buffer
from reducer.core.surface.events import NOTHING, Close, Free, Log, Output
from reducer.wire import messages
from reducer.wire.codes import ErrorCode

# Bytes of records that a run forgets when it ends: a small model has no more.
FORGOTTEN_AT_ONCE: Final = 64 << 10
# Runs without members that one HELLO ends, if it replaces them.
REPLACED_AT_ONCE: Final = 64
# Open rounds of all the runs that end at once, or of one run: each takes 3 us, and so do as many
# bytes of records of its chunks and ranks; what a rank has sent of a chunk takes a part of that.
ROUNDS_AT_ONCE: Final = 2_048
PARTS_OF_ROUND: Final = 8
STREAMS_OF_ROUND: Final = 4


class Endings:
    """`runs_ended` counts the runs that are over; `errors` counts, by code, sessions that were
    refused and runs that were ended.
    """

    def __init__(self, roster: Roster) -> None:
        self.runs_ended = 0
        self.errors = dict.fromkeys(ErrorCode, 0)
        self._roster = roster
        self._ended_now: list[Ended] = []  # since the last tick

    def fail(self, run: Run, code: ErrorCode, text: str, rank: int, reason: str) -> list[Output]:
        """The run is over for every rank, for one reason that all are told."""
        members = self._roster.runs[run.name, run.run_id]
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

    def fault_in(
        self, run: int, error: Exception, buffer: Buffer | None, out: list[Output]
    ) -> None:
        """A bug of ours while the run's state changed. `buffer` may be the run's or the event's."""
        members = self._roster.runs_by_number.get(run)
        if members is None:
            out.append(Log(0, logging.ERROR, fault_text(error), NOTHING, error))
        else:
            out += self.fault(members, error)
        given = [o.buffers for o in out if isinstance(o, Free)]
        if buffer is not None and not any(buffer is b for buffers in given for b in buffers):
            out.append(Free(0, (buffer,)))

    def end(self, members: Members, error: messages.Error | None = None) -> list[Output]:
        """The run is over; its members are told why, if there is a reason."""
        run = members.run
        if error is not None:
            return [run.seats.to_all(error), *self._end(members, error.message)]
        text = f"job {run.name!r} run {run.run_id!r}: all have left"
        line = Log(run.number, logging.INFO, text, run.about())
        return [*self._end(members, "the run is over"), line]

    def end_deserted(self, job: str, run_id: str, now: float) -> list[Output]:
        """End some of the runs that this one replaces, those with the most room first."""
        replaced = sorted(self._roster.deserted(job, run_id, now), key=room_of, reverse=True)
        return [out for members in few(replaced, REPLACED_AT_ONCE) for out in self.end(members)]

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
                if (peer := self._roster.sessions.get(id_)) is not None
            ]
            open_ = tuple(peer.id for peer in peers if peer.state != SessionState.LEFT)
            if open_:
                out.append(
                    self._roster.send(number, messages.Error(int(ErrorCode.INTERNAL), text), open_)
                )
                out += [Close(number, session, text) for session in open_]
        self._ended_now.clear()

    def _end(self, members: Members, reason: str) -> list[Output]:
        """Drop what the run had, and close its connections.

        The run gives its room back when the last connection has ended: until then connections may
        hold results. The keys keep their room until they are forgotten, a part at each tick.
        """
        run = members.run
        out: list[Output] = []
        self.runs_ended += 1
        ended = self._roster.ended.add(members)
        self._ended_now.append(ended)
        self._roster.remove(members)
        peers = [self._roster.sessions[session] for session in members.sessions]
        closed = [peer for peer in peers if peer.state == SessionState.READY]
        for peer in closed:
            peer.state = SessionState.CLOSED
        out += [Close(run.number, peer.id, reason) for peer in closed]
        self._roster.ended.drop(ended, out)
        self._roster.ended.forget(ended, FORGOTTEN_AT_ONCE, out)
        return out


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
