"""The options that the main process gives to a lane process at its start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reducer.kernels import Choice


@dataclass(frozen=True)
class LaneOptions:
    """Options of one lane process, as JSON in the only argument of its command."""

    lane: int
    lanes: int
    core: int | None  # to which the lane is bound
    parent: int
    orders_fd: int
    answers_fd: int
    memory: int
    credit: int
    records: int
    stall_after: float
    drain_timeout: float
    slow_reader_timeout: float
    congestion: str  # TCP's, of connections to other reducers
    job_memory: int
    max_total_runs: int
    max_runs: int
    max_reducers: int
    max_keys: int
    kernels: Choice
    psk: bool
    tls: Sequence[str]  # TlsFiles, or empty
    log_level: str
    log_format: str
    debug: str
    timeline: str  # a folder, or empty
    registry: str  # a file, or empty
