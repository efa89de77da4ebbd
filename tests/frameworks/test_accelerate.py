"""Accelerate over reducers: the process group before the Accelerator, or a hook after prepare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("accelerate", reason="Accelerate is not installed")

import torch  # only where it is installed
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, broadcast_object_list
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import reducer_client
import reducer_client.torch as reducer_torch
from reducer_client.arrays import Array
from tests.frameworks.launch import WORLD, Job, run_job
from tests.support.ranks import Tell

pytestmark = pytest.mark.timeout(400)
IMAGES, BATCH, HELD = 96, 4, 2
STEPS = IMAGES // BATCH // WORLD // HELD
WIDTH = 400
CLIP = 0.5
GRADIENT_BYTES = 4 * ((20 + 1) * WIDTH + (WIDTH + 1) * 3)


def _prepare(accelerator: Accelerator) -> tuple[Any, Any, Any]:
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(20, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 3))
    generator = torch.Generator().manual_seed(7)
    data = TensorDataset(
        torch.randn(IMAGES, 20, generator=generator),
        torch.randint(3, (IMAGES,), generator=generator),
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    return accelerator.prepare(net, optimizer, DataLoader(data, batch_size=BATCH))


def _epoch(accelerator: Accelerator, model: Any, optimizer: Any, data: Any) -> list[float]:
    norms = []
    for inputs, targets in data:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.cross_entropy(model(inputs), targets))
            if accelerator.sync_gradients:
                norms.append(accelerator.clip_grad_norm_(model.parameters(), CLIP).item())
            optimizer.step()
            optimizer.zero_grad()
    return norms


def _flat(model: nn.Module) -> Array:
    return torch.cat([p.detach().view(-1) for p in model.parameters()]).numpy()


def _collect(accelerator: Accelerator, rank: int) -> None:
    """Everything beside gradients, against what each rank can compute for itself."""
    assert accelerator.gather(torch.tensor([rank])).tolist() == [0, 1]
    assert accelerator.gather_for_metrics([f"rank {rank}"], use_gather_object=True) == [
        "rank 0",
        "rank 1",
    ]
    assert accelerator.reduce(torch.tensor([rank + 1.0]), "mean").item() == 1.5
    padded = accelerator.pad_across_processes(torch.ones(rank + 1))
    assert padded.tolist() == ([1, 0], [1, 1])[rank]
    assert broadcast_object_list([rank]) == [0]
    with accelerator.main_process_first():
        accelerator.wait_for_everyone()


def _train(rank: int, world: int, job: Job, folder: str, tell: Tell) -> dict[str, Any]:
    job.enter(rank, world)
    dist.init_process_group("reducer")
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=HELD)
    assert (accelerator.num_processes, accelerator.process_index) == (world, rank)
    prepared = _prepare(accelerator)
    norms = _epoch(accelerator, *prepared)
    found = {"trained": _flat(prepared[0])}
    tell("trained")
    tell.hear()
    assert len(norms) == STEPS and max(norms) > CLIP  # it has clipped
    _collect(accelerator, rank)
    accelerator.save_state(folder)
    for run in ("on", "again"):
        _epoch(accelerator, *prepared)
        found[run] = _flat(prepared[0])
        accelerator.load_state(folder)
    accelerator.end_training()
    assert not dist.is_initialized()
    return found


def test_train_gather_save_and_load(tmp_path: Path) -> None:
    taken, (first, second) = run_job("accelerate", _train, str(tmp_path))
    gradients = WORLD * STEPS * GRADIENT_BYTES
    # Beside the gradients there are DDP's broadcasts of the parameters and a few small tensors.
    assert gradients <= taken <= gradients + 3 * GRADIENT_BYTES
    assert all(np.array_equal(first[run], second[run]) for run in first)
    assert np.array_equal(first["on"], first["again"])
    assert not np.array_equal(first["on"], first["trained"])


def _over_gloo(name: str, group: reducer_client.Group) -> Array:
    class Handler(DistributedDataParallelKwargs):
        """Registers our hook where Accelerate registers those that it knows; it copies fields."""

        def register_comm_hook(self, model: Any) -> None:
            reducer_torch.attach(model, group)

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=HELD)
    if name == "handler":
        accelerator.ddp_handler = Handler()
    model, optimizer, data = _prepare(accelerator)
    if name == "attach":
        reducer_torch.attach(model, group)
    _epoch(accelerator, model, optimizer, data)
    return _flat(model)


def _hook(rank: int, world: int, job: Job, tell: Tell) -> dict[str, Array]:
    job.enter(rank, world)
    dist.init_process_group("gloo")
    with reducer_client.connect() as group:
        found = {name: _over_gloo(name, group) for name in ("attach", "handler", "gloo")}
        tell("trained")
        tell.hear()
    dist.destroy_process_group()
    return found


def test_a_hook_after_prepare_and_one_of_a_handler() -> None:
    taken, (first, second) = run_job("accelerate-hook", _hook)
    assert taken == 2 * WORLD * STEPS * GRADIENT_BYTES
    assert all(np.array_equal(first[run], second[run]) for run in first)
    assert np.array_equal(first["attach"], first["handler"])
    np.testing.assert_allclose(first["attach"], first["gloo"], rtol=1e-4, atol=1e-6)
