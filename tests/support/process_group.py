"""A rank's process group on the reducers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import reducer_client.torch as reducer_torch
from reducer_client.config import keep_gloo_on_loopback


@contextmanager
def process_group(
    rank: int,
    world: int,
    addresses: list[str] | None,
    store: str,
    seconds: float = 60,
    **options: Any,
) -> Iterator[Any]:
    """The default group, destroyed at the end; ``options`` are the arguments of `Options`."""
    torch.set_num_threads(1)
    keep_gloo_on_loopback()
    dist.init_process_group(
        "reducer",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=seconds),
        pg_options=reducer_torch.Options(addresses=addresses, **options),
    )
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()
