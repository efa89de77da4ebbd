"""Follows the registry's record of where partitions live, and makes the decisions about it.

Laws:

- Places come from the record alone, and the record changes by compare-and-set alone. So a partition
  has one primary in a term, whatever the workers believe.
- While the registry cannot be reached, no decision is made, and everything else goes on.
- No decision leads to a process that has died. A worker may be late with what it has seen, or its
  own connection may be cut. So a lane answers before a decision gives it a partition alone, and a
  primary that answers stays. A primary gets more time for its answer than a backup: a busy machine
  may be late, and if the backup dies while the primary is replaced, no lane has the partition.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from reducer_client.errors import ClosedError, ReducerError, RoundTimeoutError, StateLostError
from reducer_client.registry.interface import Record, Registry
from reducer_client.tables.places_document import PlacesDocument, Seat, decode
from reducer_client.tables.shared import logger

RECORD = "tables/"  # and the run id
_WATCH = 2.0  # seconds of one watch
_LOOK_FOR_SPARES = 1.0
_PAUSE = 0.25  # seconds before the registry is asked again after an error
_JOIN_SECONDS = 1.0
_ANSWER = 0.5  # seconds for an answer of a backup or a spare
_ANSWER_OF_PRIMARY = 3.0  # a process that has died is known at once: its machine says so


@dataclass(frozen=True)
class Wish:
    """An observation of a worker about a partition in a term.

    ``kind``: "failed": its primary is out of reach; "lost": the primary is another process now;
    "alone": the primary does not reach its backup ``reducer``; "filled": the spare ``reducer`` has
    everything.
    """

    kind: str
    partition: int
    term: int
    reducer: bytes = b""


class Directory:
    """Two threads: one watches the record, the other one decides.

    Args:
        name: the name of the record.
        decides: False for readers.
        probe: asks a lane (address, lane modulo the reducer's lanes) for its number and
            incarnation; None if it does not answer within the seconds of the third argument.
        apply: gets each newer document.
        lose: called with a partition that is lost for good.
    """

    def __init__(
        self,
        registry: Registry,
        name: str,
        *,
        decides: bool,
        probe: Callable[[str, int, float], tuple[int, bytes] | None],
        apply: Callable[[PlacesDocument], None],
        lose: Callable[[int, str], None],
    ) -> None:
        self._registry = registry
        self._name = name
        self._decides = decides
        self._probe = probe
        self._apply = apply
        self._lose = lose
        self._changed = threading.Condition()
        self._wishes: dict[tuple[str, int], Wish] = {}
        # For how many seconds a slot did not answer, since the wishes were taken.
        self._silent: dict[int, float] = {}
        self._record = Record("", 0, b"", {})
        self._document: PlacesDocument | None = None
        self._is_closed = False
        self._is_cut_off = False
        self._threads = [
            threading.Thread(target=self._run, args=(each,), name=title, daemon=True)
            for title, each in (("places", self._watch), ("places-decider", self._decide_all))
        ]

    def first(self, found: Callable[[], PlacesDocument], timeout: float) -> PlacesDocument:
        """The document. If there is none, this worker makes it. Raises ReducerErrors.

        ``found`` makes the first document. A reader waits for it.
        """
        until = time.monotonic() + timeout
        record = self._registry.get(self._name)
        while not record.version:
            if self._decides:
                value = found().encode()
                _, record = self._registry.cas(self._name, 0, value, record.incarnation)
            elif (left := until - time.monotonic()) > 0:
                record = self._registry.watch(self._name, record, left)
            else:
                raise RoundTimeoutError(
                    f"no worker has made tables with backups within {timeout:g} s: the registry "
                    f"has no record {self._name!r}",
                    reason="timeout",
                )
        self._record, self._document = record, decode(record.value)
        return self._document

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def tell(self, wish: Wish) -> None:
        """A worker has seen something. Returns at once; the caller may hold other locks."""
        with self._changed:
            self._wishes[wish.kind, wish.partition] = wish
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def join(self) -> None:
        """Wait until the threads end, at most _JOIN_SECONDS. Close the registry before."""
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(_JOIN_SECONDS)

    # --- the threads ----------------------------------------------------------------------------

    def _run(self, work: Callable[[], None]) -> None:
        while not self._is_closed:
            try:
                work()
                if self._is_cut_off:
                    self._is_cut_off = False
                    logger.info("the registry of the tables' places answers again")
            except ClosedError:
                return
            except StateLostError as error:  # the partition has no terms left
                logger.error("%s", error)
                return
            except ReducerError as error:
                if not self._is_cut_off and not self._is_closed:
                    self._is_cut_off = True
                    logger.warning("no partition of tables can move now: %s", error)
                with self._changed:
                    self._changed.wait_for(lambda: self._is_closed, _PAUSE)
            except Exception:
                logger.exception("internal error: partitions of tables do not move any more")
                return

    def _watch(self) -> None:
        self._learn(self._registry.watch(self._name, self._record, _WATCH))

    def _decide_all(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._wishes or self._is_closed, _LOOK_FOR_SPARES)
            wishes = list(self._wishes.values())
        if self._is_closed:
            return
        self._silent.clear()
        self._fulfil(wishes)
        with self._changed:
            for wish in wishes:
                if self._wishes.get((wish.kind, wish.partition)) is wish:
                    del self._wishes[wish.kind, wish.partition]
        if self._decides and not wishes:
            self._look_for_spares()

    def _learn(self, record: Record) -> None:
        with self._changed:
            is_older = record.version <= self._record.version
            if is_older or record.incarnation != self._record.incarnation:
                return
            document = decode(record.value)
            self._record, self._document = record, document
        self._apply(document)

    def _fulfil(self, wishes: list[Wish]) -> None:
        """One change of the record for all wishes: a dead reducer had many partitions."""
        due = []
        for wish in wishes:
            if wish.kind == "lost":  # the newest document decides whether the loss is final
                self._learn(self._registry.get(self._name))
            if wish.kind == "lost" and (why := self._why_lost(wish)):
                self._lose(wish.partition, why)
            else:
                due.append(wish)
        if self._decides and due:
            self._cas(lambda document: self._decide(document, due))

    def _why_lost(self, wish: Wish) -> str:
        """Why nobody has the partition, whose primary has started again; "" if somebody may."""
        document = self._document
        assert document is not None
        entry = document.partitions[wish.partition]
        if entry.term != wish.term:
            return ""
        if entry.backup is None or entry.is_filling:
            return "its primary has started again, and it had no full backup"
        answer = self._ask(document, entry.backup.slot, entry.backup.lane, _ANSWER)
        if answer is None or answer[1] == entry.backup.incarnation:
            return ""
        return "its primary and its backup have started again"

    def _decide(self, document: PlacesDocument, wishes: list[Wish]) -> PlacesDocument | None:
        wanted = document
        for wish in wishes:
            wanted = self._decision(wanted, wish) or wanted
        return None if wanted is document else wanted

    def _decision(self, document: PlacesDocument, wish: Wish) -> PlacesDocument | None:
        number, term = wish.partition, wish.term
        entry = document.partitions[number]
        if entry.term != term:
            return None
        if wish.kind == "filled":
            return document.confirm_spare(number, term, wish.reducer)
        is_there = wish.kind != "lost" and self._lives(document, entry.primary, _ANSWER_OF_PRIMARY)
        if wish.kind == "alone":
            if not is_there:
                return None
            spare = self._spare(document, number, entry.primary, but=wish.reducer)
            return document.leave_backup(number, term, wish.reducer, spare)
        if is_there or entry.backup is None or not self._lives(document, entry.backup, _ANSWER):
            return None
        spare = self._spare(document, number, entry.backup, but=b"")
        return document.promote(number, term, spare)

    def _look_for_spares(self) -> None:
        document = self._document
        assert document is not None
        for number, entry in enumerate(document.partitions):
            if entry.backup is None:
                spare = self._spare(document, number, entry.primary, but=b"")
                if spare is not None:
                    self._cas(
                        lambda now, n=number, e=entry, s=spare: now.name_spare(n, e.term, s)  # type: ignore[misc]
                    )

    def _cas(self, decide: Callable[[PlacesDocument], PlacesDocument | None]) -> None:
        while True:
            with self._changed:
                record, document = self._record, self._document
            assert document is not None
            wanted = decide(document)
            if wanted is None:
                return
            value, before = wanted.encode(), record.version
            done, now = self._registry.cas(self._name, before, value, record.incarnation)
            self._learn(now)
            if done or now.version == before:
                return

    def _spare(
        self, document: PlacesDocument, partition: int, primary: Seat, but: bytes
    ) -> Seat | None:
        """A lane that answers now. Its reducer is not the primary's."""
        for slot in document.spare_slots(partition, primary.slot):
            answer = self._ask(document, slot, primary.lane, _ANSWER)
            if answer is not None and answer[1] != but:
                return Seat(slot, *answer)
        return None

    def _lives(self, document: PlacesDocument, seat: Seat, seconds: float) -> bool:
        """Whether the process that has the seat answers now."""
        answer = self._ask(document, seat.slot, seat.lane, seconds)
        return answer == (seat.lane, seat.incarnation)

    def _ask(
        self, document: PlacesDocument, slot: int, lane: int, seconds: float
    ) -> tuple[int, bytes] | None:
        """The lane's answer. A reducer that was silent for so long is not asked again for the same
        wishes.
        """
        if self._silent.get(slot, 0.0) >= seconds:
            return None
        answer = self._probe(document.reducers[slot], lane, seconds)
        if answer is None:
            self._silent[slot] = seconds
        return answer
