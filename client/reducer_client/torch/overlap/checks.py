"""What `Overlap` cannot train, each with a text that says why and what to do."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from reducer_client.torch.tensors.trained import check_optimizer as check_trains
from reducer_client.torch.tensors.trained import check_tensor

_INSTEAD = "train with DistributedDataParallel and reducer_client.torch.attach instead"
_WRAPPERS = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel")
_COMPILED = ("OptimizedModule", "ScriptModule", "RecursiveScriptModule")
# With this attribute of an optimizer, a GradScaler calls step() in any case, and leaves a mark.
SEES_SCALER = {"_step_supports_amp_scaling": True}
# Optimizers of torch that update each parameter from its own gradient and state alone.
_PER_PARAMETER = (
    *("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adadelta", "Adagrad", "ASGD"),
    *("RMSprop", "Rprop", "Adafactor", "Muon"),
)


def find_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The trained parameters of a model, with their names. Raises TypeError and ValueError."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    for module in model.modules():
        _check_module(module)
    found = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    for name, parameter in found:
        check_tensor(f"parameter {name!r}", parameter)
    trained = [(name, parameter) for name, parameter in found if parameter.numel()]
    if not trained:
        raise ValueError("model: none of its parameters requires a gradient")
    return trained


def check_optimizer(
    optimizer: torch.optim.Optimizer,
    parameters: list[tuple[str, nn.Parameter]],
    per_parameter: bool,
) -> None:
    """Raises TypeError or ValueError for an optimizer whose step cannot be taken in parts."""
    check_trains(
        optimizer,
        parameters,
        "expected the parameters of the model alone; make an Overlap for each model",
    )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TypeError(
            "optimizer: LBFGS updates all parameters together, and computes the loss several times "
            f"in a step: {_INSTEAD}"
        )
    known = [getattr(torch.optim, name, None) for name in _PER_PARAMETER]
    if type(optimizer) not in known and not per_parameter:
        raise TypeError(
            f"optimizer: {type(optimizer).__name__} is not known to update each parameter from its "
            "own gradient and state alone. If it does, give per_parameter=True; else "
            f"{_INSTEAD}"
        )
    check_groups(optimizer)


def check_groups(optimizer: torch.optim.Optimizer) -> None:
    """Raises ValueError for options of an optimizer with which its step cannot be taken in parts.

    The program may have set them after the optimizer was made.
    """
    for group in optimizer.param_groups:
        for option in ("fused", "differentiable"):
            if group.get(option):
                raise ValueError(
                    f"optimizer: {option}=True: expected {option}=False; with foreach, torch's "
                    f"default on accelerators, a step is about as fast"
                    if option == "fused"
                    else f"optimizer: {option}=True: expected {option}=False: nothing can be "
                    "differentiated through an update that comes later"
                )
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise ValueError(
            "optimizer: it has hooks of its step (register_step_pre_hook or _post_hook), which "
            f"would run before the means are here: {_INSTEAD}"
        )


def check_scaler(optimizer: Any) -> None:
    """Raises ValueError if a GradScaler has called the step."""
    if "found_inf" in vars(optimizer):
        del optimizer.found_inf, optimizer.grad_scale  # the scaler does so only after a step
        raise ValueError(
            "optimizer: a GradScaler skips steps, which depends on the gradients of all "
            "parameters: train in bfloat16, which needs no scaler, or "
            f"{_INSTEAD}"
        )


def _check_module(module: nn.Module) -> None:
    kinds = {kind.__name__ for kind in type(module).__mro__}
    if wrapper := kinds.intersection(_WRAPPERS):
        raise TypeError(
            f"model: it is or contains a {min(wrapper)}, which averages the gradients itself: "
            "expected the plain module, its `module`"
        )
    if kinds.intersection(_COMPILED) or getattr(module, "_compiled_call_impl", None) is not None:
        raise TypeError(
            f"model: it is or contains a compiled module ({type(module).__name__}), which does not "
            f"call its parts one by one: give the module before torch.compile, or {_INSTEAD}"
        )
