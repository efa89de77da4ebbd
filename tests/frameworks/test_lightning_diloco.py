"""Lightning's callback ``DiLoCo``: workers with a Trainer each, and what plain PyTorch gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("lightning", reason="Lightning is not installed")

import lightning  # only where it is installed
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from reducer_client import Group
from reducer_client.torch import DiLoCo
from reducer_client.torch.lightning import DiLoCo as Callback
from tests.support.ranks import join, run_ranks

pytestmark = pytest.mark.timeout(300)
IMAGES, BATCH, EPOCHS = 96, 8, 2
STREAMED: dict[str, Any] = {"every": 5, "fragments": 2, "delay": 1, "keep_local": 0.5}


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 3))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 0.01)


def _make() -> Model:
    torch.manual_seed(3)
    return Model()


def _loader(rank: int) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(rank)
    inputs = torch.randn(IMAGES, 20, generator=generator)
    return DataLoader(TensorDataset(inputs, inputs.argmax(1) % 3), batch_size=BATCH)


def _fit(group: Group, folder: str, epochs: int, checkpoint: str | None = None) -> Any:
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=epochs,
        default_root_dir=folder,
        callbacks=[
            Callback(group, **STREAMED),
            lightning.pytorch.callbacks.ModelCheckpoint(folder, save_top_k=-1),
        ],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = _make()
    trainer.fit(model, _loader(group.rank), ckpt_path=checkpoint)
    return model


def _flat(model: nn.Module) -> Any:
    return torch.cat([p.detach().view(-1) for p in model.parameters()]).numpy()


def _work(rank: int, world: int, addresses: list[str], job: str, folder: str) -> Any:
    torch.set_num_threads(1)
    with join(rank, world, addresses, job) as group:
        folder = f"{folder}/{rank}"
        whole = _fit(group, folder, EPOCHS)
        plain = _make()
        opt = DiLoCo(plain, torch.optim.Adam(plain.parameters(), 0.01), group, **STREAMED)
        for _ in range(EPOCHS):
            for batch in _loader(rank):
                opt.zero_grad()
                plain.training_step(batch, 0).backward()
                opt.step()
        opt.finish()
        # A fragment was sent after step 12, and is in flight at the end of the epoch.
        resumed = _fit(group, f"{folder}/again", EPOCHS, f"{folder}/epoch=0-step=12.ckpt")
        return _flat(whole), _flat(plain), _flat(resumed)


def test_it_trains_as_pytorchs_does_and_resumes(addresses: list[str], tmp_path: Any) -> None:
    first, second = run_ranks(2, _work, addresses, "lightning-diloco", str(tmp_path), timeout=150)
    whole, plain, resumed = first
    assert np.array_equal(whole, second[0])
    assert np.array_equal(whole, plain)
    assert np.array_equal(whole, resumed)
