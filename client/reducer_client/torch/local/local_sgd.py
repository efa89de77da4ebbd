"""``LocalSGD``: the parameters of all ranks are averaged every few steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from reducer_client.group import Group
from reducer_client.outer.optimizer import AVERAGE
from reducer_client.torch.local.diloco import DiLoCo


class LocalSGD(DiLoCo):
    """`DiLoCo` whose outer optimizer does nothing but average: lr 1, no momentum.

    Args:
        options: further arguments of `DiLoCo`, except ``outer``.
    """

    _fixed: ClassVar[Mapping[str, Any]] = {"outer": AVERAGE}

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        group: Group | None,
        *,
        every: int,
        **options: Any,
    ) -> None:
        super().__init__(model, optimizer, group, every=every, **self._fixed, **options)
