"""What a worker that joins takes over: the model, the optimizer, and more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch

from reducer_client.arrays import Array
from reducer_client.torch.elastic.plain_values import flatten, restore
from reducer_client.torch.tensors.host import as_stored
from reducer_client.torch.tensors.memory import is_lazy, with_memory


class HasState(Protocol):
    """Objects like optimizers and schedulers of torch."""

    def state_dict(self) -> dict[str, Any]:
        """The state."""

    def load_state_dict(self, state: dict[str, Any]) -> object:
        """Take over a state."""


class ModelState:
    """A `reducer_client.elastic.State`. Its arrays are the model's parameters and buffers.

    Tensors in contiguous CPU memory are not copied. ``parts`` gives everything else by name, such
    as the optimizer. ``left`` has the states of parts that came before this worker had these parts.
    """

    def __init__(self, model: torch.nn.Module, parts: Callable[[], Mapping[str, HasState]]) -> None:
        self._model = model
        self._parts = parts
        self.left: dict[str, Any] = {}

    def arrays(self) -> dict[str, Array]:
        return {
            name: as_stored(tensor if _is_plain(tensor) else tensor.to("cpu").contiguous())
            for name, tensor in self._tensors()
        }

    def rest(self) -> tuple[dict[str, Array], dict[str, Any]]:
        arrays: dict[str, Array] = {}
        own = {name: part.state_dict() for name, part in self._parts().items()}
        states = {**self.left, **own}
        return arrays, {n: flatten(state, n, arrays) for n, state in states.items()}

    def load(self, arrays: Mapping[str, Array], rest: Mapping[str, Array], metadata: Any) -> None:
        for name, tensor in self._tensors():
            if not _is_plain(tensor):
                source = torch.from_numpy(arrays[name]).view(tensor.dtype)
                with torch.no_grad():
                    tensor.copy_(source)
        states = {name: restore(flat, rest) for name, flat in metadata.items()}
        for name, part in self._parts().items():
            if name in states:
                part.load_state_dict(states.pop(name))
        self.left = states

    def _tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        for kind, named in (
            ("parameter", self._model.named_parameters()),
            ("buffer", self._model.named_buffers()),
        ):
            for name, tensor in named:
                if tensor.numel():
                    yield f"{kind} {name}", with_memory(tensor.detach())


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not is_lazy(tensor)
