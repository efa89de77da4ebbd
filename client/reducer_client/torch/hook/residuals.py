"""The parts of gradients that top-k or a quantised wire has not sent yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn


class Residuals:
    """A flat tensor for each parameter, kept by name, because DDP changes its bucket layout.

    The dtype is float32, or float64 for float64 parameters. The residuals of a bucket are
    contiguous, in the order of its parameters. They are on ``device``, by default that of the
    parameters.
    """

    def __init__(self, module: nn.Module, device: str | None = None) -> None:
        self._device = device
        self._names: dict[torch.Tensor, str] = {p: name for name, p in module.named_parameters()}
        self._kept: dict[str, torch.Tensor] = {}
        self._rows: dict[tuple[str, ...], torch.Tensor] = {}

    def row(self, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        """The residuals of a bucket's parameters as one tensor, which the caller changes in place.

        They are zeros at first.
        """
        names = tuple(self._names[parameter] for parameter in parameters)
        if names not in self._rows:
            row = torch.cat([self._find(*pair) for pair in zip(names, parameters, strict=True)])
            parts = torch.split(row, [parameter.numel() for parameter in parameters])
            self._kept |= zip(names, parts, strict=True)
            fresh = set(names)
            self._rows = {known: r for known, r in self._rows.items() if fresh.isdisjoint(known)}
            self._rows[names] = row
        return self._rows[names]

    def _find(self, name: str, parameter: torch.Tensor) -> torch.Tensor:
        dtype = torch.promote_types(parameter.dtype, torch.float32)
        device = self._device or parameter.device
        kept = self._kept.get(name)
        if kept is None:
            return torch.zeros(parameter.numel(), dtype=dtype, device=device)
        return kept.to(device, dtype)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The residuals by parameter name, as views of the memory in use."""
        return dict(self._kept)

    def load_state_dict(self, kept: Mapping[str, torch.Tensor]) -> None:
        """Load residuals. Parameters that ``kept`` does not name start at zero.

        Raises ValueError if a name or a size does not fit the module.
        """
        sizes = {name: parameter.numel() for parameter, name in self._names.items()}
        for name, tensor in kept.items():
            if tensor.numel() != sizes.get(name):
                raise ValueError(
                    f"residuals of {name!r}: {tensor.numel()} elements, expected "
                    f"{sizes.get(name, 'no such parameter')}; were they saved from another model?"
                )
        self._kept = {name: tensor.clone() for name, tensor in kept.items()}
        self._rows = {}
