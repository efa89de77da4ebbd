"""One DDP worker of the demo, which trains the same model over the reducers and over gloo."""

from __future__ import annotations

import traceback
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist

import reducer_client
from reducer_client import Group, PeerLostError
from reducer_client.config import keep_gloo_on
from reducer_tools.children import Done, Failure
from reducer_tools.demo.messages import BLOCK, RUNS, Job, Ready, RunResult, Step
from reducer_tools.demo.text import Text
from reducer_tools.demo.trainer import Trainer


def main(job: Job, rank: int, connection: Connection) -> None:
    """The main function of a worker process."""
    torch.set_num_threads(1)
    keep_gloo_on(job.interface)
    try:
        connection.send(Done(_train(job, rank, connection)))
    except Exception as error:
        connection.send(Failure(traceback.format_exc(), _follows(error)))


def _train(job: Job, rank: int, connection: Connection) -> list[RunResult]:
    store = f"file://{job.folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=job.world_size)
    with _join(job, rank) as group:
        text = Text()
        sides = zip(RUNS, (group, None), strict=True)
        trainers = [Trainer(run, job, rank, text, side) for run, side in sides]
        connection.send(Ready())
        _take_turns(trainers, job.steps, connection if rank == 0 else None)
    dist.destroy_process_group()
    return [trainer.result() for trainer in trainers]


def _join(job: Job, rank: int) -> Group:
    return reducer_client.connect(
        job.addresses,
        job="demo",
        rank=rank,
        world_size=job.world_size,
        transport="tcp",
        hosted=False,
        key_file=job.key_file,
        # Whatever the user's environment says.
        tls_cert="",
        tls_key="",
        tls_ca="",
    )


def _take_turns(trainers: list[Trainer], steps: int, connection: Connection | None) -> None:
    """Train in turns, in reversed order from turn to turn, so both runs get the same machine."""
    for turn, first in enumerate(range(0, steps, BLOCK)):
        for trainer in trainers[:: -1 if turn % 2 else 1]:
            dist.barrier()
            for number in range(first + 1, min(first + BLOCK, steps) + 1):
                seconds, loss = trainer.step()
                if connection is not None:
                    connection.send(Step(trainer.run, number, seconds, loss))


def _follows(error: Exception) -> bool:
    """Whether a worker failed only because another one had ended."""
    return isinstance(error, PeerLostError) or "gloo" in str(error)
