"""The compared ways to train together, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from reducer_client import Group, Quantized
from reducer_client.outer.optimizer import OuterSGD
from reducer_client.torch import DiLoCo, attach, attach_topk


def _power_sgd(model: DistributedDataParallel, group: Group) -> None:
    """torch's PowerSGD over the module's process group; its first two steps are whole."""
    state = PowerSGDState(dist.group.WORLD, matrix_approximation_rank=4, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook)


@dataclass(frozen=True)
class Hook:
    """Data parallel: a gradient in each step, by a communication hook of DDP."""

    attach: Callable[..., object]
    options: Mapping[str, Any] = field(default_factory=dict)

    every = 1
    fragments = 1
    delay = 0

    def wrap(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, group: Group
    ) -> tuple[nn.Module, torch.optim.Optimizer]:
        wrapped = DistributedDataParallel(model)
        self.attach(wrapped, group, **self.options)
        return wrapped, optimizer

    def hurried(self) -> Hook:
        return self


@dataclass(frozen=True)
class Local:
    """Local steps with an outer optimizer."""

    every: int
    outer: OuterSGD
    fragments: int = 1
    delay: int = 0
    keep_local: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)

    def wrap(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, group: Group
    ) -> tuple[nn.Module, torch.optim.Optimizer]:
        made = DiLoCo(
            model, optimizer, group, every=self.every, fragments=self.fragments, delay=self.delay,
            keep_local=self.keep_local, outer=self.outer, **self.options,
        )  # fmt: skip
        return model, made

    def hurried(self) -> Local:
        """The same exchanges, one in each step, for which the step waits."""
        return Local(self.fragments, self.outer, self.fragments, options=self.options)


Method = Hook | Local
_OUTER = OuterSGD(lr=0.4, momentum=0.9)
_STREAMS = partial(Local, 50, _OUTER, fragments=5, delay=5, keep_local=0.5)
# The method with which the others are compared.
WHOLE = "data parallel"
METHODS: dict[str, Method] = {
    WHOLE: Hook(attach),
    "bfloat16": Hook(attach, {"wire_dtype": "bfloat16"}),
    "int8 + feedback": Hook(
        attach, {"wire_dtype": Quantized("int8", "same"), "error_feedback": True}
    ),
    "top 1 %": Hook(attach_topk),
    "PowerSGD rank 4": Hook(_power_sgd),
    "DiLoCo": Local(50, OuterSGD(lr=0.7, momentum=0.9)),
    "Streaming DiLoCo": _STREAMS(),
    "Streaming DiLoCo e3m0": _STREAMS(options={"wire_dtype": Quantized("e3m0", "same")}),
}
STREAMING = ("Streaming DiLoCo", "Streaming DiLoCo e3m0")
