"""Checks of the parameters that are trained, and of the optimizer that trains them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.nn.parameter import UninitializedParameter

from reducer_client.torch.tensors.memory import with_memory

_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def check_tensor(what: str, tensor: torch.Tensor) -> None:
    """Raise TypeError for a tensor without a shape, of another dtype than the four floats, without
    memory of its own, or on another device than the CPU or CUDA. ``what`` names the tensor.
    """
    if isinstance(tensor, UninitializedParameter):
        raise TypeError(f"{what} has no shape yet: run a forward pass before the optimizer is made")
    if tensor.dtype not in _DTYPES:
        raise TypeError(
            f"{what}: expected float32, float64, bfloat16 or float16, got {tensor.dtype}"
        )
    try:
        device = with_memory(tensor.detach()).device
    except TypeError as error:
        raise TypeError(f"{what}: {error}") from None
    if device.type not in ("cpu", "cuda"):
        raise TypeError(f"{what} on {device}: expected cpu or cuda")


def check_optimizer(
    optimizer: torch.optim.Optimizer, trained: Iterable[tuple[str, torch.Tensor]], why: str
) -> None:
    """Raise TypeError or ValueError for an optimizer that does not train exactly these parameters.

    ``why``: what is wrong with other parameters. Parameters without elements do not count.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"optimizer: expected a torch.optim.Optimizer, got {type(optimizer).__name__}"
        )
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    given = {id(p) for p in parameters if p.requires_grad and p.numel()}
    known = {id(tensor): name for name, tensor in trained if tensor.numel()}
    missing = [name for key, name in known.items() if key not in given]
    if missing:
        raise ValueError(
            f"optimizer: it lacks {len(missing)} of the model's parameters with requires_grad, "
            f"such as {missing[0]!r}: expected all of them"
        )
    if more := len(given - known.keys()):
        raise ValueError(f"optimizer: {more} of its parameters are not in the model: {why}")
