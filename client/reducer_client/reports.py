"""Stall reports: which rounds wait too long, and for which ranks."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from reducer_client.engine import EngineError

if TYPE_CHECKING:
    from reducer_client._engine import Engine

logger = logging.getLogger("reducer_client")

# Enough to name every round that one STALL message can hold.
_KEPT = 16
_SHOWN = 3
# Lanes answer in milliseconds; an error waits for those that do not.
_ANSWER_SECONDS = 2.0

Absent: TypeAlias = dict[tuple[str, int], list[int]]


class StallReports:
    """Takes the engine's reports, logs each once at WARNING and keeps the latest for errors."""

    def __init__(self, engine: Engine, about: dict[str, object]) -> None:
        self._engine = engine
        self._about = about
        self._recent: deque[str] = deque(maxlen=_KEPT)

    def collect(self) -> None:
        """Called by whoever waits; any thread."""
        for line in self._engine.take_reports():
            self._recent.append(line)
            logger.warning("%s", line, extra={"about": self._about})

    def ask(self) -> Absent:
        """The ranks that are absent now from the oldest open rounds, by key and round.

        Empty if the lanes do not answer in time.
        """
        try:
            lanes = self._engine.stats(_ANSWER_SECONDS)
        except EngineError:
            return {}
        found: dict[tuple[str, int], set[int]] = {}
        for lane in lanes:
            for row in cast("list[dict[str, Any]]", lane.get("waiting", [])):
                found.setdefault((row["key"], row["round"]), set()).update(row["absent"])
        return {of: sorted(ranks) for of, ranks in found.items()}

    def describe(self, key: str) -> str:
        """What was reported about a key (or else about any), for the text of an error."""
        self.collect()
        lines = list(dict.fromkeys(self._recent))
        about_key = [line for line in lines if f"'{key}'" in line]
        return "; ".join((about_key or lines)[-_SHOWN:])
