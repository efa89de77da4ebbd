"""Recipes of trainings: the net, its inner optimizer, and the number of epochs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from bench.compression.digits import EPOCHS, make_net, make_optimizer


@dataclass(frozen=True)
class Recipe:
    net: Callable[[int], nn.Module]  # from the seed
    optimizer: Callable[[Any], torch.optim.Optimizer]  # from the net
    epochs: int


def _small_net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


RECIPES = {
    # 301,066 parameters and 192 steps of SGD, as bench.compression trains.
    "compression": Recipe(make_net, make_optimizer, EPOCHS),
    # 4,810 parameters and 992 steps of AdamW: long enough for noise to average out.
    "adamw": Recipe(_small_net, lambda net: torch.optim.AdamW(net.parameters(), 1e-3), 62),
}
