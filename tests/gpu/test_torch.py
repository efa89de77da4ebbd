"""PyTorch on real GPUs, as a user writes it: nothing in the program knows of reducers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch  # only where it is installed
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.support import gpu_job
from tests.support.gpu_job import SECONDS, Ended, Job, enter, leave
from tests.support.ranks import Tell, start_ranks
from tests.support.reducers import Reducers

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.version.cuda is None, reason="this torch is built without CUDA"),
]

STEPS, BATCH = 20, 16
Batch = tuple[torch.Tensor, torch.Tensor]  # inputs and targets


def _in_group(
    rank: int, world: int, job: Job, store: str, body: Callable[..., tuple[Any, int]], tell: Tell
) -> Any:
    """A rank of torch's process group; the body gives its value and the bytes that it reduced."""
    enter(rank, job)
    torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group(
        "nccl", init_method=f"file://{store}", rank=rank, world_size=world,
        timeout=timedelta(seconds=SECONDS),
    )  # fmt: skip
    value, contributed = body(rank, world)
    leave(contributed, tell)
    dist.destroy_process_group()
    return value


def _run(
    world: int, reducers: Reducers, library: Path, folder: Path, body: Callable[..., Any]
) -> Ended:
    job = Job(reducers.addresses, folder, library)
    with start_ranks(world, _in_group, job, str(folder / "store"), body, talk=True) as ranks:
        return gpu_job.end(ranks, world, reducers, job)


def _model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(32, 256), nn.Tanh(), nn.Linear(256, 8))


def _batch(step: int, rank: int) -> Batch:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(BATCH, 32, generator=generator), torch.randn(BATCH, 8, generator=generator)


def _train(model: nn.Module, batches: Callable[[int], Batch]) -> list[float]:
    """The loss of each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for step in range(STEPS):
        inputs, targets = batches(step)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses


def _ddp(rank: int, world: int) -> tuple[list[float], int]:
    model = DistributedDataParallel(_model().cuda())

    def batches(step: int) -> Batch:
        inputs, targets = _batch(step, rank)
        return inputs.cuda(), targets.cuda()

    losses = _train(model, batches)
    gradients = sum(p.numel() * p.element_size() for p in model.parameters())
    return losses, STEPS * gradients


def _alone(world: int) -> list[float]:
    """The same training in one process, on the batches of all ranks together."""

    def batches(step: int) -> Batch:
        inputs, targets = zip(*(_batch(step, rank) for rank in range(world)), strict=True)
        return torch.cat(inputs), torch.cat(targets)

    return _train(_model(), batches)


def test_ddp_trains_as_one_process_would(library: Path, reducers: Reducers, tmp_path: Path) -> None:
    ended = _run(2, reducers, library, tmp_path, _ddp)
    ended.assert_through_reducers()
    means = [sum(losses) / 2 for losses in zip(*ended.values, strict=True)]
    assert means == pytest.approx(_alone(2), rel=1e-4)
    assert means[-1] < means[0]


def _groups(rank: int, world: int) -> tuple[list[float], int]:
    pair, everyone = dist.new_group([0, 1]), dist.new_group(list(range(world)))
    values = torch.full((100_000,), float(rank + 1), device="cuda")
    sums, contributed = [], 0
    for group in (everyone, pair, dist.group.WORLD):
        if group is pair and rank > 1:
            continue
        reduced = values.clone()
        dist.all_reduce(reduced, group=group)
        assert bool((reduced == reduced[0]).all())
        sums.append(float(reduced[0]))
        contributed += values.numel() * values.element_size()
    return sums, contributed


def test_groups_within_a_job(library: Path, reducers: Reducers, tmp_path: Path) -> None:
    ended = _run(3, reducers, library, tmp_path, _groups)
    ended.assert_through_reducers()
    assert ended.values == [[6.0, 3.0, 6.0], [6.0, 3.0, 6.0], [6.0, 6.0]]
