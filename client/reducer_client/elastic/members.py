"""The group of an elastic job: it outlives its workers, and takes new ones in between steps."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from reducer.wire.codes import Collective, DType, ReduceOp
from reducer_client import debug
from reducer_client.arrays import Array
from reducer_client.config import Settings
from reducer_client.dtypes import Wire
from reducer_client.elastic import state as states
from reducer_client.elastic.candidates import candidates
from reducer_client.elastic.document import Document
from reducer_client.elastic.eras import Eras, Terms
from reducer_client.elastic.record import JobRecord
from reducer_client.elastic.state import State
from reducer_client.elastic.views import Views
from reducer_client.engine import Engine
from reducer_client.errors import PeerLostError, ReducerError, RoundTimeoutError, from_engine
from reducer_client.group import Group, wait_or_end
from reducer_client.hosted.reducers import Reducers
from reducer_client.registry.interface import Lease
from reducer_client.reports import logger
from reducer_client.work import Work

_NAP = 0.1  # seconds of one wait where another member may decide
_CLOSE = 1.0  # seconds for a run that is over to end cleanly


class Member(NamedTuple):
    """A worker that is in: its rank in this era, and a name for people (``host:pid``)."""

    rank: int
    name: str


OnChange = Callable[[tuple[Member, ...]], None]


class ElasticGroup(Group):
    """A group whose workers come and go. `reducer_client.elastic.connect` makes these groups.

    Ranks that are lost leave the sums at once: rounds under way end without them, with the same
    bits on all ranks that are left. `Work.ledger` names whose contributions a result holds. New
    workers come in at the end of a step (`step`). ``rank`` and ``world_size`` change then, and only
    then.

    Between a loss and the end of the step, only all_reduce and barrier go on; the other collectives
    raise PeerLostError.
    """

    def __init__(
        self, terms: Terms, record: JobRecord, lease: Lease, document: Document,
        state: State | None, on_change: OnChange | None,
    ) -> None:  # fmt: skip
        self._terms = terms
        self._record = record
        self._lease = lease
        self._state = state
        self._layout = states.layout_of(state)
        self._changed = on_change
        self._eras = Eras(terms, record, self._layout)
        self._views: Views | None = None
        self._flag: Work[Array] | None = None
        self._step = 0
        self._settled = 0
        self._has_state = False
        self._membership = weakref.finalize(self, _leave, record, lease)
        self._document = document
        self._go_on(document)

    @property
    def members(self) -> tuple[Member, ...]:
        """The workers that are in, by rank."""
        names = {c.incarnation: c.name for c in candidates(self._record.record)}
        views = self._views  # another thread may begin an era meanwhile
        all_ = (self._document if views is None else views.document).members
        inside = range(len(all_)) if views is None else views.members
        return tuple(Member(rank, names.get(all_[rank], all_[rank].hex()[:8])) for rank in inside)

    @property
    def era(self) -> int:
        """The number of this composition of the job; each has ranks and rounds of its own."""
        return self._document.era

    @property
    def steps(self) -> int:
        """How many steps the job has made. A worker that joins takes the number over."""
        return self._step

    @property
    def is_new(self) -> bool:
        """Whether the job has no state yet: nobody had one when this era began."""
        return self._document.holders == 0

    @property
    def settled(self) -> int:
        """The last step that is complete at every member, in the numbers of `steps`.

        Only a settled step may be written to a checkpoint: if the only workers that completed a
        step die, the others make this step anew, with other contributions. A step is settled when
        the next call of `step` returns, or when `settle` returns.
        """
        flag = self._flag
        if flag is not None and flag.done and flag.exception() is None:
            return self._step
        return self._settled

    def settle(self) -> int:
        """Wait until every member has completed the last step. Returns its number.

        Raises the errors of `step`.
        """
        if self._flag is not None:
            self._wait(self._flag)
            self._settled = self._step
        return self._settled

    def step(self) -> bool:
        """End a step: all collectives of the step are done, and their results are in use.

        Every worker calls `step` after each step. Returns whether a new era has begun, with other
        workers: ``rank``, ``world_size`` and `members` have changed then, and workers that are new
        have the state of the others.

        Raises PeerLostError if the others have excluded this worker, or too few workers are left,
        and other ReducerErrors.
        """
        self._step += 1
        self._has_state = self._synced = True
        before, self._flag = self._flag, self._tell_wish()
        waits = before is not None and self._wait(before)[0]
        self._settled = self._step - 1
        if not waits:
            return False
        self._wait(self._flag)  # all have come here: none of them is in a step
        self._go_on(None)
        return True

    def close(self, timeout: float = 10.0) -> None:
        super().close(timeout)
        self._stop_views()
        if self._membership.alive:
            self._eras.leave(self._lease)
        self._end_membership()

    def abort(self, timed_out: str = "") -> None:
        super().abort(timed_out)
        self._end_membership()

    # --- eras -----------------------------------------------------------------------------------

    def _go_on(self, document: Document | None) -> None:
        """Join the next era that forms, and take its state over or hand it on."""
        while True:
            if document is None:
                document = self._next_document()
            if self._terms.me not in document.members:
                raise PeerLostError(
                    "the other workers took this process for lost and go on without it: start it "
                    "again", reason="excluded",
                )  # fmt: skip
            self._end_era()
            self._document = document
            try:
                settings, engine = self._eras.join(document)
            except ReducerError as error:
                document = self._after_failure(document, error)
                continue
            self._enter(settings, engine)
            try:
                self._sync()
                return
            except PeerLostError as error:  # in the middle of the transfer: begin another era
                if self._engine.error is not None:
                    self.abort()
                    raise
                logger.info("era %d begins again: %s", document.era, error)
                document = None
            except BaseException:  # the others wait for this worker: it must not stay
                self.abort()
                raise

    def _next_document(self) -> Document:
        """The document of the next era. The lowest member proposes it."""
        mine = self._document
        while True:
            document = self._record.document
            if document is not None and document.era > mine.era:
                return document
            if document is not None and self._views is not None:
                members = self._views.members
                if members and members[0] == self.rank:
                    self._propose(document, [mine.members[rank] for rank in members])
                    if self._record.document is not document:
                        continue
            self._record.wait_for_news(self._record.record, _NAP)
            if self._engine.error is not None:
                raise from_engine(self._engine.error)

    def _propose(self, document: Document, members: list[bytes]) -> None:
        with_state = [m for m in members if self._holds(document, m)]
        without = [m for m in members if m not in with_state]
        if document.holders and not with_state:
            raise PeerLostError("every worker that had the job's state is lost", reason="lost")
        newcomers = [candidate.incarnation for candidate in self._eras.newcomers(document)]
        all_ = [*with_state, *without, *newcomers]
        self._eras.propose(document, all_, len(with_state), self._step)

    def _holds(self, document: Document, member: bytes) -> bool:
        """Whether the member has the job's state: all have it once a step is made in the era."""
        return self._has_state and (
            self._synced or document.members.index(member) < document.holders
        )

    def _after_failure(self, document: Document, error: ReducerError) -> Document | None:
        """The era could not form. Propose the next one without members that are dead."""
        newest = self._record.document
        if newest is not None and newest.era > document.era:
            return newest
        living = self._record.living(self._record.record)
        members = [m for m in document.members if m in living]
        if len(members) == len(document.members) or self._terms.me not in members:
            raise error
        holders = len([m for m in document.members[: document.holders] if m in living])
        if document.holders and not holders:
            raise PeerLostError("every worker that had the job's state is lost", reason="lost")
        if newest is document:
            self._eras.propose(document, members, holders, document.step)
        newest = self._record.document
        return newest if newest is not None and newest.era > document.era else document

    def _enter(self, settings: Settings, engine: Engine) -> None:
        reducers = Reducers(settings.addresses)
        self._begin(settings, engine, reducers, self._terms.trust)
        self._synced = False
        self._flag = None
        self._views = Views(
            engine, self._record, self._document, settings.rank, self._terms.min_workers,
            self._register, lambda epoch, members: self._tell_members(),
        )  # fmt: skip
        self._end_of_views = weakref.finalize(self, self._views.stop)
        debug.joined(settings, engine, self._terms.trust.mode, reducers)
        self._tell_members()

    def _sync(self) -> None:
        """All members are here; those without the state get it from rank 0."""
        self._step = self._document.step
        wait_or_end(self, lambda: self._internal(Collective.BARRIER, ReduceOp.NONE, 0, "~era"))
        document = self._document
        if 0 < document.holders < len(document.members) and self._state is not None:
            if self.rank == 0:
                states.send(self, self._state, self._step, 0)
            elif self.rank < document.holders:
                states.ignore(self, 0)
            else:
                self._step = states.receive(self, self._state, 0)
        self._settled = self._step
        self._has_state = self._synced = document.holders > 0

    def _end_era(self) -> None:
        if self._views is None:
            return
        self._leave(lambda: self._engine.close(_CLOSE))
        self._stop_views()  # their thread ends at once with the engine

    def _stop_views(self) -> None:
        if self._views is not None:
            self._end_of_views()
            self._views = None

    def _end_membership(self) -> None:
        self._stop_views()
        self._terms.stop_discovery()
        self._membership()

    # --- the record -----------------------------------------------------------------------------

    def _tell_wish(self) -> Work[Array]:
        """Tell all whether another era should begin. Their answers are here a step later."""
        news = self._eras.has_news(self._document, self.rank)
        return self._internal(Collective.ALL_REDUCE, ReduceOp.MAX, int(news), "~step")

    def _internal(self, kind: Collective, op: ReduceOp, value: int, key: str) -> Work[Array]:
        if kind is Collective.BARRIER:
            return self._submit(kind, op, Wire(DType.UINT8), key, count=0)
        source = np.array([value], np.uint8)
        target = np.zeros(1, np.uint8)
        return self._submit(kind, op, Wire(DType.UINT8), key, count=1, source=source, target=target)

    def _wait(self, work: Work[Array]) -> Array:
        """Wait for a work of `step`, or until the others have gone on to the next era."""
        limit = self._context.step_timeout
        while True:
            try:
                return work.wait(_NAP)
            except RoundTimeoutError:
                limit -= _NAP
                document = self._record.document
                if document is not None and document.era > self._document.era:
                    return np.ones(1, np.uint8)
                if limit <= 0:
                    raise

    def _register(self, registry: str, epoch: int) -> None:
        own = self._terms.candidate(self._layout.digest)
        self._lease.change(replace(own, registry=registry, epoch=epoch).encode())

    def _tell_members(self) -> None:
        if self._changed is None:
            return
        try:
            self._changed(self.members)
        except Exception:  # of the program; the thread of the views must live
            logger.exception("on_change has raised an error; the job goes on")


def _leave(record: JobRecord, lease: Lease) -> None:
    lease.close()
    record.close()
