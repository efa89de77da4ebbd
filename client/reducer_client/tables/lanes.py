"""The connections to all lanes of a job's reducers, and the tables that use them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Protocol

from reducer.wire import errors as wire
from reducer.wire.checks import INCARNATION_BYTES
from reducer.wire.table_messages import Notice, TableCall
from reducer_client.errors import (
    ClosedError,
    JoinError,
    ReducerError,
    ReducerUnavailableError,
    RoundTimeoutError,
    StateLostError,
)
from reducer_client.registry.dial import Dialer
from reducer_client.registry.interface import Registry
from reducer_client.tables.calls import Call
from reducer_client.tables.directory import RECORD, Directory, Wish
from reducer_client.tables.lane_link import LaneLink, Limits
from reducer_client.tables.outgoing import Item
from reducer_client.tables.places import Place, Places, spread
from reducer_client.tables.places_document import PlacesDocument, found
from reducer_client.tables.probe import ask_lane, question
from reducer_client.tables.settings import READER, Settings
from reducer_client.tables.shared import Shared
from reducer_client.trust import Trust

_PROBE_SECONDS = 1.0  # limit for the answer of a lane to the first probe
_JOIN_SECONDS = 2.0  # limit for the end of a link's thread


class TableSide(Protocol):
    """A table, as the connections see it. The caller of each method holds the lock."""

    @property
    def key(self) -> int: ...

    def reopened(self, partition: int) -> tuple[list[Item], list[Item]]:
        """The frames for a lane's new connection: to be sent at once, and behind all pushes."""

    def lost_by(self, partition: int, where: str) -> None:
        """A lane has started again, without the table."""

    def news(self, partition: int, notice: Notice) -> None: ...

    def refused(self, partition: int, notice: Notice) -> None:
        """A lane has refused a call to which no answer was expected."""

    def fail(self, error: ReducerError) -> None: ...


class Lanes:
    """The links of all partitions."""

    def __init__(
        self, settings: Settings, trust: Trust, shared: Shared, registry: Registry | None = None
    ) -> None:
        self._settings = settings
        self._directory: Directory | None = None
        self._trust = trust
        self._shared = shared
        self._limits = Limits(settings.connect_timeout, settings.reducer_wait, settings.silence)
        self._hello = TableCall(
            "open",
            job=settings.job,
            run_id=settings.run_id,
            worker=settings.worker,
            incarnation=secrets.token_bytes(INCARNATION_BYTES),
        )
        self._places = Places([], self._moved)
        self._links: list[LaneLink] = []  # by partition
        self._probes: list[LaneLink] = []
        self._tables: dict[str, TableSide] = {}
        self._last_number = 1
        self._is_closed = False
        self._probe_call = question(settings.job, settings.run_id)
        if registry is not None:
            self._directory = Directory(
                registry,
                RECORD + settings.run_id,
                decides=settings.worker != READER,
                probe=self._probe_lane,
                apply=self._apply,
                lose=self._lose,
            )

    @property
    def partitions(self) -> int:
        """The number of lanes of all reducers."""
        return len(self._places)

    def open(self) -> None:
        """Connect to all lanes. Raises ReducerErrors."""
        places = self._find_places()
        hello = replace(self._hello, partitions=len(places))
        with self._shared.changed:
            if self._is_closed:
                raise ClosedError("this parameter server is closed", reason="closed")
            self._places = Places(places, self._moved)
            for partition in range(len(places)):
                find = partial(self._places.of, partition)
                self._links.append(self._link(partition, find, replace(hello, partition=partition)))
        for link in self._links:
            link.start()
        if self._directory is not None:
            self._directory.start()
        self._wait_for(self._links)
        if self._directory is None:
            self._check_incarnations()

    def where(self, partition: int) -> str:
        return self._links[partition].where

    def next_number(self) -> int:
        """The number of the next call. The caller holds the lock."""
        self._last_number += 1
        return self._last_number

    def put(self, partition: int, items: Iterable[Item], *, urgent: bool = False) -> None:
        """Send these frames. The caller holds the lock."""
        link = self._links[partition]
        link.outgoing.put(items, urgent=urgent)
        link.wake()

    def call(
        self,
        partition: int,
        message: TableCall,
        table: int = 0,
        then: Callable[[Notice], None] | None = None,
    ) -> Call:
        """Send a call. The caller holds the lock."""
        call = Call(self.next_number(), message, then)
        self.put(partition, [call.item(table)])
        return call

    def add(self, name: str, table: TableSide) -> None:
        self._tables[name] = table

    def remove(self, name: str) -> TableSide | None:
        """Forget a table and its frames. The caller holds the lock."""
        table = self._tables.pop(name, None)
        if table is not None:
            self.give_up(table.key)
        return table

    def give_up(self, table: int, pull: int = 0) -> None:
        """Nobody waits for these frames any more. The caller holds the lock."""
        for link in self._links:
            link.outgoing.give_up(table, pull)

    def close(self) -> None:
        """Say BYE to all lanes, and end the threads."""
        if self._directory is not None:
            self._directory.close()
        with self._shared.changed:
            self._is_closed = True
            links = [*self._probes, *self._links]
            for link in links:
                link.close()
        until = time.monotonic() + _JOIN_SECONDS
        for link in links:
            link.join(max(0.0, until - time.monotonic()))

    # --- events of the links, with the lock held ------------------------------------------------

    def opened(self, link: LaneLink, notice: Notice) -> None:
        before = link.opened
        link.outgoing.reopened()
        if before is None or link.partition < 0:
            return
        if self._has_lost_tables(link, before, notice):
            for table in list(self._tables.values()):
                table.lost_by(link.partition, link.where)
        for table in list(self._tables.values()):
            at_once, behind = table.reopened(link.partition)
            link.outgoing.put(at_once, urgent=True)
            link.outgoing.put(behind)

    def _has_lost_tables(self, link: LaneLink, before: Notice, now: Notice) -> bool:
        """Whether the lane's process started again. Raises JoinError if its number of lanes
        differs.
        """
        if link.place.term:
            return False  # the lane has checked the incarnation
        if now.lanes != before.lanes:
            raise JoinError(
                f"{link.where}: the reducer has started again with {now.lanes} lanes, it had "
                f"{before.lanes}; tables are spread over a fixed number of lanes"
            )
        return now.incarnation != before.incarnation

    def _moved(self, partition: int) -> None:
        self._links[partition].moved()

    def news(self, link: LaneLink, notice: Notice) -> None:
        if notice.call in ("alone", "filled"):
            if self._directory is not None:
                wish = Wish(notice.call, link.partition, notice.term, notice.backup_reducer)
                self._directory.tell(wish)
            return
        table = self._tables.get(notice.name)
        if table is not None:
            table.news(link.partition, notice)

    def refused(self, link: LaneLink, notice: Notice) -> None:
        table = self._tables.get(notice.name)
        if table is not None:
            table.refused(link.partition, notice)

    def suspected(self, link: LaneLink, has_lost_state: bool) -> None:
        if self._directory is not None:
            kind = "lost" if has_lost_state else "failed"
            self._directory.tell(Wish(kind, link.partition, link.place.term))

    def failed(self, link: LaneLink, error: ReducerError) -> None:
        self.fail(error)

    def fail(self, error: ReducerError) -> None:
        """End the parameter server. The caller holds the lock."""
        self._shared.end(error)
        for table in self._tables.values():
            table.fail(error)

    # --- connecting -----------------------------------------------------------------------------

    def _link(self, partition: int, find: Callable[[], Place], hello: TableCall) -> LaneLink:
        return LaneLink(partition, find, self._dialer_to, hello, self._shared, self, self._limits)

    def _dialer_to(self, place: Place) -> Dialer:
        trust = self._trust
        return Dialer(place.address, self._settings.job, trust.key, trust.tls, place.lane)

    def _find_places(self) -> list[Place]:
        if self._directory is None:
            return spread(self._count_lanes())
        document = self._directory.first(self._found, self._settings.connect_timeout)
        if document.reducers != self._settings.addresses:
            raise JoinError(
                f"the tables of this run live on the reducers {', '.join(document.reducers)}, and "
                f"this worker has the list {', '.join(self._settings.addresses)}: give the same "
                "list on all workers, or another run_id"
            )
        return [document.place(each) for each in range(len(document.partitions))]

    def _found(self) -> PlacesDocument:
        """The first places. Raises a ReducerError if a reducer does not answer."""
        incarnations = []
        for address, lanes in self._count_lanes():
            answers = [self._probe_lane(address, lane, _PROBE_SECONDS) for lane in range(lanes)]
            if None in answers:
                raise ReducerUnavailableError(
                    f"lane {answers.index(None)} of the reducer at {address} does not answer"
                )
            incarnations.append([answer[1] for answer in answers if answer is not None])
        return found(self._settings.addresses, incarnations)

    def _probe_lane(self, address: str, lane: int, seconds: float) -> tuple[int, bytes] | None:
        """The number and incarnation of a lane, which is counted modulo the reducer's lanes."""
        try:
            answer = self._ask(address, 0, seconds)
            if answer is not None and lane % answer.lanes:
                answer = self._ask(address, lane % answer.lanes, seconds)
        except (OSError, ReducerError, wire.ReductionError):
            return None
        return None if answer is None else (answer.lane, answer.incarnation)

    def _ask(self, address: str, lane: int, seconds: float) -> Notice | None:
        return ask_lane(self._dialer_to(Place(address, lane)), self._probe_call, seconds)

    def _apply(self, document: PlacesDocument) -> None:
        with self._shared.changed:
            for partition in range(len(self._places)):
                self._places.move(partition, document.place(partition))

    def _lose(self, partition: int, why: str) -> None:
        with self._shared.changed:
            names = ", ".join(map(repr, sorted(self._tables))) or "none"
            self.fail(
                StateLostError(
                    f"partition {partition} of the tables of job {self._settings.job!r} is lost: "
                    f"{why}; tables here: {names}. Begin a new run, from a checkpoint or from a "
                    "worker's parameters",
                    reason="restarted",
                )
            )

    def _count_lanes(self) -> list[tuple[str, int]]:
        """The addresses of the reducers, and how many lanes each has."""
        addresses = self._settings.addresses
        with self._shared.changed:
            for address in addresses:
                self._probes.append(self._link(-1, partial(Place, address, 0), self._probe_call))
        for probe in self._probes:
            probe.start()
        self._wait_for(self._probes)
        counts = [0 if probe.opened is None else probe.opened.lanes for probe in self._probes]
        with self._shared.changed:
            for probe in self._probes:
                probe.close()
        return list(zip(addresses, counts, strict=True))

    def _wait_for(self, links: list[LaneLink]) -> None:
        def describe(seconds: float) -> str:
            missing = [f"{link.where} ({link.cause})" for link in links if link.opened is None]
            return f"not connected within {seconds:g} s: {'; '.join(missing)}"

        # The links end with errors of their own at the same time, which say more.
        limit = self._limits.connect_timeout + 1.0
        with self._shared.changed:
            try:
                self._shared.wait_until(
                    lambda: all(link.opened is not None for link in links), limit, describe
                )
            except RoundTimeoutError as error:
                raise ReducerUnavailableError(str(error)) from None

    def _check_incarnations(self) -> None:
        """Raises JoinError if two addresses lead to the same lane."""
        seen: dict[bytes, LaneLink] = {}
        for link in self._links:
            assert link.opened is not None
            other = seen.setdefault(link.opened.incarnation, link)
            if other is not link:
                raise JoinError(
                    f"{other.where} and {link.where} are one lane: the list of addresses names a "
                    "reducer twice"
                )
