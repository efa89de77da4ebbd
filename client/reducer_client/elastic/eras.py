"""Forms the eras of a job: who is in the next one, and its engine.

Every process of a job keeps a lease in the job's record. A document names the members of an era in
the order of their ranks. Any of them may replace a document whose era cannot form; compare-and-set
lets one of them do it, and the others follow.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from reducer.wire.codes import MAX_DOCUMENT_BYTES
from reducer_client import joining
from reducer_client.config import Settings, default_chunk_table
from reducer_client.elastic.candidates import LEASE_SECONDS, Candidate, candidates
from reducer_client.elastic.discovery import Discovery
from reducer_client.elastic.document import Document, decode
from reducer_client.elastic.layout import Layout, unpack
from reducer_client.elastic.record import JobRecord
from reducer_client.engine import Engine
from reducer_client.errors import JoinError, PeerLostError, ReducerError
from reducer_client.hosted.reducers import Reducers
from reducer_client.registry.interface import Lease
from reducer_client.reports import logger
from reducer_client.trust import Trust

# Seconds without a lease of any member before a job counts as dead. Leases come back within a third
# of their time when a registry is up again.
_DEAD = 3 * LEASE_SECONDS
_OF_LAYOUT = "/layout"  # ends the name of the record with the layout of the job's state
_BY_ITSELF = "#workers"  # ends a run id, so that the run can form while an earlier one forms
_NAP = 0.2  # seconds between two looks where time alone may change the answer


@dataclass(frozen=True)
class Terms:
    """What this process brings to every era.

    ``size``: workers with which the job starts. ``run``: the job's run id, without the era.
    ``survives``: whether an era goes on without members that are lost; else a loss ends its run.
    """

    settings: Settings
    trust: Trust
    run: str
    me: bytes
    wish: int
    size: int
    min_workers: int
    has_chunk_table: bool = False  # of the program; else the default for the number of reducers
    discovery: Discovery | None = None
    survives: bool = True

    @property
    def addresses(self) -> tuple[str, ...]:
        """The reducers that the job should use now."""
        found = () if self.discovery is None else self.discovery.addresses
        return found or self.settings.addresses

    def stop_discovery(self) -> None:
        """Look for no more reducers."""
        if self.discovery is not None:
            self.discovery.stop()

    def candidate(self, layout: bytes) -> Candidate:
        """What this process says of itself."""
        return Candidate(self.wish, self.me, f"{socket.gethostname()}:{os.getpid()}", layout)


class Eras:
    """Finds this process's next era, and joins its run."""

    def __init__(self, terms: Terms, record: JobRecord, layout: Layout) -> None:
        self._terms = terms
        self._record = record
        self._layout = layout

    def has_news(self, document: Document, rank: int) -> bool:
        """Whether a process waits to be taken in, or the reducers are others by now.

        Rank 0 alone looks at the reducers: it proposes the next era.
        """
        discovery = self._terms.discovery
        is_other = discovery is not None and set(discovery.addresses) != set(document.addresses)
        return (rank == 0 and is_other) or bool(self.newcomers(document))

    def first(self, timeout: float) -> Document:
        """Wait for the first era that has this process. Raises JoinError after ``timeout`` s.

        A process founds the job with the others that wait if the job is new, or if all its
        processes are dead. Else the members of the job take it in at the end of a step.
        """
        terms, record = self._terms, self._record
        until, alone_since = time.monotonic() + timeout, time.monotonic()
        while True:
            document = record.document
            out = () if document is None else document.gone
            waiting = [c for c in candidates(record.record) if c.incarnation not in out]
            if document is not None and terms.me in document.members:
                return document
            if document is not None:
                self._compare({c.layout for c in waiting if c.incarnation in document.members})
            now = time.monotonic()
            if document is not None and record.living(record.record) & set(document.members):
                alone_since = now
            is_dead = document is not None and (not document.members or now - alone_since >= _DEAD)
            if (document is None or is_dead) and len(waiting) >= terms.size:
                self._found(document, waiting)
            if now >= until:
                raise JoinError(self._nobody(document, waiting, timeout), reason="absent")
            record.wait_for_news(record.record, _NAP)

    def propose(
        self, document: Document, members: Sequence[bytes], holders: int, step: int
    ) -> None:
        """Propose the era after the one of ``document``; another member may be faster."""
        seen = self._record.record
        if self._record.document is document:
            addresses = self._terms.addresses if self._terms.discovery else document.addresses
            following = document.next_era(members, holders, step, seen.incarnation, addresses)
            self._record.propose(seen, following)

    def leave(self, lease: Lease) -> None:
        """Give the lease back. The last that leaves notes that nobody is in the job any more."""
        lease.close()
        with suppress(ReducerError):
            record = self._record.registry.get(self._record.name)
            document = decode(record.value)
            if document is None or not document.members:
                return
            if self._record.living(record) & set(document.members):
                return
            nobody = document.next_era((), 0, 0, record.incarnation)
            self._record.propose(record, nobody)

    def newcomers(self, document: Document) -> list[Candidate]:
        """The processes that wait to be taken in, and bring a state like ours."""
        if not self._layout.parts:  # nobody could give a newcomer anything
            return []
        known = {*document.members, *document.gone}
        waiting = [c for c in candidates(self._record.record) if c.incarnation not in known]
        return [candidate for candidate in waiting if candidate.layout == self._layout.digest]

    def join(self, document: Document) -> tuple[Settings, Engine]:
        """Join the run of the era. Raises ReducerErrors if the era cannot form or is over.

        Gives up when a member has died before the run has formed, and when another era is decided.
        """
        terms = self._terms
        settings = replace(
            terms.settings,
            addresses=document.addresses,
            rank=document.members.index(terms.me),
            world_size=len(document.members),
            run_id=f"{terms.run}~{document.era}" + ("" if terms.survives else _BY_ITSELF),
        )
        if not terms.has_chunk_table:
            table = default_chunk_table(len(document.addresses))
            settings = replace(settings, chunk_table=table)
        reducers = Reducers(settings.addresses)
        incarnation = terms.me if terms.survives else b""
        engine = joining.make_engine(settings, terms.trust, reducers, incarnation=incarnation)
        with _GivesUp(engine, self._record, document, terms.me):
            joining.start(engine)
        return settings, engine

    def _found(self, document: Document | None, waiting: list[Candidate]) -> None:
        """The first of those that wait proposes the first era of all of them."""
        if waiting[0].incarnation != self._terms.me:
            return
        layouts = {candidate.layout for candidate in waiting}
        if len(layouts) > 1:
            names = ", ".join(candidate.name for candidate in waiting)
            raise JoinError(f"the models of {names} differ in names, shapes or dtypes")
        members = tuple(candidate.incarnation for candidate in waiting)
        seen = self._record.record
        if document is not None:
            self.propose(document, members, 0, 0)
        elif self._record.document is None:
            addresses = self._terms.addresses
            self._record.propose(
                seen, Document(0, members, registry=seen.incarnation, addresses=addresses)
            )
        self._publish()

    def _publish(self) -> None:
        """Write the layout of the job's state where those can read it that come later."""
        registry, name = self._record.registry, self._record.name + _OF_LAYOUT
        packed = self._layout.pack()
        if len(packed) <= MAX_DOCUMENT_BYTES:
            registry.cas(name, registry.get(name).version, packed)

    def _compare(self, layouts: set[bytes]) -> None:
        """Raise JoinError if this process has a state of another shape than the job's workers.

        ``layouts``: the digests of the workers that live. A job without any may be founded anew
        with other models, and its record then has the layout of the old ones for a moment.
        """
        if not layouts or self._layout.digest in layouts:
            return
        packed = self._record.registry.get(self._record.name + _OF_LAYOUT).value
        theirs = unpack(packed) if packed else self._layout
        if theirs.digest in layouts and (differs := self._layout.difference(theirs)):
            raise JoinError(
                f"job {self._terms.settings.job!r}, run {self._terms.run!r}: the state of this "
                f"process is not like that of the job's workers: {differs}"
            )

    def _nobody(
        self, document: Document | None, waiting: list[Candidate], timeout: float
    ) -> str:  # fmt: skip
        terms, names = self._terms, ", ".join(candidate.name for candidate in waiting)
        who = f"job {terms.settings.job!r}, run {terms.run!r}"
        if document is None:
            return (
                f"{who}: {len(waiting)} of {terms.size} workers have come within {timeout:g} s "
                f"({names}): start the others with the same registry, job and run id"
            )
        return (
            f"{who}: its workers did not take this process in within {timeout:g} s: do they call "
            "step(), or commit() of Horovod's state, and do their models have the same names, "
            "shapes and dtypes?"
        )


class _GivesUp:
    """Ends an engine that joins as soon as its era cannot form any more."""

    def __init__(self, engine: Engine, record: JobRecord, document: Document, me: bytes) -> None:
        self._me = me
        self._engine = engine
        self._record = record
        self._document = document
        self._is_over = threading.Event()
        self._why = ""
        self._thread = threading.Thread(target=self._watch, name="reducer-era", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        self._is_over.set()
        self._thread.join()
        if kind is not None and issubclass(kind, ReducerError) and self._why:
            raise PeerLostError(self._why, reason="lost") from None

    def _watch(self) -> None:
        began = time.monotonic()
        members = set(self._document.members)
        while not self._is_over.wait(_NAP):
            document = self._record.document
            living = self._record.living(self._record.record)
            # Without our own lease, the registry has just been started again.
            missing = members - living if self._me in living else set()
            if document is not None and document.era > self._document.era:
                self._why = f"era {self._document.era} was over before it had formed"
            elif missing and time.monotonic() - began > LEASE_SECONDS:
                names = ", ".join(member.hex()[:8] for member in sorted(missing))
                self._why = f"{names} died before era {self._document.era} had formed"
            else:
                continue
            logger.info("%s", self._why)
            self._engine.abort()
            return
