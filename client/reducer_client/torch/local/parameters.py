"""The parameters that are exchanged, and the memory that holds a rank's values of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from reducer_client.torch.tensors import trained
from reducer_client.torch.tensors.memory import with_memory

_SUMMED = {
    torch.float64: torch.float64,
    torch.float32: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
}


@dataclass(frozen=True)
class Named:
    """A parameter or buffer, and its name in the model."""

    name: str
    tensor: torch.Tensor

    @property
    def local(self) -> torch.Tensor:
        """The values of this rank: the shard of a DTensor, else the tensor itself."""
        return local_values(self.tensor)

    @property
    def summed_as(self) -> torch.dtype:
        """The dtype of the outer values: float32, or float64 for float64."""
        return _SUMMED[self.tensor.dtype]


def local_values(tensor: torch.Tensor) -> torch.Tensor:
    return with_memory(_local(tensor).detach())


def plain_module(model: torch.nn.Module) -> torch.nn.Module:
    """The model without DDP around it. Raises TypeError for what cannot be trained."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, DistributedDataParallel):
        return model.module  # type: ignore[no-any-return]  # torch declares no type
    for module in model.modules():
        if type(module).__name__ in ("FullyShardedDataParallel", "DistributedDataParallel"):
            raise TypeError(
                f"the model is or contains a {type(module).__name__}: expected a plain module, a "
                "DistributedDataParallel around the whole model, or a module after fully_shard"
            )
    return model


def find_parameters(model: torch.nn.Module) -> list[Named]:
    """The parameters that are trained. A parameter with two names comes once.

    Raises TypeError for a parameter that cannot be exchanged, ValueError if there is none.
    """
    found = [Named(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not any(each.tensor.numel() for each in found):
        raise ValueError("model: it has no parameter with requires_grad")
    for each in found:
        trained.check_tensor(f"parameter {each.name!r}", _local(each.tensor))
    return found


def find_buffers(model: torch.nn.Module) -> list[Named]:
    """The floating-point buffers, such as the means and variances of batch normalization."""
    found = [Named(name, b) for name, b in model.named_buffers() if b.is_floating_point()]
    for each in found:
        trained.check_tensor(f"buffer {each.name!r}", _local(each.tensor))
    return [each for each in found if each.tensor.numel()]


def alike(tensors: Sequence[Named]) -> Iterator[list[Named]]:
    """The tensors in groups of one dtype and device, in their order."""
    groups: dict[tuple[torch.dtype, torch.device], list[Named]] = {}
    for each in tensors:
        groups.setdefault((each.tensor.dtype, each.local.device), []).append(each)
    yield from groups.values()


def check_optimizer(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise TypeError or ValueError if it does not train exactly the parameters of the model."""
    found = ((each.name, each.tensor) for each in find_parameters(plain_module(model)))
    trained.check_optimizer(optimizer, found, "the workers would never exchange them")


def check_unchanged(model: torch.nn.Module, parameters: Sequence[Named]) -> None:
    """Raise RuntimeError if the model has other trained parameters than in the beginning."""
    known = {id(each.tensor) for each in parameters}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and id(parameter) not in known:
            raise RuntimeError(
                f"parameter {name!r} requires a gradient, and was not there or required none when "
                "the outer optimizer was made: make the optimizer after the model is complete"
            )


def _local(tensor: torch.Tensor) -> torch.Tensor:
    to_local: Any = getattr(tensor, "to_local", None)  # a DTensor, whose module may not be there
    return tensor if to_local is None else to_local()
