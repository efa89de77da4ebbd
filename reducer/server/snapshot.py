"""What the pages of the metrics port are made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Snapshot:
    """The daemon's numbers at one moment; ``lanes`` as `reducer.server.lane` reports them.

    ``time`` and ``started_at``: seconds since 1970; ``usage``: of the main process, as a lane's.
    ``down``: lanes that have died and are not up again; not in ``lanes``. ``restarts``: by lane.
    """

    version: str
    protocol: str
    mode: str
    time: float
    started_at: float
    ready: bool
    down: list[int]
    restarts: Mapping[int, int]
    accepted: int
    refused: Mapping[str, int]
    metrics_dropped: Mapping[str, int]
    dropped_log_lines: int
    usage: Mapping[str, float]
    lanes: list[dict[str, Any]]
