"""Code for ranks that run torch beside the reducers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

from reducer_client import Group
from reducer_client.config import keep_gloo_on_loopback
from tests.support.ranks import join


@contextmanager
def gloo_and_group(
    rank: int, world: int, addresses: list[str], job: str, store: str
) -> Iterator[Group]:
    """One thread, torch's default process group over gloo, and a group of the reducers."""
    torch.set_num_threads(1)
    keep_gloo_on_loopback()
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    try:
        with join(rank, world, addresses, job) as group:
            yield group
    finally:
        dist.destroy_process_group()


def digest(module: nn.Module) -> str:
    """A hash of the bits of all parameters."""
    values = (v.detach().contiguous().view(torch.uint8).numpy() for v in module.parameters())
    return hashlib.sha256(b"".join(value.tobytes() for value in values)).hexdigest()
