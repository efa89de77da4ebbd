"""What the status page requests: itself, its numbers and the history, which this module keeps.

The first request imports what makes the page: a third of all that the main process imports, and
many daemons never show a page.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from reducer.server.daemon.admin import Answer, Page, json_answer
from reducer.server.daemon.history import History
from reducer.server.pipe.snapshot import Snapshot

if TYPE_CHECKING:
    from reducer.server.daemon.peers import Answers, Peers


class StatusBoard:
    """The status page of the reducer at ``address``, which workers connect to."""

    def __init__(
        self, address: str, metrics_host: str, snapshot: Callable[[], Awaitable[Snapshot]]
    ) -> None:
        self._address = address
        self._metrics_host = metrics_host
        self._snapshot = snapshot
        self._history = History()
        self._peers: Peers | None = None

    def pages(self) -> dict[str, Page]:
        """By path."""
        return {"/": self._page, "/api/status": self._numbers, "/api/history": self._past}

    async def record(self) -> None:
        """Keep the history until this task is cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):  # a lane that is being started again
                self._history.add(await self._snapshot())
            await asyncio.sleep(self._history.period)

    def close(self) -> None:
        if self._peers is not None:
            self._peers.close()

    async def _page(self) -> Answer:
        return await asyncio.to_thread(_page)

    async def _numbers(self) -> Answer:
        snapshot = await self._snapshot()
        if self._peers is None:
            self._peers = await asyncio.to_thread(_peers, self._metrics_host)
        peers = await self._peers.ask(_runs(snapshot))
        return await asyncio.to_thread(_numbers, self._address, snapshot, peers)

    async def _past(self) -> Answer:
        return json_answer(self._history.as_json())


def _runs(snapshot: Snapshot) -> set[tuple[str, str]]:
    """The job and the id of each run."""
    found: set[tuple[str, str]] = set()
    for lane in snapshot.lanes:
        found.update((run.job, run.run_id) for run in lane.runs)
        found.update((run.job, run.run_id) for run in lane.forming)
        found.update((part.table.job, part.table.run_id) for part in lane.tables)
    return found


def _page() -> Answer:
    from reducer.server.daemon.status_page import page

    return page()


def _peers(metrics_host: str) -> Peers:
    from reducer.server.daemon.peers import Peers

    return Peers(metrics_host)


def _numbers(address: str, snapshot: Snapshot, peers: Answers) -> Answer:
    from reducer.server.daemon.status_page import numbers

    return json_answer(numbers(address, snapshot, peers))
