"""Asks the other reducers of the jobs for their statistics, for the status page."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from reducer.server import serve_options
from reducer.status.ask import ask_all
from reducer.status.here import find_here

logger = logging.getLogger("reducer.admin")

MAX_PEERS: Final = 64
_ANSWER_SECONDS = 1.0  # that a reducer has
_LOOK_SECONDS = 1.5  # that the page waits; a name server may be slower


# The job and the id of each run.
Runs = AbstractSet[tuple[str, str]]


@dataclass(frozen=True)
class Answers:
    """What the reducers answered to /api/stats, and the texts of the errors, both by address."""

    stats: dict[str, dict[str, Any]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


class Peers:
    """The reducers that the environment names, else this machine's reducers that share a run.

    The second way is for a page that only this machine can read: the machine's other reducers may
    belong to someone else.
    """

    def __init__(self, metrics_host: str) -> None:
        self._named = _named()[:MAX_PEERS]
        self._on_loopback = serve_options.is_loopback(metrics_host)
        self._thread = ThreadPoolExecutor(1)  # not the thread that makes pages for probes
        self._asking: asyncio.Future[Answers] | None = None
        self._last = Answers()

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def ask(self, runs: Runs) -> Answers:
        """The answers, perhaps with this reducer's own among them.

        ``runs``: the runs of this reducer. If the answers take too long, the last ones count.
        """
        loop = asyncio.get_running_loop()
        asking = self._asking or loop.run_in_executor(self._thread, self._ask, runs)
        self._asking = asking
        await asyncio.wait({asking}, timeout=_LOOK_SECONDS)
        if asking.done():
            self._asking = None
            self._last = asking.result()
        return self._last

    def _ask(self, runs: Runs) -> Answers:
        if self._named:
            return Answers(*ask_all(self._named, _ANSWER_SECONDS))
        here = find_here()[:MAX_PEERS] if self._on_loopback and runs else []
        found = ask_all(here, _ANSWER_SECONDS)[0] if here else {}
        return Answers({at: stats for at, stats in found.items() if runs & runs_of(stats)})


def runs_of(stats: Mapping[str, Any]) -> Runs:
    """The job and the id of each run in the answer to /api/stats."""
    reports = [lane["report"] for lane in stats["lanes"]]
    kinds = ("runs", "forming", "tables")
    return {
        (run["job"], run["run_id"])
        for report in reports
        for kind in kinds
        for run in report.get(kind, ())
    }


def _named() -> list[str]:
    try:
        found = serve_options.find_cluster().addresses
    except serve_options.ConfigError as error:
        logger.warning("the status page shows this reducer only: %s", error)
        return []
    return [] if found is None else list(found.value)
