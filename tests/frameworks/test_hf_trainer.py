"""Hugging Face's Trainer, which stands on Accelerate, on the backend "reducer"."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="Accelerate is not installed")

import torch  # only where it is installed
import torch.distributed as dist
from accelerate.state import AcceleratorState
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)

from reducer_client.arrays import Array
from tests.frameworks.launch import WORLD, Job, run_job
from tests.support.ranks import Tell

pytestmark = pytest.mark.timeout(400)
STEPS, BATCH, TOKENS = 20, 8, 16


def _dataset() -> list[dict[str, Any]]:
    """Sentences of random words; the label says whether word 1 is in it."""
    generator = torch.Generator().manual_seed(5)
    words = torch.randint(1, 20, (STEPS * BATCH * WORLD, TOKENS), generator=generator)
    return [{"input_ids": line, "labels": int((line == 1).any())} for line in words]


def _fit(folder: str) -> tuple[float, Array]:
    """The loss of the evaluation, and the parameters."""
    set_seed(1)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=20,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=TOKENS,
        )
    )
    arguments = TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        learning_rate=1e-3,
        ddp_find_unused_parameters=False,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    data = _dataset()
    trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=data[:64])
    result = trainer.train()
    assert result.global_step == STEPS and arguments.world_size == WORLD
    loss = trainer.evaluate()["eval_loss"]
    return loss, torch.cat([p.detach().view(-1) for p in model.parameters()]).numpy()


def _train(rank: int, world: int, job: Job, folder: str, tell: Tell) -> list[Any]:
    job.enter(rank, world)
    dist.init_process_group("reducer")
    ours = _fit(folder)
    tell("trained")
    tell.hear()
    dist.destroy_process_group()
    AcceleratorState._reset_state(reset_partial_state=True)
    job.enter_again()
    dist.init_process_group("gloo")
    gloo = _fit(folder)
    dist.destroy_process_group()
    return [*ours, *gloo]


def test_twenty_steps_of_a_tiny_bert(tmp_path: Path) -> None:
    taken, (first, second) = run_job("hf", _train, str(tmp_path))
    loss, parameters, gloo_loss, gloo = first
    gradients = WORLD * STEPS * 4 * parameters.size
    # Beside the gradients there are DDP's broadcasts of the parameters and a few small tensors.
    assert gradients <= taken <= gradients + 12 * parameters.size
    assert loss == second[0] and np.array_equal(parameters, second[1])
    np.testing.assert_allclose(loss, gloo_loss, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(parameters, gloo, rtol=1e-2, atol=1e-3)
