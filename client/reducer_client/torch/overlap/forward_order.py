"""When a forward pass needs each parameter, learned from the first pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn


class ForwardOrder:
    """The order in which a forward pass calls the modules, and the parameters that each one needs.

    A module needs its own parameters. A parameter whose module is never called is needed by the
    nearest module around it that is called: nn.MultiheadAttention, for example, uses the weight of
    its ``out_proj`` and never calls it.

    Args:
        parameters: the parameters that matter. Results name them by their places in this list.
    """

    def __init__(self, model: nn.Module, parameters: Sequence[torch.Tensor]) -> None:
        places = {id(parameter): place for place, parameter in enumerate(parameters)}
        self._count = len(parameters)
        self._called: dict[nn.Module, int] = {}
        self._parents: dict[nn.Module, nn.Module] = {}
        self.needs: dict[nn.Module, list[int]] = {}
        for module in model.modules():
            own = (places.get(id(p)) for p in module.parameters(recurse=False))
            self.needs[module] = [place for place in own if place is not None]
            for child in module.children():
                self._parents.setdefault(child, module)

    def call(self, module: nn.Module) -> None:
        """A forward pass calls the module."""
        self._called.setdefault(module, len(self._called))

    def learn(self) -> list[int]:
        """The places of the parameters, in the order in which a forward pass needs them.

        Call it after the first forward pass; `needs` is complete afterwards.
        """
        first = [len(self._called)] * self._count
        for module, at in self._called.items():
            for place in self.needs[module]:
                first[place] = min(first[place], at)
        for module, place in list(self._uncalled(first)):
            user = self._user(module)
            if user is not None:
                self.needs[user].append(place)
                first[place] = min(first[place], self._called[user])
        return sorted(range(self._count), key=lambda place: (first[place], place))

    def _uncalled(self, first: Sequence[int]) -> Iterator[tuple[nn.Module, int]]:
        """Pairs of a module that was not called, and a parameter that no called module owns."""
        never = {place for place, at in enumerate(first) if at == len(self._called)}
        for module, own in self.needs.items():
            for place in own:
                if place in never:
                    yield module, place

    def _user(self, module: nn.Module) -> nn.Module | None:
        """The nearest called module around a module, else the first that was called at all."""
        around: nn.Module | None = module
        while around is not None and around not in self._called:
            around = self._parents.get(around)
        return next(iter(self._called), None) if around is None else around
