"""The training that every method runs: handwritten digits, plain SGD, DDP."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from reducer_client.torch import DiLoCo

# 1,000 of the 1,797 images train. The 797 test images resolve an eighth of a percentage point.
_TRAINING_IMAGES = 1000
_BATCH = 64  # over all workers
_WIDTH = 512
_LEARNING_RATE = 0.2
EPOCHS = 12
Examples = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Trained:
    """The result of one training; ``seconds`` is the time of its steps."""

    accuracy: float
    steps: int
    seconds: float


class Digits:
    """The images, with a fixed split into training and test, and this rank's part of each batch."""

    def __init__(self, rank: int, world_size: int, path: Path) -> None:
        self._rank, self._world_size = rank, world_size
        with np.load(path) as digits:
            images, targets = digits["images"], digits["labels"]
        order = np.random.default_rng(0).permutation(len(targets))
        pixels = torch.from_numpy((images[order] / 16.0).astype(np.float32))
        labels = torch.from_numpy(targets[order].astype(np.int64))
        part = _TRAINING_IMAGES
        self._training: Examples = pixels[:part], labels[:part]
        self._test: Examples = pixels[part:], labels[part:]

    def train(
        self,
        model: nn.Module,
        seed: int,
        epochs: int = EPOCHS,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> Trained:
        """Train a model whose hook is registered; ``seed`` gives the order of the images.

        `make_optimizer` makes the ``optimizer`` by default. A `DiLoCo` is finished at the end.
        """
        optimizer = optimizer or make_optimizer(model)
        began, steps = time.perf_counter(), 0
        for epoch in range(epochs):
            for images, labels in self._batches(seed, epoch):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(images), labels)
                loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
                optimizer.step()
                steps += 1
        if isinstance(optimizer, DiLoCo):
            optimizer.finish()
        return Trained(self.accuracy(model), steps, time.perf_counter() - began)

    def _batches(self, seed: int, epoch: int) -> Iterator[Examples]:
        order = np.random.default_rng((seed, epoch)).permutation(_TRAINING_IMAGES)
        mine = torch.from_numpy(order[self._rank :: self._world_size].copy())
        images, labels = self._training
        for batch in torch.split(mine, _BATCH // self._world_size):
            yield images[batch], labels[batch]

    def accuracy(self, net: nn.Module) -> float:
        """The share of the test images that the net tells."""
        images, labels = self._test
        with torch.no_grad():
            return float((net(images).argmax(1) == labels).float().mean())


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE)


def save_digits(path: Path) -> None:
    """Save the 1,797 handwritten digits of scikit-learn to a file for all workers."""
    from sklearn.datasets import load_digits  # takes two seconds; workers do without

    digits = load_digits()
    np.savez(path, images=digits.data, labels=digits.target)


def make_net(seed: int) -> nn.Module:
    """Make the model; the same seed gives the same parameters."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(64, _WIDTH),
        nn.ReLU(),
        nn.Linear(_WIDTH, _WIDTH),
        nn.ReLU(),
        nn.Linear(_WIDTH, 10),
    )
