"""The settings of a parameter server. `reducer_client.config` finds them in the environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reducer_client import config

READER = -1
# A lane answers the heartbeats of a connection for tables, one each second. A partition with a
# backup moves when its lane is silent, so the limit is shorter then.
_LANE_SILENCE = 5.0


@dataclass(frozen=True)
class Settings:
    """Times are in seconds. ``worker``: READER if this process only reads. ``workers``: the number
    of workers; None if it is unknown.
    """

    addresses: tuple[str, ...]
    job: str
    worker: int
    workers: int | None
    run_id: str
    connect_timeout: float
    reducer_wait: float
    silence: float
    timeout: float
    replicas: int
    registry: str


def resolve(
    addresses: str | Sequence[str] | None,
    *,
    job: str | None,
    worker: int | None,
    workers: int | None,
    run_id: str | None,
    reader: bool,
    connect_timeout: float | None,
    reducer_wait: float | None,
    silence: float | None,
    timeout: float | None,
    replicas: int,
    registry: str | None,
) -> Settings:
    """Resolve the settings from arguments and environment. Raises ValueError."""
    if reader and worker is not None:
        raise ValueError(f"worker={worker} and reader=True: a reader has no number")
    rank, size = (None, workers) if reader else config.find_worker(worker, workers)
    found = config.require_addresses(addresses).value
    _check_replicas(replicas, found)
    return Settings(
        addresses=found,
        job=config.require_job(addresses, job),
        worker=READER if rank is None else rank,
        workers=size,
        run_id=config.resolve_run_id(run_id),
        connect_timeout=config.find_value("connect_timeout", connect_timeout),
        reducer_wait=config.find_value("reducer_wait", reducer_wait),
        silence=config.find_value("silence", silence, default=None if replicas else _LANE_SILENCE),
        timeout=config.DEFAULT_STEP_TIMEOUT if timeout is None else _above_zero(timeout),
        replicas=replicas,
        registry=config.resolve_registry(registry, found) if replicas else "",
    )


def _check_replicas(replicas: int, addresses: Sequence[str]) -> None:
    if replicas not in (0, 1):
        raise ValueError(f"replicas={replicas!r}: expected 0, or 1 for a backup of each partition")
    if replicas and len(addresses) < 2:
        raise ValueError(
            f"replicas=1 with one reducer ({addresses[0]}): the backup of a partition lives on "
            "another reducer: give two or more"
        )


def _above_zero(timeout: float) -> float:
    if not 0 < float(timeout) < float("inf"):
        raise ValueError(f"timeout={timeout!r}: expected seconds above 0")
    return float(timeout)
