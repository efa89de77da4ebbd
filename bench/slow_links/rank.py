"""One rank's part of a comparison: every method and seed in turn, in one process."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.compression.digits import Digits
from bench.slow_links.methods import with_wires
from bench.slow_links.recipes import RECIPES
from reducer_client import Group
from reducer_client.config import keep_gloo_on_loopback
from reducer_client.errors import NumericError
from reducer_client.torch import DiLoCo, Options, attach
from reducer_client.torch.backend.process_group import ReducerProcessGroup


@dataclass(frozen=True)
class Trained:
    """One training. ``nbytes`` were received and sent by the reducers for all workers."""

    accuracy: float
    steps: int
    nbytes: int
    digest: str


@dataclass(frozen=True)
class Job:
    """What all ranks are told."""

    workers: int
    names: Sequence[str]
    wires: Sequence[str]
    seeds: int
    recipe: str
    epochs: int
    addresses: list[str]
    folder: Path


def work(rank: int, job: Job) -> list[dict[str, Trained]]:
    """The trainings of each seed, by method."""
    torch.set_num_threads(1)
    keep_gloo_on_loopback()
    dist.init_process_group(
        "reducer", init_method=f"file://{job.folder}/store", rank=rank, world_size=job.workers,
        pg_options=Options(addresses=job.addresses, job="slow-links"),
    )  # fmt: skip
    digits = Digits(rank, job.workers, job.folder / "digits.npz")
    try:
        return [
            {name: _train(name, job, digits, seed) for name in job.names}
            for seed in range(1, job.seeds + 1)
        ]
    finally:
        dist.destroy_process_group()


def _train(name: str, job: Job, digits: Digits, seed: int) -> Trained:
    method = with_wires(list(job.wires))[name]
    group = _group()
    recipe = RECIPES[job.recipe]
    model: Any = recipe.net(seed)
    optimizer: Any = recipe.optimizer(model)
    if method.options is None:
        model = DistributedDataParallel(model)
        attach(model, group)
    else:
        spoiled = method.spoil(group, seed)
        optimizer = DiLoCo(model, optimizer, spoiled, prefix=f"{name}/{seed}", **method.options)
    before = _at_reducers(group)
    try:
        trained = digits.train(model, seed, job.epochs, optimizer)
        accuracy, steps, digest = trained.accuracy, trained.steps, _digest(model)
    except NumericError:  # on all ranks after the same step, with a wrong sign
        accuracy, steps, digest = digits.accuracy(model), optimizer.steps, "diverged"
    return Trained(accuracy, steps, _at_reducers(group) - before, digest)


def _digest(model: nn.Module) -> str:
    parameters = (p.detach().numpy().tobytes() for p in model.parameters())
    return hashlib.sha256(b"".join(parameters)).hexdigest()


def _at_reducers(group: Group) -> int:
    """The payload that the reducers have received and sent for this job."""
    group.barrier()
    lanes = group.stats()["reducers"]
    group.barrier()
    return sum(lane["bytes_in"] + lane["bytes_out"] for lane in lanes)


def _group() -> Group:
    process_group = dist.group.WORLD
    assert isinstance(process_group, ReducerProcessGroup)
    group = process_group.reducer_group
    assert isinstance(group, Group)
    return group
