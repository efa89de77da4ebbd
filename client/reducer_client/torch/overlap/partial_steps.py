"""Takes the step of an optimizer for some of its parameters at a time.

Law: the steps of all parts together leave the same bits as one step of the whole. An optimizer of
torch updates each parameter from its own gradient and its own state; what all parameters share, the
hyperparameters, is a copy from the moment of the program's call of ``step()``.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

Groups = list[dict[str, Any]]  # parameter groups without their parameters


class PartialSteps:
    """The steps of an optimizer, in parts. The state stays where it is, in the optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._group_of = {
            id(parameter): number
            for number, group in enumerate(optimizer.param_groups)
            for parameter in group["params"]
        }

    def hyperparameters(self) -> Groups:
        """A copy of the hyperparameters of all groups, with which all parts take their step."""
        return [
            {name: _copy(value) for name, value in group.items() if name != "params"}
            | _foreach(group)
            for group in self._optimizer.param_groups
        ]

    @property
    def is_complete(self) -> bool:
        """Whether the optimizer has the parameters with which it was given, and no others."""
        count = sum(len(group["params"]) for group in self._optimizer.param_groups)
        return count == len(self._group_of)

    def step(self, groups: Groups, parameters: Sequence[Any], means: Sequence[Any]) -> None:
        """Take the step of these parameters with these gradients.

        Raises TypeError if the step changes hyperparameters, which other parameters share.
        """
        by_group: dict[int, list[Any]] = {}
        for parameter in parameters:
            by_group.setdefault(self._group_of[id(parameter)], []).append(parameter)
        given = [{**groups[number], "params": members} for number, members in by_group.items()]
        part = self._part([dict(group) for group in given])
        kept = [parameter.grad for parameter in parameters]
        for parameter, mean in zip(parameters, means, strict=True):
            parameter.grad = mean
        try:
            with _outside_of_forward(parameters[0].device):
                type(part).step(part)  # not part.step(), which Overlap may have replaced
        finally:
            for parameter, gradient in zip(parameters, kept, strict=True):
                parameter.grad = gradient
        _check_unchanged(given, part.param_groups, type(part).__name__)

    def _part(self, groups: Groups) -> torch.optim.Optimizer:
        # copy.copy would call __setstate__, which changes states and groups of some optimizers.
        part = object.__new__(type(self._optimizer))
        part.__dict__.update(self._optimizer.__dict__, param_groups=groups)
        return part


@contextmanager
def _outside_of_forward(device: torch.device) -> Generator[None]:
    """Context for an update amid a forward pass, without the modes of that pass."""
    with torch.inference_mode(False), torch.autocast(device.type, enabled=False):
        yield


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _foreach(group: dict[str, Any]) -> dict[str, Any]:
    """Torch takes foreach by default if all parameters of a group are on an accelerator.

    A part of a group on several devices could be, where the whole is not.
    """
    devices = {parameter.device.type for parameter in group["params"]}
    is_mixed = len(devices) > 1 and group.get("foreach", False) is None
    return {"foreach": False} if is_mixed else {}


def _check_unchanged(given: Groups, groups: Groups, kind: str) -> None:
    for before, after in zip(given, groups, strict=True):
        for name, value in after.items():
            if before.get(name) is not value:
                raise TypeError(
                    f"optimizer: the step of {kind} changes its param_groups ({name!r}), which all "
                    "parameters share: Overlap needs an optimizer that updates each parameter by "
                    "itself. Train with DistributedDataParallel and reducer_client.torch.attach"
                )
