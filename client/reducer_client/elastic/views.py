"""Decides, with the other members of an era, who is still in: the views of the era's run.

The engine tells which ranks are lost. The members put the view without them into the job's document
by compare-and-set, so views follow one another. The lanes bring a view to all other members.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from reducer_client.elastic.candidates import candidates
from reducer_client.elastic.document import Document
from reducer_client.elastic.record import JobRecord
from reducer_client.engine import Engine, EngineError
from reducer_client.errors import ReducerError, name_ranks
from reducer_client.reports import logger

_NAP = 0.1  # seconds of one wait for a loss; stopping takes as long
JUMP = 1 << 16  # epochs that a registry may have decided and forgotten

OnChange = Callable[[int, tuple[int, ...]], None]


class Views:
    """Follows the views of one era on a thread of its own.

    ``on_change(epoch, members)`` is called on that thread after each change. ``register`` puts the
    incarnation of the registry and an epoch into this worker's lease.
    """

    def __init__(
        self, engine: Engine, record: JobRecord, document: Document, rank: int, min_workers: int,
        register: Callable[[str, int], None], on_change: OnChange,
    ) -> None:  # fmt: skip
        self._engine = engine
        self._record = record
        self._era = document.era
        self._ranks = {member: rank for rank, member in enumerate(document.members)}
        self._size = len(document.members)
        self.document = document
        self._rank = rank
        self._register = register
        self._promised = ("", -1)
        self._min_workers = min_workers
        self._on_change = on_change
        self._known: list[tuple[int, int]] = []
        self._warned = False
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reducer-views", daemon=True)
        self._thread.start()

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks that are in, ascending."""
        gone = {rank for _, rank in self._engine.view}
        return tuple(rank for rank in range(self._size) if rank not in gone)

    def stop(self) -> None:
        self._is_stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._is_stopped.is_set():
            try:
                lost = self._engine.wait_lost(_NAP)
                document = self._record.document
                if document is None:
                    self._restore(lost)
                elif document.era == self._era:
                    self._install(document)
                    if lost:
                        self._exclude(document, lost)
                self._tell()
            except EngineError as error:
                if self._engine.error is not None:  # the engine has ended
                    return
                logger.error("the view of the job's document: %s", error.args[1])
                self._is_stopped.wait(_NAP)
            except ReducerError as error:
                if not self._warned:
                    logger.warning("a worker is lost, and the registry cannot be told: %s", error)
                self._warned = True

    def _install(self, document: Document) -> None:
        if document.view:
            self._engine.install(document.view)

    def _exclude(self, document: Document, lost: list[tuple[int, str, str]]) -> None:
        """Decide on the view without the lost ranks, unless too few would be left."""
        seen = self._record.record
        if self._record.document is not document:
            return  # another member was faster
        members = self.members
        gone = [rank for rank, _, _ in lost if rank in members]  # others are out by now
        if not gone:
            return
        left = [rank for rank in members if rank not in gone]
        texts = "; ".join(text for rank, _, text in lost if rank in gone)
        if len(left) < self._min_workers:
            self._engine.lose(
                gone[0],
                f"{texts}: {len(left)} of {self._size} workers are left, and the job needs "
                f"{self._min_workers} (min_workers)",
            )
            return
        epoch = max([document.epoch, *(epoch for epoch, _ in self._engine.view)]) + 1
        view = self._engine.view_without(gone, epoch)
        if self._record.propose(seen, replace(document, epoch=epoch, view=view)):
            self._engine.install(view)
            logger.warning("goes on without %s: %s", name_ranks(gone), texts)
        self._warned = False

    def _restore(self, lost: list[tuple[int, str, str]]) -> None:
        """The registry has lost its state: write the document again when every member is back.

        The registry may have decided on a view that it has forgotten and that reaches a member
        late. So every member promises, before it registers again, to take no view of the next
        JUMP epochs.
        """
        if lost:
            texts = "; ".join(text for _, _, text in lost)
            self._engine.lose(
                lost[0][0],
                f"{texts}, and the registry has lost its state: without every member of the newest "
                "view nobody knows what it had decided; start the job again from a checkpoint",
            )
            return
        epoch = self._engine.view[-1][0] if self._engine.view else 0
        record = self._record.record
        if self._promised != (record.incarnation, epoch):
            self._engine.promise(epoch + JUMP)
            self._promised = record.incarnation, epoch
            self._register(record.incarnation, epoch)
        present = {
            self._ranks[candidate.incarnation]: candidate
            for candidate in candidates(record)
            if candidate.incarnation in self._ranks and candidate.registry == record.incarnation
        }
        newest = max((each.epoch for each in present.values()), default=0)
        if set(self.members) - set(present) or newest != epoch or self._rank != self.members[0]:
            return
        view = self._engine.view_bytes() if self._engine.view else b""
        document = replace(
            self.document, epoch=epoch + JUMP, view=view, registry=record.incarnation
        )
        if self._record.propose(record, document):
            logger.warning("the registry had lost its state: written again for era %d", self._era)

    def _tell(self) -> None:
        view = self._engine.view
        if view != self._known:
            self._known = view
            self._on_change(view[-1][0], self.members)
