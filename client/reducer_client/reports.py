"""Stall reports: which rounds have waited too long, and which ranks are absent from each."""

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
# Lanes answer in milliseconds. A lane that does not answer delays an error by this time at most.
_ANSWER_SECONDS = 2.0

Absent: TypeAlias = dict[tuple[str, int], list[int]]


class StallReports:
    """Logs each of the engine's stall reports at WARNING and keeps the latest for error texts."""

    def __init__(self, engine: Engine, about: dict[str, object]) -> None:
        self._engine = engine
        self._about = about
        self._recent: deque[str] = deque(maxlen=_KEPT)

    def collect(self) -> None:
        """Log and keep the engine's new reports. Any thread may call this."""
        for line in self._engine.take_reports():
            self._recent.append(line)
            logger.warning("%s", line, extra={"about": self._about})

    def ask(self) -> Absent:
        """Ask the lanes which ranks are absent from the oldest open rounds, by (key, round).

        The result is empty if the lanes do not answer in time.
        """
        try:
            lanes = self._engine.stats(_ANSWER_SECONDS)
        except EngineError:
            return {}
        found: dict[tuple[str, int], set[int]] = {}
        for lane in lanes:
            for row in cast("list[dict[str, Any]]", lane.get("waiting", [])):
                found.setdefault((row["key"], row["round"]), set()).update(row["absent"])
        return {key_and_round: sorted(ranks) for key_and_round, ranks in found.items()}

    def describe(self, key: str) -> str:
        """The latest reports about a key, or about any key if there are none, for an error text."""
        self.collect()
        lines = list(dict.fromkeys(self._recent))
        about_key = [line for line in lines if f"'{key}'" in line]
        return "; ".join((about_key or lines)[-_SHOWN:])
