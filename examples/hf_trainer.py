"""Hugging Face Trainer, on Accelerate: trains a small vision transformer without a download."""

import tempfile

import numpy as np
import torch
import torch.distributed as dist
from digits import load, report
from torch.utils.data import Dataset
from transformers import (
    EvalPrediction,
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
    set_seed,
)


class Digits(Dataset):
    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self._images, self._labels = images.reshape(-1, 1, 8, 8), labels

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> dict[str, object]:
        return {
            "pixel_values": torch.from_numpy(self._images[index]),
            "labels": int(self._labels[index]),
        }


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    guesses = prediction.predictions.argmax(-1)
    return {"accuracy": float((guesses == prediction.label_ids).mean())}


def main() -> None:
    dist.init_process_group("reducer")  # <- the only new line, before TrainingArguments
    set_seed(0)
    config = ViTConfig(
        image_size=8,
        patch_size=2,
        num_channels=1,
        num_labels=10,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    training, test = (Digits(*part) for part in load())
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            num_train_epochs=8,
            per_device_train_batch_size=24,
            per_device_eval_batch_size=64,
            learning_rate=3e-3,
            max_grad_norm=1.0,
            logging_strategy="epoch",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            ddp_find_unused_parameters=False,
        )
        trainer = Trainer(
            ViTForImageClassification(config),
            arguments,
            train_dataset=training,
            eval_dataset=test,
            compute_metrics=accuracy,
        )
        trainer.train()
        found = trainer.evaluate()
    if dist.get_rank() == 0:
        report(found["eval_accuracy"], dist.group.WORLD.reducer_group.stats())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
