"""The settings of a group, resolved: arguments, then variables, then launchers, then defaults."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from reducer_client.config.chunks import check_weights, default_chunk_table
from reducer_client.config.cluster import find_ranks, require_addresses, require_job, resolve_run_id
from reducer_client.config.given import (
    CudaWait,
    Given,
    OnNonfinite,
    OnOverflow,
    Transport,
    find_value,
)

DEFAULT_STEP_TIMEOUT = 300.0
_CUDA_QUEUES = 8  # CUDA's default


@dataclass(frozen=True)
class Settings:
    """The settings of ``connect``, resolved from arguments and environment.

    ``run_id`` is "" on a rank that gets the id from rank 0. Times are in seconds. ``step_timeout``
    is None if the caller gave none.
    """

    addresses: tuple[str, ...]
    job: str
    rank: int
    world_size: int
    run_id: str
    connect_timeout: float
    step_timeout: float | None
    silence: float
    worker_silence: float
    reducer_wait: float
    on_overflow: OnOverflow
    on_nonfinite: OnNonfinite
    chunk_table: tuple[tuple[int, int], ...]
    weights: tuple[int, ...]
    min_reducers: int
    transport: Transport
    congestion: str
    source: str
    digest_every: int
    io_threads: int
    timeline: str
    cuda_wait: CudaWait


def resolve(given: Given | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Resolve the settings from what the program gave and the environment.

    Raises ValueError, which names the setting and the bad value.
    """
    env = os.environ if environ is None else environ
    given = Given() if given is None else given
    rank, world_size = find_ranks(given.rank, given.world_size, env)
    addresses = require_addresses(given.addresses, env).value
    values: dict[str, Any] = {name: find_value(name, getattr(given, name), env) for name in _PLAIN}
    weights = check_weights(values.pop("weights"), len(addresses))
    table = values.pop("chunk_table") or default_chunk_table(len(addresses), weights)
    return Settings(
        addresses=addresses,
        job=require_job(given.addresses, given.job, env),
        rank=rank,
        world_size=world_size,
        run_id=_resolve_run_id(env, given.run_id, rank),
        chunk_table=table,
        weights=weights,
        min_reducers=_resolve_min_reducers(values.pop("min_reducers"), len(addresses)),
        cuda_wait=_resolve_cuda_wait(values.pop("cuda_wait"), env),
        **values,
    )


_FOUND_ELSEWHERE = {"addresses", "job", "rank", "world_size", "run_id"}
_PLAIN = [each.name for each in fields(Settings) if each.name not in _FOUND_ELSEWHERE]


def _resolve_run_id(env: Mapping[str, str], given: str | None, rank: int) -> str:
    found = resolve_run_id(given, env)
    return secrets.token_hex(8) if not found and rank == 0 else found


def _resolve_min_reducers(least: int, reducers: int) -> int:
    if least > reducers:
        raise ValueError(
            f"min_reducers={least}: expected 1 to {reducers}, the number of the reducers"
        )
    return least


def _resolve_cuda_wait(wanted: CudaWait, env: Mapping[str, str]) -> CudaWait:
    """Who waits for results on CUDA devices.

    With fewer than 8 hardware queues (``CUDA_DEVICE_MAX_CONNECTIONS``) two streams may share one,
    so that a stream that waits for a result could hold up the values that the others wait for. Then
    the host waits in any case.
    """
    queues = env.get("CUDA_DEVICE_MAX_CONNECTIONS", "") or str(_CUDA_QUEUES)
    is_few = not queues.isdecimal() or int(queues) < _CUDA_QUEUES
    return "host" if is_few else wanted
