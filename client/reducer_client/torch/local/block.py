"""Tensors of one dtype and device as one run: the outer values, and the way to and from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from reducer_client.outer.optimizer import AVERAGE, OuterSGD, blend
from reducer_client.torch.local.parameters import Named

Values = dict[str, torch.Tensor]


class Run:
    """Tensors as one flat run of elements of the dtype in which they are summed."""

    def __init__(self, tensors: Sequence[Named]) -> None:
        self.tensors = list(tensors)
        self._shapes = [each.local.shape for each in tensors]
        self._sizes = [shape.numel() for shape in self._shapes]
        self.dtype = tensors[0].summed_as
        self.device = tensors[0].local.device

    def gather(self) -> torch.Tensor:
        """A copy of the values of this rank."""
        flat = torch.empty(sum(self._sizes), dtype=self.dtype, device=self.device)
        for view, each in zip(self.views(flat), self.tensors, strict=True):
            view.copy_(each.local)
        return flat

    def scatter(self, flat: torch.Tensor) -> None:
        """Copy values into the tensors, rounded to their dtype."""
        for view, each in zip(self.views(flat), self.tensors, strict=True):
            each.local.copy_(view)

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        parts = torch.split(flat, self._sizes)
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def named(self, flat: torch.Tensor) -> Values:
        """Copies of the values by name."""
        views = self.views(flat)
        return {e.name: view.clone() for e, view in zip(self.tensors, views, strict=True)}

    def flat(self, values: Mapping[str, Any], what: str) -> torch.Tensor:
        """The values of `named` as one run. Raises ValueError if they are of another model."""
        flat = torch.empty(sum(self._sizes), dtype=self.dtype, device=self.device)
        for view, each in zip(self.views(flat), self.tensors, strict=True):
            value = values.get(each.name)
            if value is None or value.shape != view.shape:
                got = "nothing" if value is None else f"shape {tuple(value.shape)}"
                raise ValueError(
                    f"state_dict, {what} of {each.name!r}: expected shape {tuple(view.shape)}, "
                    f"got {got}: the state is of another model"
                )
            view.copy_(value)
        return flat


class Block:
    """Parameters as a run, with their outer values and the state of the outer optimizer.

    Attributes:
        outer: the outer values, equal on all ranks.
        velocity: the state of the outer optimizer; None without momentum.
    """

    narrows = True
    """Whether the values may be sent in a narrow dtype."""

    def __init__(self, parameters: Sequence[Named], optimizer: OuterSGD) -> None:
        self.run = Run(parameters)
        self._optimizer = optimizer
        self._narrow = parameters[0].tensor.dtype
        self.outer = self.run.gather()
        self.velocity = torch.zeros_like(self.outer) if optimizer.momentum else None

    def delta(self) -> torch.Tensor:
        """The pseudo-gradient of this rank: what its steps have taken off the outer values.

        The steps began with the outer values in the dtype of the parameters.
        """
        local = self.run.gather()
        return torch.sub(self.outer.to(self._narrow).to(self.run.dtype), local, out=local)

    def apply(self, mean: torch.Tensor) -> None:
        """Make a step of the outer optimizer. The values of ``mean`` are lost."""
        self._optimizer.step(self.outer, mean, self.velocity)

    def merge(self, keep_local: float) -> None:
        """Give the parameters the outer values, mixed with their own."""
        if keep_local == 1.0:
            return
        values = self.outer
        if keep_local:
            values = blend(self.run.gather(), self.outer, keep_local)
        self.run.scatter(values)


class BufferBlock(Block):
    """Buffers as a run: an exchange makes them the mean of all ranks."""

    narrows = False

    def __init__(self, buffers: Sequence[Named]) -> None:
        super().__init__(buffers, AVERAGE)

    def delta(self) -> torch.Tensor:
        return self.run.gather()

    def apply(self, mean: torch.Tensor) -> None:
        self.outer.copy_(mean)
