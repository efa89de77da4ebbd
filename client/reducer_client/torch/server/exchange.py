"""The way of gradients from a model to a table, and of parameters back, through host memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
import torch

from reducer_client.arrays import Array
from reducer_client.torch.tensors.memory import with_memory

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Named:
    """A parameter, and its name in the table."""

    name: str
    parameter: torch.nn.Parameter


class Vector:
    """All parameters, or all gradients, behind each other in host memory, in float32.

    The memory is page-locked if a parameter is on a CUDA device.
    """

    def __init__(self, parameters: Sequence[Named]) -> None:
        sizes = [each.parameter.numel() for each in parameters]
        pin = any(each.parameter.is_cuda for each in parameters)
        with torch.inference_mode(False):
            flat = torch.empty(sum(sizes), dtype=torch.float32, device="cpu", pin_memory=pin)
        self.flat = flat
        self._parameters = parameters
        self._parts = torch.split(flat, sizes)
        self._views = [
            part.view(each.parameter.shape)
            for part, each in zip(self._parts, parameters, strict=True)
        ]
        self.arrays: dict[str, Array] = {
            each.name: np.asarray(view.numpy())
            for each, view in zip(parameters, self._views, strict=True)
        }

    @torch.no_grad()
    def gather(self, scale: float = 1.0) -> None:
        """Copy the gradients of all parameters, times ``scale``. Returns when they are here.

        Raises ValueError for a parameter without a gradient, TypeError for a sparse gradient.
        """
        gradients = [_gradient(each) for each in self._parameters]
        for device, run in self._runs():
            if device.type == "cpu":
                for place in run:
                    self._views[place].copy_(gradients[place])
            else:
                parts = [gradients[place].reshape(-1).float() for place in run]
                self._span(run).copy_(torch.cat(parts), non_blocking=True)
        self._wait_for_devices()
        if scale != 1.0:
            self.flat.mul_(scale)

    @torch.no_grad()
    def scatter(self) -> None:
        """Copy the values into the parameters. The vector may be changed afterwards."""
        self._scatter([each.parameter for each in self._parameters])

    @torch.no_grad()
    def scatter_gradients(self) -> None:
        """Copy the values into the gradients of the parameters, which are made if they are missing.

        Rounds to the dtype of each parameter. The vector may be changed afterwards.
        """
        targets = []
        for each in self._parameters:
            if each.parameter.grad is None:
                each.parameter.grad = torch.empty_like(each.parameter)
            targets.append(each.parameter.grad)
        self._scatter(targets)

    def _scatter(self, targets: Sequence[torch.Tensor]) -> None:
        for device, run in self._runs():
            if device.type == "cpu":
                for place in run:
                    targets[place].copy_(self._views[place])
                continue
            values = self._span(run).to(device, non_blocking=True)
            at = 0
            for place in run:
                target = targets[place]
                target.copy_(values[at : at + target.numel()].view(target.shape))
                at += target.numel()
        self._wait_for_devices()

    def _runs(self) -> Iterator[tuple[torch.device, list[int]]]:
        """Places of parameters that follow each other on one device."""
        places = range(len(self._parameters))
        for device, run in groupby(places, lambda place: self._parameters[place].parameter.device):
            yield device, list(run)

    def _span(self, run: list[int]) -> torch.Tensor:
        begin = sum(part.numel() for part in self._parts[: run[0]])
        return self.flat[begin : begin + sum(self._parts[place].numel() for place in run)]

    def _wait_for_devices(self) -> None:
        for device in {each.parameter.device for each in self._parameters}:
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()


Model: TypeAlias = torch.nn.Module | Iterable[tuple[str, torch.nn.Parameter]]


def find_parameters(model: Model) -> list[Named]:
    """The parameters of a model that are trained. A parameter with two names comes once.

    ``model``: a plain module, or what its ``named_parameters()`` gives.

    Raises TypeError for a model or a parameter that no table can hold, ValueError if there is none.
    """
    found = [Named(name, p) for name, p in _pairs(model) if p.requires_grad]
    if not found:
        raise ValueError("model: it has no parameter with requires_grad")
    for each in found:
        _check(each)
    return found


def _pairs(model: Model) -> Iterable[tuple[str, torch.nn.Parameter]]:
    if isinstance(model, Iterable) and not isinstance(model, torch.nn.Module):
        return _checked_pairs(model)
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise TypeError(
            "model: expected a plain module, got DistributedDataParallel, which would average the "
            "gradients before the reducers do: give its `module`"
        )
    return model.named_parameters()


def _checked_pairs(given: Iterable[Any]) -> list[tuple[str, torch.nn.Parameter]]:
    pairs: list[tuple[str, torch.nn.Parameter]] = []
    for each in given:
        is_pair = isinstance(each, tuple) and len(each) == 2
        if not (is_pair and isinstance(each[0], str) and isinstance(each[1], torch.nn.Parameter)):
            raise TypeError(
                "model: expected a torch.nn.Module or its named_parameters(), got an iterable with "
                f"{type(each).__name__}"
            )
        pairs.append(each)
    if len({id(parameter) for _, parameter in pairs}) < len(pairs):
        raise ValueError("model: a parameter comes twice in the named parameters")
    return pairs


def first_values(parameters: Sequence[Named]) -> dict[str, Any]:
    """The values of parameters as a table takes them: float32, in host memory."""
    return {
        each.name: each.parameter.detach().to("cpu", torch.float32).contiguous().numpy()
        for each in parameters
    }


def _check(each: Named) -> None:
    parameter = each.parameter
    if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
        raise TypeError(
            f"parameter {each.name!r} has no shape yet: call the model once before the optimizer "
            "is made"
        )
    if parameter.dtype not in DTYPES:
        raise TypeError(
            f"parameter {each.name!r}: expected float32, bfloat16 or float16, got "
            f"{parameter.dtype}: tables are float32"
        )
    try:
        with_memory(parameter)
    except TypeError as error:
        raise TypeError(f"parameter {each.name!r}: {error}") from None


def _gradient(each: Named) -> torch.Tensor:
    gradient = each.parameter.grad
    if gradient is None:
        raise ValueError(
            f"parameter {each.name!r} has no gradient: call backward() before step(), and give "
            "parameters that take no part requires_grad=False before the table is made"
        )
    if gradient.layout is not torch.strided:
        raise TypeError(
            f"parameter {each.name!r} has a sparse gradient: expected a dense one; make the "
            "embedding with sparse=False"
        )
    return gradient.detach()
