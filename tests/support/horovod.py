"""The environment of programs written for Horovod, and a model that they train."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from tests.support.horovod_ranks import launched


def be_horovod(rank: int, world: int, addresses: list[str], job: str) -> None:
    """Set the variables of a launcher and a user for a Horovod program, in this process."""
    torch.set_num_threads(1)
    launched(rank, world, addresses, job)


def make_model(seed: int = 7) -> nn.Sequential:
    """A model for digits; float64 keeps the difference of sums in another order small."""
    torch.manual_seed(seed)
    layers = (nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    return nn.Sequential(*layers).double()


def as_tensors(samples: tuple[Any, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Images for ``make_model`` and labels, from arrays."""
    images, labels = samples
    return torch.from_numpy(images).double(), torch.from_numpy(labels).long()


def values(module: nn.Module) -> list[np.ndarray[Any, Any]]:
    """Copies of the parameters."""
    return [parameter.detach().numpy().copy() for parameter in module.parameters()]
