"""Parameters and optimizer state from one rank to all."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from reducer_client.horovod.basics import rank
from reducer_client.horovod.handles import wait_all
from reducer_client.horovod.objects import allgather_object, broadcast_object
from reducer_client.horovod.synchronous import ends_on_interrupt
from reducer_client.horovod.torch.asynchronous import broadcast_async_

Parameters = Mapping[str, torch.Tensor] | Iterable[torch.Tensor | tuple[str, torch.Tensor]]
# Options by parameter group, state by parameter.
Unpacked = tuple[list[dict[str, Any]], list[Any]]


@ends_on_interrupt
def broadcast_parameters(params: Parameters, root_rank: int) -> None:
    """Overwrite tensors with the tensors of ``root_rank``.

    Args:
        params: ``model.state_dict()``, ``model.named_parameters()`` or ``model.parameters()``, with
            equal names, shapes and dtypes on all ranks.

    Raises TypeError, before anything is sent, if a value is not a tensor.
    """
    named = [entry if isinstance(entry, tuple) else (None, entry) for entry in _entries(params)]
    for name, tensor in named:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"broadcast_parameters of {name!r}: expected a tensor, got "
                f"{type(tensor).__name__}; use broadcast_object for other values"
            )
    wait_all([broadcast_async_(tensor, root_rank, name) for name, tensor in named])


@ends_on_interrupt
def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Give an optimizer the state and options that it has on ``root_rank``; any optimizer of torch.

    The other ranks' state may be of any content, or empty. If the root's state is empty, every
    parameter without a gradient gets a gradient of zeros, as programs written for Horovod may
    expect. The parameters of ``SparseAdam`` get none, nor do the parameters of ``model``'s modules
    that are ``sparse``, such as embeddings.

    Raises ValueError on all ranks, with nothing changed, where the state does not fit one of them.
    """
    tensors: list[torch.Tensor] = []
    sends = rank() == root_rank
    packed = _pack(optimizer, tensors) if sends else b""
    packed = broadcast_object(packed, root_rank, "optimizer_state")
    unpacked = _unpack_where_it_fits(optimizer, b"" if sends else packed, tensors)
    if unpacked is not None:
        _put_into(optimizer, *unpacked)
    named = [(f"optimizer_state.{index}", tensor) for index, tensor in enumerate(tensors)]
    broadcast_parameters(named, root_rank)
    if not any(optimizer.state.values()):
        sparse = _sparse_parameters(optimizer, model)
        for parameter in parameters_of(optimizer):
            if parameter.requires_grad and parameter.grad is None and parameter not in sparse:
                parameter.grad = torch.zeros_like(parameter)


def _entries(params: Parameters) -> list[Any]:
    return sorted(params.items()) if isinstance(params, Mapping) else list(params)


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The parameters of all groups, in the optimizer's order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _sparse_parameters(
    optimizer: torch.optim.Optimizer, model: torch.nn.Module | None
) -> set[torch.Tensor]:
    """Parameters that will have sparse gradients, as far as optimizer and modules tell."""
    if isinstance(optimizer, torch.optim.SparseAdam):
        return set(parameters_of(optimizer))
    modules = () if model is None else model.modules()
    sparse = [module for module in modules if getattr(module, "sparse", False) is True]
    return {parameter for module in sparse for parameter in module.parameters(recurse=False)}


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def _pack(optimizer: torch.optim.Optimizer, tensors: list[torch.Tensor]) -> bytes:
    """Pickle options and state without their tensors, which are appended to ``tensors``."""
    options = [_options(group) for group in optimizer.param_groups]
    state = [optimizer.state.get(parameter) for parameter in parameters_of(optimizer)]
    buffer = io.BytesIO()
    _Packer(buffer, tensors).dump((options, state))
    return buffer.getvalue()


def _unpack_where_it_fits(
    optimizer: torch.optim.Optimizer, packed: bytes, tensors: list[torch.Tensor]
) -> Unpacked | None:
    """``_unpack`` what the root has packed. Raises ValueError on all ranks if one rank fails."""
    unpacked, problem = None, ""
    try:
        unpacked = _unpack(optimizer, packed, tensors) if packed else None
    except Exception as error:  # pickle's are of any kind
        problem = f"{type(error).__name__}: {error}"
    problems = allgather_object(problem, "optimizer_state")
    texts = [f"rank {rank}: {text}" for rank, text in enumerate(problems) if text]
    if texts:
        raise ValueError(f"broadcast_optimizer_state: {'; '.join(texts)}")
    return unpacked


def _unpack(
    optimizer: torch.optim.Optimizer, packed: bytes, tensors: list[torch.Tensor]
) -> Unpacked:
    """Undo ``_pack``. The new, uninitialized tensors are appended to ``tensors``."""
    parameters = parameters_of(optimizer)
    device = parameters[0].device
    options, state = _Unpacker(io.BytesIO(packed), tensors, device).load()
    if len(options) != len(optimizer.param_groups) or len(state) != len(parameters):
        raise ValueError(
            f"the root has {len(options)} parameter groups with "
            f"{len(state)} parameters, this rank {len(optimizer.param_groups)} with "
            f"{len(parameters)}; make the same optimizer on all ranks"
        )
    return options, state


def _put_into(
    optimizer: torch.optim.Optimizer, options: list[dict[str, Any]], state: list[Any]
) -> None:
    for group, values in zip(optimizer.param_groups, options, strict=True):
        group.update(values)
    optimizer.state.clear()
    for parameter, values in zip(parameters_of(optimizer), state, strict=True):
        if values is not None:
            optimizer.state[parameter] = values


class _Packer(pickle.Pickler):
    """Pickles an object without its tensors, and records shapes, dtypes and kinds of device."""

    def __init__(self, file: io.BytesIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, torch.Tensor):
            return None
        self._tensors.append(obj.detach())
        return tuple(obj.shape), str(obj.dtype).removeprefix("torch."), obj.device.type == "cpu"


class _Unpacker(pickle.Unpickler):
    """Makes a tensor for each that was left out, in the same order."""

    def __init__(self, file: io.BytesIO, tensors: list[torch.Tensor], device: torch.device) -> None:
        super().__init__(file)
        self._tensors = tensors
        self._device = device

    def persistent_load(self, pid: Any) -> torch.Tensor:
        shape, dtype, on_cpu = pid
        device = torch.device("cpu") if on_cpu else self._device
        tensor = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
        self._tensors.append(tensor)
        return tensor
