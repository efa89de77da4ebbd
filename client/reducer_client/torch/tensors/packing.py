"""Many tensors, or parts of tensors, as one run of elements."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from reducer_client.torch.tensors.memory import is_lazy, with_memory


class Packing:
    """Tensors of one dtype as one run of elements, in ``rows`` equal parts.

    Each tensor is cut into so many parts; part r of every tensor comes before part r + 1 of any.
    TypeError for a tensor that has no memory, and for several dtypes; ValueError for no tensor.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], rows: int = 1) -> None:
        if not tensors:
            raise ValueError("a collective of no tensors: expected at least one")
        self.tensors = [with_memory(tensor).detach() for tensor in tensors]
        self.rows = rows
        self.dtype = self.tensors[0].dtype
        self.numel = sum(tensor.numel() for tensor in self.tensors)
        if any(tensor.dtype is not self.dtype for tensor in self.tensors):
            raise TypeError(
                f"tensors of {', '.join(str(t.dtype) for t in self.tensors)}: expected one dtype"
            )

    @property
    def device(self) -> torch.device:
        return self.tensors[0].device

    def alone(self) -> torch.Tensor | None:
        """The flat view of the only tensor where it needs no packing, else None."""
        only = self.tensors[0]
        plain = len(self.tensors) == 1 and only.is_contiguous() and not is_lazy(only)
        return only.view(-1) if plain else None

    def flat(self) -> torch.Tensor:
        """The tensors as one run: the only tensor itself, or a copy."""
        alone = self.alone()
        if alone is None:
            alone = torch.empty(self.numel, dtype=self.dtype, device=self.device)
            self.pack(alone)
        return alone

    def pack(self, flat: torch.Tensor) -> None:
        """Bring the tensors into a run of ``numel`` elements."""
        for tensor, place in zip(self.tensors, self._places(flat), strict=True):
            place.copy_(tensor.reshape(place.shape))

    def unpack(self, flat: torch.Tensor) -> None:
        """Bring a run of ``numel`` elements to the tensors."""
        for tensor, place in zip(self.tensors, self._places(flat), strict=True):
            tensor.copy_(place.reshape(tensor.shape))

    def _places(self, flat: torch.Tensor) -> list[torch.Tensor]:
        table = flat.view(self.rows, self.numel // self.rows)
        widths = [tensor.numel() // self.rows for tensor in self.tensors]
        return list(torch.split(table, widths, dim=1))
