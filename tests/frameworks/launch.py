"""Ranks as a launcher starts them, and the bytes of theirs that the reducers have counted."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from reducer_client import torch_autoload
from reducer_client.config import keep_gloo_on_loopback
from tests.support.ports import free_port
from tests.support.ranks import start_ranks, values
from tests.support.reducers import Reducers

WORLD = 2


@dataclass(frozen=True)
class Job:
    """What all ranks of a run know of it; the ports are those of torch's stores."""

    name: str
    addresses: list[str]
    port: int = field(default_factory=free_port)
    next_port: int = field(default_factory=free_port)

    def enter(self, rank: int, world: int) -> None:
        """Make this process the rank, with torchrun's variables; before a framework looks."""
        torch_autoload.register()  # as an installation does by its entry point
        torch.set_num_threads(1)
        keep_gloo_on_loopback()
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(world),
            LOCAL_WORLD_SIZE=str(world),
            GROUP_RANK="0",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(self.port),
            TORCHELASTIC_RUN_ID=self.name,
            OMP_NUM_THREADS="1",
            REDUCER_ADDRS=",".join(self.addresses),
        )

    def enter_again(self) -> None:
        """For another process group of the same ranks."""
        os.environ["MASTER_PORT"] = str(self.next_port)


def run_job(
    name: str, function: Callable[..., Any], *args: Any, timeout: float = 150.0
) -> tuple[int, list[Any]]:
    """Run ``function(rank, world, job, *args, tell)`` on ranks beside two reducers.

    Every rank calls ``tell`` once, with its process group still there, and then ``tell.hear``.

    Returns:
        The bytes that the reducers had taken by then, and the values of the ranks.
    """
    with (
        Reducers(2) as reducers,
        start_ranks(WORLD, function, Job(name, reducers.addresses), *args, talk=True) as ranks,
    ):
        for rank in range(WORLD):
            ranks.receive(rank, timeout)
        taken = reducers.bytes_in()
        for rank in range(WORLD):
            ranks.send(rank)
        return taken, values(ranks.collect(timeout))
