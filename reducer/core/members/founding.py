"""How a run that forms becomes complete: its room is reserved, and its ranks are welcomed."""

from __future__ import annotations

import logging
from typing import Final

from reducer.core.limits.budget import Window
from reducer.core.members.ended import fault_text
from reducer.core.members.endings import Endings
from reducer.core.members.forming import Forming
from reducer.core.members.members import Members
from reducer.core.members.refusals import Refusals
from reducer.core.members.roster import Roster
from reducer.core.rounds.route import Route
from reducer.core.runs.run import Run
from reducer.core.runs.terms import Terms
from reducer.core.surface.events import Log, Output, Send
from reducer.wire import messages
from reducer.wire.errors import PEER_ERRORS, InternalError, JoinError, QuotaError

PARTS_OF_BEAT: Final = 5  # ticks of a heartbeat
# Bytes of records that ended runs forget when a new run needs their room: as many as at a tick.
CUT_OFF_AT_ONCE: Final = 1 << 20


class Founding:
    """`_runs` counts the runs so far: each has the number that it was at."""

    def __init__(self, roster: Roster, endings: Endings, refusals: Refusals) -> None:
        self._roster = roster
        self._endings = endings
        self._refusals = refusals
        self._settings = roster.settings
        self._runs = 0

    def complete(self, forming: Forming, now: float) -> list[Output]:
        """All ranks are here: reserve the room, and welcome them."""
        out = self._endings.end_deserted(forming.job, forming.run_id, now)
        try:
            members = self._found(forming, now, out)
        except PEER_ERRORS as error:
            return out + self._refusals.refuse_all(forming, error, now)
        except Exception as bug:
            return out + self._refusals.break_up(forming, bug, now)
        try:
            del self._roster.forming[forming.id]
            self._roster.add(members)
            return out + self._begin(members, forming, now)
        except Exception as fault:
            out += self._endings.fault(members, fault)
            return out + self._refusals.refuse_all(forming, InternalError(fault_text(fault)), now)

    def welcome(self, members: Members, sessions: tuple[int, ...]) -> Send:
        settings, run, route = self._settings, members.run, members.run.route
        moved = route.number > 0
        welcome = messages.Welcome(
            run.run_id, run.terms.slot, len(route.live), settings.lanes, settings.lane,
            settings.incarnation, run.world_size, run.seats.epoch, route.number, run.terms.table,
            run.ledger.window.credit, run.ledger.window.grant, int(settings.heartbeat * 1000),
            instance=run.number,
            since=route.since if moved else (),
            live=route.live if moved else (),
            lanes_by_slot=route.lanes if moved else (),
            digest_every=members.digest_every,
            worker_silence_ms=round(min(members.silence, 3_600) * 1000),
        )  # fmt: skip
        return self._roster.send(run.number, welcome, sessions)

    def _begin(self, members: Members, forming: Forming, now: float) -> list[Output]:
        run = members.run
        # Each beat may have the positions of all keys of its run: not all runs at one tick.
        part = run.number % PARTS_OF_BEAT / PARTS_OF_BEAT
        members.next_beat = now + part * self._settings.heartbeat
        for rank, session in forming.sessions.items():
            members.seat(self._roster.sessions[session], rank)
        text = f"job {run.name!r} run {run.run_id!r}: {run.world_size} workers joined"
        welcome = self.welcome(members, tuple(forming.sessions.values()))
        return [welcome, Log(run.number, logging.INFO, text, run.about())]

    def _found(self, forming: Forming, now: float, out: list[Output]) -> Members:
        """The run with its room; nothing is reserved where this raises."""
        settings, budget = self._settings, self._roster.budget
        if (forming.job, forming.run_id) in self._roster.runs:
            raise JoinError(f"run {forming.run_id!r} of job {forming.job!r} is in use")
        window = self._reserve(forming, now, out)
        try:
            # Until a ROUTE says more, the lanes of the other slots do not matter.
            route = Route.first((settings.lanes,) * forming.reducers)
            self._runs += 1
            terms = Terms(
                self._runs, forming.job, forming.run_id, forming.slot, forming.world_size,
                forming.table,
            )  # fmt: skip
            run = Run(terms, settings, route, window)
            silence = forming.worker_silence_ms / 1000 or settings.silence
            return Members(run, forming.incarnations, forming.digest_every, silence, now)
        except Exception:
            budget.close(forming.job, window, forming.world_size)
            raise

    def _reserve(self, forming: Forming, now: float, out: list[Output]) -> Window:
        """Reserve room for the run; if too little is free, ended runs of the job give theirs up.

        Their keys keep room until ticks forget these keys, all but CUT_OFF_AT_ONCE bytes.
        """
        left = CUT_OFF_AT_ONCE
        for ended in self._roster.ended.of(forming.job):
            if left <= 0 and not ended.members.sessions:
                continue
            try:
                return self._open(forming)
            except QuotaError:
                left -= self._roster.ended.cut_off(ended, left, out)
        try:
            return self._open(forming)
        except QuotaError as error:
            kept = sum(ended.room for ended in self._roster.ended.of(forming.job))
            kept += self._roster.room_of_deserted(forming.job, forming.run_id, now)
            if not kept:
                raise
            text = f"{error}; or try again soon: its ended runs still take {kept:,}"
            raise QuotaError(text) from error

    def _open(self, forming: Forming) -> Window:
        return self._roster.budget.open(
            forming.job, forming.world_size, forming.table, forming.reducers
        )
