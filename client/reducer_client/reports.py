"""Stall reports: which rounds wait too long, and for which ranks."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reducer_client._engine import Engine

logger = logging.getLogger("reducer_client")

# Enough to name every round that one STALL message can hold.
_KEPT = 16
_SHOWN = 3


class StallReports:
    """Takes the engine's reports, logs each once at WARNING and keeps the latest for errors."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._recent: deque[str] = deque(maxlen=_KEPT)

    def collect(self) -> None:
        """Called by whoever waits; any thread."""
        for line in self._engine.take_reports():
            self._recent.append(line)
            logger.warning("%s", line)

    def describe(self, key: str) -> str:
        """What was reported about a key (or else about any), for the text of an error."""
        self.collect()
        lines = list(dict.fromkeys(self._recent))
        about_key = [line for line in lines if f"'{key}'" in line]
        return "; ".join((about_key or lines)[-_SHOWN:])
