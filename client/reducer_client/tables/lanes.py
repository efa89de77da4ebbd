"""The connections to all lanes of a job's reducers, and the tables that use them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from reducer.wire.checks import INCARNATION_BYTES
from reducer.wire.table_messages import Notice, TableCall
from reducer_client.errors import (
    ClosedError,
    JoinError,
    ReducerError,
    ReducerUnavailableError,
)
from reducer_client.registry.dial import Dialer
from reducer_client.tables.calls import Call
from reducer_client.tables.lane_link import LaneLink, Limits
from reducer_client.tables.outgoing import Item
from reducer_client.tables.settings import Settings
from reducer_client.tables.shared import Shared
from reducer_client.trust import Trust

_JOIN_SECONDS = 2.0  # for the end of a link's thread


class TableSide(Protocol):
    """A table, as the connections see it. The caller of each method holds the lock."""

    @property
    def key(self) -> int: ...

    def reopened(self, partition: int) -> tuple[list[Item], list[Item]]:
        """What to tell a lane on a new connection: at once, and behind all pushes."""

    def lost_by(self, partition: int, where: str) -> None:
        """A lane has started again, without the table."""

    def news(self, partition: int, notice: Notice) -> None: ...

    def refused(self, partition: int, notice: Notice) -> None:
        """A lane has refused a call to which no answer was expected."""

    def fail(self, error: ReducerError) -> None: ...


class Lanes:
    """``partitions``: the number of lanes of all reducers."""

    def __init__(self, settings: Settings, trust: Trust, shared: Shared) -> None:
        self.partitions = 0
        self._settings = settings
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
        self._all_links: list[LaneLink] = []
        self._links: list[LaneLink] = []  # by partition, as soon as all are known
        self._tables: dict[str, TableSide] = {}
        self._last_number = 1
        self._is_closed = False

    def open(self) -> None:
        """Connect to all lanes. Raises ReducerErrors."""
        firsts = [self._link(address, 0) for address in self._settings.addresses]
        self._wait_for(firsts)
        by_slot = []
        for first in firsts:
            assert first.opened is not None
            rest = [self._link(first.address, lane) for lane in range(1, first.opened.lanes)]
            by_slot.append([first, *rest])
        links = [link for slot in by_slot for link in slot]
        self._wait_for(links)
        with self._shared.changed:
            for partition, link in enumerate(links):
                link.partition = partition
            self._links = links
            self.partitions = len(links)
        self._check_incarnations(links)

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
        """Forget a table, and what waits for its lanes. The caller holds the lock."""
        table = self._tables.pop(name, None)
        if table is not None:
            self.give_up(table.key)
        return table

    def find(self, name: str) -> TableSide | None:
        return self._tables.get(name)

    def give_up(self, table: int, pull: int = 0) -> None:
        """Nobody waits for these frames any more. The caller holds the lock."""
        for link in self._links:
            link.outgoing.give_up(table, pull)

    def close(self) -> None:
        """Say BYE to all lanes, and end the threads."""
        with self._shared.changed:
            self._is_closed = True
            links = list(self._all_links)
            for link in links:
                link.close()
        until = time.monotonic() + _JOIN_SECONDS
        for link in links:
            link.join(max(0.0, until - time.monotonic()))

    # --- events of the links, with the lock held ------------------------------------------------

    def opened(self, link: LaneLink, notice: Notice) -> None:
        before = link.opened
        if before is not None and notice.lanes != before.lanes:
            raise JoinError(
                f"{link.where}: the reducer has started again with {notice.lanes} lanes, it had "
                f"{before.lanes}; tables are spread over a fixed number of lanes"
            )
        is_another = before is not None and notice.incarnation != before.incarnation
        if is_another:
            for table in list(self._tables.values()):
                table.lost_by(link.partition, link.where)
            link.opened = notice
        link.outgoing.reopened()
        if link.partition < 0:
            return
        for table in list(self._tables.values()):
            at_once, behind = table.reopened(link.partition)
            link.outgoing.put(at_once, urgent=True)
            link.outgoing.put(behind)

    def news(self, link: LaneLink, notice: Notice) -> None:
        table = self._tables.get(notice.name)
        if table is not None:
            table.news(link.partition, notice)

    def refused(self, link: LaneLink, notice: Notice) -> None:
        table = self._tables.get(notice.name)
        if table is not None:
            table.refused(link.partition, notice)

    def failed(self, link: LaneLink, error: ReducerError) -> None:
        self.fail(error)

    def fail(self, error: ReducerError) -> None:
        """End the parameter server. The caller holds the lock."""
        self._shared.end(error)
        for table in self._tables.values():
            table.fail(error)

    # --- connecting -----------------------------------------------------------------------------

    def _link(self, address: str, lane: int) -> LaneLink:
        settings, trust = self._settings, self._trust
        dialer = Dialer(address, settings.job, trust.key, trust.tls, lane)
        link = LaneLink(dialer, self._hello, self._shared, self, self._limits)
        with self._shared.changed:
            if self._is_closed:
                raise ClosedError("this parameter server is closed", reason="closed")
            self._all_links.append(link)
        link.start()
        return link

    def _wait_for(self, links: list[LaneLink]) -> None:
        def describe(seconds: float) -> str:
            missing = [f"{link.where} ({link.cause})" for link in links if link.opened is None]
            return f"not connected within {seconds:g} s: {'; '.join(missing)}"

        # The links end with an error of their own, which says more, at the same time.
        limit = self._limits.connect_timeout + 1.0
        with self._shared.changed:
            try:
                self._shared.wait_until(
                    lambda: all(link.opened is not None for link in links), limit, describe
                )
            except TimeoutError as error:
                raise ReducerUnavailableError(str(error)) from None

    def _check_incarnations(self, links: list[LaneLink]) -> None:
        """Raises JoinError if two addresses lead to the same lane."""
        seen: dict[bytes, LaneLink] = {}
        for link in links:
            assert link.opened is not None
            other = seen.setdefault(link.opened.incarnation, link)
            if other is not link:
                raise JoinError(
                    f"{other.where} and {link.where} are one lane: the list of addresses names a "
                    "reducer twice"
                )
