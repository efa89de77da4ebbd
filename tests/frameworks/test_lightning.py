"""Lightning on the backend "reducer": fit, validate, save, resume, and what gloo gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("lightning", reason="Lightning is not installed")

import lightning  # only where it is installed
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from reducer_client.arrays import Array
from tests.frameworks.launch import WORLD, Job, run_job
from tests.support.ranks import Tell

pytestmark = pytest.mark.timeout(400)
EPOCHS = 2
IMAGES, BATCH = 96, 8
STEPS = EPOCHS * IMAGES // BATCH // WORLD
WIDTH = 400
GRADIENT_BYTES = 4 * ((20 + 1) * WIDTH + (WIDTH + 1) * 3)


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 3))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        self.log("rank", float(self.global_rank), sync_dist=True)
        self.log("loss", self.training_step(batch, 0), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    def flat(self) -> Array:
        return torch.cat([p.detach().view(-1) for p in self.parameters()]).numpy()


def _loader() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(IMAGES, 20, generator=generator)
    targets = torch.randint(3, (IMAGES,), generator=generator)
    return DataLoader(TensorDataset(inputs, targets), batch_size=BATCH, shuffle=True)


def _fit(backend: str, folder: str, epochs: int = EPOCHS, **options: Any) -> tuple[Any, Model]:
    lightning.seed_everything(3, verbose=False)
    trainer = lightning.Trainer(
        strategy=DDPStrategy(process_group_backend=backend),
        accelerator="cpu",
        devices=WORLD,
        max_epochs=epochs,
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Model()
    trainer.fit(model, _loader(), **options)
    return trainer, model


def _train(rank: int, world: int, job: Job, folder: str, tell: Tell) -> dict[str, Any]:
    job.enter(rank, world)
    trainer, model = _fit("reducer", folder)
    assert dist.get_backend() == "reducer"
    tell("fitted")
    tell.hear()
    (found,) = trainer.validate(model, _loader(), verbose=False)
    assert found["rank"] == (world - 1) / 2
    checkpoint = f"{folder}/last.ckpt"
    trainer.save_checkpoint(checkpoint)
    resumed, model_resumed = _fit("reducer", folder, EPOCHS + 1, ckpt_path=checkpoint)
    assert resumed.global_step == STEPS + STEPS // EPOCHS
    _, model_whole = _fit("reducer", folder, EPOCHS + 1)
    dist.destroy_process_group()
    job.enter_again()
    _, model_gloo = _fit("gloo", folder)
    assert dist.get_backend() == "gloo"
    dist.destroy_process_group()
    return {
        "loss": found["loss"],
        "fitted": model.flat(),
        "resumed": model_resumed.flat(),
        "whole": model_whole.flat(),
        "gloo": model_gloo.flat(),
    }


def test_fit_validate_and_resume(tmp_path: Path) -> None:
    taken, (first, second) = run_job("lightning", _train, str(tmp_path))
    gradients = WORLD * STEPS * GRADIENT_BYTES
    # Beside the gradients there are DDP's broadcasts of the parameters and a few small tensors.
    assert gradients <= taken <= gradients + 3 * GRADIENT_BYTES
    assert first["loss"] == second["loss"]
    for run in ("fitted", "resumed", "whole"):
        assert np.array_equal(first[run], second[run]), run
    assert np.array_equal(first["resumed"], first["whole"])
    np.testing.assert_allclose(first["fitted"], first["gloo"], rtol=1e-4, atol=1e-6)
