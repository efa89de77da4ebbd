"""Where the workers of a job meet that come and go: each meeting gives them the ranks of a run.

A run has fixed ranks, and the loss of a rank ends it, as in every job of Horovod. The workers then
meet again. The first rank that is not lost proposes the next run in the job's record (see
reducer_client.elastic.eras): those that have the job's state, in the order of their ranks, then the
others, then the processes that wait. So rank 0 has the job's state as soon as anybody has it.

A process keeps its lease from its first meeting until it leaves the job. The verdict of the
reducers says at once which rank is lost. Of a worker that dies between two runs only its lease
tells, when it ends.
"""

from __future__ import annotations

import os
import secrets
import time
from contextlib import suppress
from dataclasses import replace

from reducer_client import config, debug
from reducer_client.elastic.candidates import LEASE_SECONDS, candidates
from reducer_client.elastic.config import resolve_workers
from reducer_client.elastic.document import INCARNATION_BYTES, Document
from reducer_client.elastic.eras import Eras
from reducer_client.elastic.joining import open_record, resolve_terms, take_lease
from reducer_client.elastic.layout import Layout, Part
from reducer_client.engine import Engine
from reducer_client.errors import (
    JoinError,
    PeerLostError,
    ReducerError,
    ReducerUnavailableError,
    from_engine,
)
from reducer_client.group import Group
from reducer_client.hosted.reducers import Reducers
from reducer_client.registry.interface import Lease
from reducer_client.reports import logger
from reducer_client.trust import resolve_trust

# Reasons of errors after which the other workers can meet again.
LOSSES = ("lost", "left", "failed")
# The states of Horovod's programs are compared when they are sent. So all these programs have one
# layout here, and no other elastic program has this layout.
_LAYOUT = Layout([Part("a program of Horovod", "", ())])
# Seconds without a lease after which a worker counts as lost. When a registry is up again, leases
# come back within a third of their time.
_ABSENT = 0.4 * LEASE_SECONDS
_NAP = 0.2  # seconds between two looks where time alone may change the answer


class Rendezvous:
    """This process's membership in a job whose workers come and go."""

    _eras: Eras
    _lease: Lease
    _has_state: bool

    def __init__(self, timeout: float) -> None:
        """Put this process into the job's record. Raises ValueError and ReducerErrors.

        ``timeout``: seconds until a run must have begun.
        """
        settings = config.resolve(
            config.Given(rank=0, world_size=resolve_workers(), run_id="x", connect_timeout=timeout)
        )
        trust = resolve_trust(settings.job)
        self._terms = resolve_terms(settings, trust, survives=False)
        self._timeout = timeout
        self._pid = os.getpid()
        self._document: Document | None = None
        self._engine: Engine | None = None
        self._cause = ""
        self._record = open_record(self._terms)
        try:
            self._come()
        except BaseException:
            self._terms.stop_discovery()
            self._record.close()
            raise

    @property
    def belongs_here(self) -> bool:
        """Whether this process made the object, and is not a forked child."""
        return self._pid == os.getpid()

    @property
    def all_have_state(self) -> bool:
        """Whether every worker of the present run had the job's state when the run began."""
        document = self._document
        return document is not None and document.holders == len(document.members)

    def meet(self) -> Group:
        """Join the next run, when the run before has ended or when there was none.

        Raises PeerLostError with the reason "ended" on all workers if too few are left, or nobody
        has the job's state any more. Raises JoinError after the timeout, and other ReducerErrors.
        """
        until = time.monotonic() + self._timeout
        if self._document is None:
            document = self._eras.first(self._timeout)
        else:
            document = self._next(self._document, self._lost_in(self._document), until)
        while True:
            if self._terms.me not in document.members:
                document = self._come_back(document, until)
            self._document, self._engine = document, None
            try:
                settings, self._engine = self._eras.join(document)
            except PeerLostError as error:
                logger.info("the workers meet again: %s", error)
                lost = set() if error.rank is None else {document.members[error.rank]}
                document = self._next(document, lost, until)
                continue
            reducers = Reducers(settings.addresses)
            debug.joined(settings, self._engine, self._terms.trust.mode, reducers)
            return Group(settings, self._engine, reducers, self._terms.trust)

    def take_state(self) -> None:
        """Note that this process has the job's state from now on."""
        if self._has_state:
            return
        self._has_state = True
        own = replace(self._terms.candidate(_LAYOUT.digest), has_state=True)
        with suppress(ReducerError):  # the next renewal of the lease brings the value
            self._lease.change(own.encode())

    def has_news(self) -> bool:
        """Whether processes wait to be taken in. Rank 0 calls this."""
        assert self._document is not None
        return self._eras.has_news(self._document, 0)

    def write_again(self) -> None:
        """Write the document again if the registry has lost it.

        Rank 0 calls this right after a collective. All workers were in the present run then, so the
        registry has not decided on a later one and forgotten it.
        """
        record = self._record.record
        if record.value or self._document is None:
            return
        document = replace(self._document, registry=record.incarnation)
        with suppress(ReducerUnavailableError):
            if self._record.propose(record, document):
                logger.warning("the registry had lost its state: written again")

    def leave(self) -> None:
        """Leave the job for good. Raises nothing."""
        self._terms.stop_discovery()
        self._eras.leave(self._lease)
        self._record.close()

    def _come(self) -> None:
        """Come to the job as a process without state."""
        self._has_state = False
        self._terms = replace(self._terms, me=secrets.token_bytes(INCARNATION_BYTES))
        self._eras = Eras(self._terms, self._record, _LAYOUT)
        self._lease = take_lease(self._terms, self._record, _LAYOUT)

    def _come_back(self, document: Document, until: float) -> Document:
        """The others went on without this process. It comes to them like a new one."""
        if not document.members:
            raise PeerLostError(self._why_ended(document), reason="ended")
        logger.warning("the others took this process for lost; it joins them as a new worker")
        self._lease.close()
        self._come()
        return self._eras.first(max(0.0, until - time.monotonic()))

    def _lost_in(self, document: Document) -> set[bytes]:
        """The member that the reducers named when the run of this document ended."""
        if self._engine is None or self._engine.error is None:
            return set()
        error = from_engine(self._engine.error)
        if error.reason not in LOSSES or error.rank is None:
            return set()
        self._cause = f"{error}: "
        return {document.members[error.rank]}

    def _next(self, mine: Document, lost: set[bytes], until: float) -> Document:
        """Wait for the document of a later run than ``mine``; propose it if it is our turn.

        ``lost`` are members that are known to be lost.
        """
        record, absent = self._record, dict[bytes, float]()
        while True:
            seen, document = record.record, record.document
            if document is not None and document.era > mine.era:
                return document
            if document is None or document.members != mine.members:
                raise PeerLostError(
                    f"{self._cause}the registry has lost its state, and a worker is lost: nobody "
                    "knows what the registry had decided; start the job again from a checkpoint",
                    reason="ended",
                )
            now = time.monotonic()
            living = record.living(seen)
            for member in mine.members:
                if member in living or self._terms.me not in living:
                    absent.pop(member, None)
                elif now - absent.setdefault(member, now) >= _ABSENT:
                    lost.add(member)
            left = [member for member in mine.members if member not in lost] or [self._terms.me]
            if left[0] == self._terms.me and living.issuperset(left):
                with suppress(ReducerUnavailableError):  # a change waits for the registry
                    self._propose(document, left)
            if now >= until:
                raise JoinError(
                    f"job {self._terms.settings.job!r}: the workers did not meet again within "
                    f"{self._timeout:g} s",
                    reason="absent",
                )
            record.wait_for_news(seen, _NAP)

    def _propose(self, document: Document, left: list[bytes]) -> None:
        """Propose a run of the members that are left and of the processes that wait."""
        able = {each.incarnation for each in candidates(self._record.record) if each.has_state}
        holders = [member for member in left if member in able]
        others = [member for member in left if member not in able]
        newcomers = [candidate.incarnation for candidate in self._eras.newcomers(document)]
        members = [*holders, *others, *newcomers]
        is_stateless = document.holders > 0 and not holders
        if is_stateless or len(members) < self._terms.min_workers:
            # No members: the job has ended. The step tells how many workers were left.
            self._eras.propose(document, (), 0, len(left))
        else:
            self._eras.propose(document, members, len(holders), 0)

    def _why_ended(self, document: Document) -> str:
        count, least = document.step, self._terms.min_workers
        left = f"{count} worker is left" if count == 1 else f"{count} workers are left"
        why = (
            f"{left}, and the job needs {least} (min_workers)"
            if count < least
            else f"{left}, and none has the job's state"
        )
        return f"{self._cause}{why}: start the job again from a checkpoint"
