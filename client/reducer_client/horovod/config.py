"""Settings of the Horovod layer. Only this module of the layer reads the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from reducer.cluster.discovery import discover

DEFAULT_FUSION_THRESHOLD = 128 << 20
DEFAULT_CYCLE_MILLISECONDS = 1.0
DEFAULT_CACHE_CAPACITY = 1024
DEFAULT_STALL_SECONDS = 60.0
DEFAULT_ELASTIC_SECONDS = 600.0
# Value of HOROVOD_TIMELINE for a timeline that only start_timeline() starts.
DYNAMIC_TIMELINE = "DYNAMIC"


@dataclass(frozen=True)
class HorovodSettings:
    """Settings from the ``HOROVOD_*`` variables. Times are in seconds.

    All ranks use rank 0's ``fusion_threshold`` (bytes) and ``cache_capacity`` (requests).
    ``timeline`` is a file name or "". 0 for ``stall_check`` means no warning, 0 for
    ``stall_shutdown`` no timeout. ``elastic_timeout`` is the timeout of every ``init`` after the
    first one. ``elastic`` says whether ``HOROVOD_ELASTIC_TIMEOUT`` is set; if so, the first
    ``init`` also waits at least ``elastic_timeout``.
    """

    fusion_threshold: int
    cycle_time: float
    cache_capacity: int
    timeline: str
    mark_cycles: bool
    stall_check: float
    stall_shutdown: float
    elastic_timeout: float
    elastic: bool


@dataclass(frozen=True)
class Membership:
    """This process's rank, and the number of ranks.

    ``local_rank`` is None if the launcher does not give it. ``reducers`` says whether the
    environment names reducers. ``run_id`` is "" if rank 0 is to make one.
    """

    rank: int
    size: int
    local_rank: int | None
    reducers: bool
    run_id: str


def resolve(environ: Mapping[str, str] | None = None) -> HorovodSettings:
    """Settings from the environment.

    Raises ValueError, which names the variable, its value and the expected values.
    """
    env = os.environ if environ is None else environ
    timeline = env.get("HOROVOD_TIMELINE", "")
    disabled = _flag(env, "HOROVOD_STALL_CHECK_DISABLE")
    stall_check = _number(env, "HOROVOD_STALL_CHECK_TIME_SECONDS", DEFAULT_STALL_SECONDS)
    cycle = _number(env, "HOROVOD_CYCLE_TIME", DEFAULT_CYCLE_MILLISECONDS)
    return HorovodSettings(
        fusion_threshold=int(_number(env, "HOROVOD_FUSION_THRESHOLD", DEFAULT_FUSION_THRESHOLD)),
        cycle_time=cycle / 1e3,
        cache_capacity=int(_number(env, "HOROVOD_CACHE_CAPACITY", DEFAULT_CACHE_CAPACITY)),
        timeline="" if timeline == DYNAMIC_TIMELINE else timeline,
        mark_cycles=_flag(env, "HOROVOD_TIMELINE_MARK_CYCLES"),
        stall_check=0.0 if disabled else stall_check,
        stall_shutdown=_number(env, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 0.0),
        elastic_timeout=_number(env, "HOROVOD_ELASTIC_TIMEOUT", DEFAULT_ELASTIC_SECONDS),
        elastic=bool(env.get("HOROVOD_ELASTIC_TIMEOUT", "").strip()),
    )


def resolve_membership(environ: Mapping[str, str] | None = None) -> Membership:
    """This process's rank and the number of ranks from the environment; else rank 0 of 1.

    Raises ValueError if the environment gives only a rank or only a world size.
    """
    env = os.environ if environ is None else environ
    found = discover(env)
    if found.rank is not None and found.world_size is None:
        raise ValueError(
            f"no world size, only a rank (from {found.rank.source}): set HOROVOD_SIZE or "
            "REDUCER_WORLD_SIZE (`reducer env` shows what is found)"
        )
    size = 1 if found.world_size is None else found.world_size.value
    if found.rank is None and size > 1:
        assert found.world_size is not None
        raise ValueError(
            f"no rank, only a world size (from {found.world_size.source}): set HOROVOD_RANK or "
            "REDUCER_RANK (`reducer env` shows what is found)"
        )
    return Membership(
        rank=0 if found.rank is None else found.rank.value,
        size=size,
        local_rank=None if found.local_rank is None else found.local_rank.value,
        reducers=found.addresses is not None,
        run_id="" if found.run_id is None else found.run_id.value,
    )


def is_elastic(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the workers of the job come and go: ``REDUCER_WORKERS`` says how many start it."""
    return bool((os.environ if environ is None else environ).get("REDUCER_WORKERS", "").strip())


def _number(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ValueError(f"{name}={text!r}: expected a number that is 0 or more")
    return value


def _flag(env: Mapping[str, str], name: str) -> bool:
    return env.get(name, "").strip() not in ("", "0")
