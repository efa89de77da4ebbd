"""How workers join (HELLO, forming run, WELCOME), and how they rejoin."""

from __future__ import annotations

import logging
from typing import Final

from reducer.core.limits.budget import RankLimits
from reducer.core.limits.charges import slot_bytes
from reducer.core.limits.quotas import (
    SPARE_CONNECTIONS,
    MostConnections,
    allowed_connections,
    check_new_run,
)
from reducer.core.members.forming import Forming, excluded, forming_id
from reducer.core.members.roster import Members, Roster, fault_text
from reducer.core.members.run_endings import Endings, Refusals
from reducer.core.members.session import Session, SessionState
from reducer.core.rounds.chunk_owners import Route
from reducer.core.runs.run import Run
from reducer.core.runs.terms import Terms
from reducer.core.surface.events import Close, Log, Output, Send
from reducer.wire import messages
from reducer.wire.errors import (
    PEER_ERRORS,
    InternalError,
    JoinError,
    ProtocolError,
    QuotaError,
    UnavailableError,
)
from reducer.wire.losses import pack_losses

PARTS_OF_BEAT: Final = 5  # ticks over which the first heartbeats of runs are spread
# Bytes of records that ended runs forget when a new run needs their memory, as in a tick.
CUT_OFF_AT_ONCE: Final = 1 << 20


class Founding:
    """Makes a run once all its ranks have joined. `_runs` counts the runs: each has its number."""

    def __init__(self, roster: Roster, endings: Endings, refusals: Refusals) -> None:
        self._roster = roster
        self._endings = endings
        self._refusals = refusals
        self._settings = roster.settings
        self._runs = 0

    def form(self, forming: Forming, now: float) -> list[Output]:
        """All ranks have joined: reserve memory, and welcome them."""
        out = self._endings.end_deserted(forming.job, forming.run_id, now)
        try:
            members = self._create_run(forming, now, out)
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
            run.accounts.limits.credit, run.accounts.limits.grant, int(settings.heartbeat * 1000),
            instance=run.number,
            since=route.since if moved else (),
            live=route.live if moved else (),
            lanes_by_slot=route.lanes if moved else (),
            digest_every=members.digest_every,
            worker_silence_ms=round(min(members.silence, 3_600) * 1000),
            weights=run.terms.weights,
            lost=pack_losses(run.view.lost),
        )  # fmt: skip
        return self._roster.send(run.number, welcome, sessions)

    def _begin(self, members: Members, forming: Forming, now: float) -> list[Output]:
        run = members.run
        # A heartbeat may carry the positions of all keys: spread the runs over the ticks.
        part = run.number % PARTS_OF_BEAT / PARTS_OF_BEAT
        members.next_beat = now + part * self._settings.heartbeat
        for rank, session in forming.sessions.items():
            members.seat(self._roster.sessions[session], rank)
        text = f"job {run.name!r} run {run.run_id!r}: {run.world_size} workers joined"
        welcome = self.welcome(members, tuple(forming.sessions.values()))
        return [welcome, Log(run.number, logging.INFO, text, run.about())]

    def _create_run(self, forming: Forming, now: float, out: list[Output]) -> Members:
        """Make the run and reserve its memory; nothing stays reserved if this raises."""
        settings, budget = self._settings, self._roster.budget
        if (forming.job, forming.run_id) in self._roster.runs:
            raise JoinError(f"run {forming.run_id!r} of job {forming.job!r} is in use")
        limits = self._reserve(forming, now, out)
        try:
            # Until a ROUTE says more, the lanes of the other slots do not matter.
            route = Route.first((settings.lanes,) * forming.reducers)
            self._runs += 1
            terms = Terms(
                self._runs, forming.job, forming.run_id, forming.slot, forming.world_size,
                forming.table, forming.weights, forming.elastic,
            )  # fmt: skip
            run = Run(terms, settings, route, forming.view, limits)
            silence = forming.worker_silence_ms / 1000 or settings.silence
            return Members(run, forming.incarnations, forming.digest_every, silence, now)
        except Exception:
            budget.close(forming.job, limits, forming.world_size)
            raise

    def _reserve(self, forming: Forming, now: float, out: list[Output]) -> RankLimits:
        """Reserve memory for the run; if too little is free, cut off ended runs of the job.

        Of the keys of these runs, CUT_OFF_AT_ONCE bytes are forgotten at once. The other keys keep
        their memory until ticks have forgotten them.
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
            text = f"{error}; or try again soon: its ended runs still take {kept:,} bytes"
            raise QuotaError(text) from error

    def _open(self, forming: Forming) -> RankLimits:
        return self._roster.budget.open(
            forming.job, forming.world_size, forming.table,
            slot_bytes(forming.reducers, forming.weights),
        )  # fmt: skip


PENDING_RANKS: Final = 64


class Joining:
    """Brings sessions into the runs of a `Roster`."""

    def __init__(self, roster: Roster, endings: Endings, refusals: Refusals) -> None:
        self._roster = roster
        self._endings = endings
        self._refusals = refusals
        self._founding = Founding(roster, endings, refusals)
        self._settings = settings = roster.settings
        self._most = MostConnections(settings.descriptors, settings.job_budget or settings.budget)

    def hello(self, peer: Session, hello: messages.Hello, now: float) -> list[Output]:
        """Take the rank into its run, or refuse it; raises the ProtocolError family."""
        if peer.state != SessionState.NEW:
            raise ProtocolError(f"{peer} said HELLO twice")
        if peer.permit is not None:
            peer.permit.check(hello.job, hello.rank)
        if not peer.counted_job:
            crowd = self._count(peer, hello.job)
            if crowd is not None:
                return crowd
        members = self._members_of(hello)
        if members is None:
            return self._join(peer, hello, now)
        if not self._is_dead(members, hello):
            return self._rejoin(members, peer, hello, now)
        return self._endings.end(members) + self._join(peer, hello, now)

    def _members_of(self, hello: messages.Hello) -> Members | None:
        """The formed run that the hello is for.

        A rank whose WELCOME was lost cannot name its run, so its incarnation is looked up.
        """
        runs = self._roster.runs
        if hello.run_id:
            return runs.get((hello.job, hello.run_id))
        for (name, _), members in runs.items():
            if name == hello.job and members.incarnations.get(hello.rank) == hello.incarnation:
                return members
        return None

    def _join(self, peer: Session, hello: messages.Hello, now: float) -> list[Output]:
        """Admit the rank to a forming run, which this rank may be the last to join."""
        out = self._make_place(hello, now)  # these outputs are not lost if the rank is refused
        try:
            return out + self._admit(peer, hello, now)
        except PEER_ERRORS as error:
            return out + self._refusals.refuse(peer, error, now)

    def _make_place(self, hello: messages.Hello, now: float) -> list[Output]:
        """If the limits on runs admit no further run, end deserted runs of the job.

        A job that is started again replaces its earlier run, whose ranks are all gone.
        """
        roster, settings = self._roster, self._settings
        if forming_id(hello) in roster.forming:
            return []
        is_full = len(roster.forming) + len(roster.runs) >= settings.max_total_runs
        if is_full or self._run_count(hello.job) >= settings.max_runs:
            return self._endings.end_deserted(hello.job, hello.run_id, now)
        return []

    def _admit(self, peer: Session, hello: messages.Hello, now: float) -> list[Output]:
        if self._roster.draining:
            raise UnavailableError(f"this reducer is draining ({self._roster.draining})")
        id_ = forming_id(hello)
        forming = self._roster.forming.get(id_)
        if forming is None:
            self._most.check_world(hello.job, hello.world_size)
            self._check_quota(hello)
            forming = Forming(hello)
        # First: if the following fails halfway, the end of the session undoes it.
        peer.rank, peer.forming = hello.rank, forming
        try:
            replaced = forming.admit(hello, peer.id)
        except PEER_ERRORS:
            peer.forming = None
            raise
        peer.move(SessionState.JOINING)
        self._roster.forming[id_] = forming
        out = self._replace(replaced, now)
        for session in forming.put_out():
            gone = self._roster.sessions[session]
            out += self._refusals.refuse(gone, excluded(forming.title), now)
        count = f"{len(forming.sessions)} of {forming.view.count} are here"
        text = f"rank {peer.rank} of job {forming.title!r} joins: {count}"
        out.append(Log(0, logging.DEBUG, text, {"job": hello.job, "rank": peer.rank}))
        if forming.formed:
            return out + self._founding.form(forming, now)
        return [*out, self.pending(forming, (peer.id,))]

    def _check_quota(self, hello: messages.Hello) -> None:
        roster, job = self._roster, hello.job
        ended = sum(not ended.members.run.idle.is_clean for ended in roster.ended.of(job))
        check_new_run(
            self._settings, job, hello.reducers, len(roster.forming) + len(roster.runs),
            self._run_count(job), ended,
        )  # fmt: skip

    def pending(self, forming: Forming, sessions: tuple[int, ...]) -> Send:
        """PENDING with the absent ranks, for `sessions`."""
        settings = self._settings
        absent = tuple(forming.absent(PENDING_RANKS))
        count = forming.view.count - len(forming.sessions)
        pending = messages.Pending(
            settings.lanes, settings.lane, settings.incarnation, absent, count
        )
        return self._roster.send(0, pending, sessions)

    def _count(self, peer: Session, job: str) -> list[Output] | None:
        """Count the connection for its job; raises QuotaError above the job's limit.

        Up to twice the limit, refused connections stay open to read the ERROR. Above that,
        connections are closed at once.
        """
        count = self._roster.connections.enter(job)
        peer.counted_job = job
        runs = self._roster.runs.items()
        workers = sum(members.run.world_size for (name, _), members in runs if name == job)
        forming = [f for f in self._roster.forming.values() if f.job == job]
        workers += sum(len(f.sessions) for f in forming) + 1
        allowed = min(allowed_connections(workers), self._most.count)
        if count > min(2 * allowed, self._most.count + SPARE_CONNECTIONS):
            peer.move(SessionState.CLOSED)
            reason = f"job {job!r} has {count:,} connections"
            return [Close(0, peer.id, reason, at_once=True)]
        if count > allowed:
            raise self._most.too_many(job, workers, count)
        return None

    def _run_count(self, job: str) -> int:
        """How many runs of the job are forming or formed."""
        forming = sum(f.job == job for f in self._roster.forming.values())
        return forming + sum(name == job for name, _ in self._roster.runs)

    def _is_dead(self, members: Members, hello: messages.Hello) -> bool:
        """Whether all members are gone and the hello comes from a new process: the job was
        restarted.
        """
        gone = not hello.rejoin and not members.run.seats.present
        return gone and hello.incarnation not in members.incarnations.values()

    def _rejoin(
        self, members: Members, peer: Session, hello: messages.Hello, now: float
    ) -> list[Output]:
        """A formed run admits only its own members, on a new connection."""
        run = members.run
        if hello.rank in run.view.out:
            raise excluded(run.title)
        if members.incarnations.get(hello.rank) != hello.incarnation or hello.rank in members.left:
            raise JoinError(
                f"run {run.run_id!r} of job {run.name!r} has all its ranks: rank {hello.rank} "
                "cannot join it from a new process; start the job with a new run id"
            )
        run.reconnects += 1
        out = self._replace(members.last[hello.rank], now)
        members.seat(peer, hello.rank)
        out.append(self._founding.welcome(members, (peer.id,)))
        absent = members.absent(now - self._settings.absent_after)
        if absent.absent or absent.left:
            out.append(self._roster.send(run.number, absent, (peer.id,)))
        if self._roster.draining:
            goaway = messages.Goaway(self._roster.draining)
            out.append(self._roster.send(run.number, goaway, (peer.id,)))
        text = f"{peer} is back on a new connection"
        out.append(Log(run.number, logging.DEBUG, text, peer.about()))
        return out + run.rejoined(peer.rank)

    def _replace(self, session: int | None, now: float) -> list[Output]:
        """Close the rank's earlier connection, if any, without a flush."""
        old = None if session is None else self._roster.sessions.get(session)
        if old is None:
            return []
        reason = "replaced by a new connection"
        self._refusals.close(old, reason, now)
        return [Close(old.run_number, old.id, reason, at_once=True)]
