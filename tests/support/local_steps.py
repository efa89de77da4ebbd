"""Ranks that train with local steps: the net, the data, and their fingerprints."""

from __future__ import annotations

from hashlib import sha256

import torch
from torch import nn


def net(seed: int = 0, *, norm: bool = False) -> nn.Sequential:
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    layers = [nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 5)]
    if norm:
        layers.insert(1, nn.BatchNorm1d(40))
    return nn.Sequential(*layers)


def backward(model: nn.Module, rank: int, number: int) -> None:
    """The gradients of a rank's ``number``-th batch."""
    generator = torch.Generator().manual_seed(1_000 * rank + number)
    images = torch.randn(16, 20, generator=generator)
    labels = images.abs().argmax(1) % 5
    model.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()


def fingerprint(model: nn.Module, *, buffers: bool = False) -> str:
    found = sha256()
    tensors = model.state_dict().values() if buffers else list(model.parameters())
    for tensor in tensors:
        found.update(tensor.detach().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]
