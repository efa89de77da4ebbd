"""Many tensors, or parts of tensors, as one flat run of elements."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from reducer_client.torch.tensors.memory import is_lazy, with_memory


class Packing:
    """Tensors of one dtype as one flat run of elements, in ``rows`` equal rows.

    Each tensor is cut into ``rows`` equal parts. Row r holds part r of every tensor. Raises
    TypeError if a tensor has no memory or the dtypes differ, and ValueError if there is no tensor.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], rows: int = 1) -> None:
        if not tensors:
            raise ValueError("a collective without tensors: expected at least one")
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

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize

    def alone(self) -> torch.Tensor | None:
        """The flat view of the only tensor, or None if the tensors need packing."""
        only = self.tensors[0]
        plain = len(self.tensors) == 1 and only.is_contiguous() and not is_lazy(only)
        return only.view(-1) if plain else None

    def flat(self) -> torch.Tensor:
        """The tensors as one run: a view of the only tensor, or a copy."""
        alone = self.alone()
        if alone is None:
            alone = torch.empty(self.numel, dtype=self.dtype, device=self.device)
            for tensor, place in zip(self.tensors, self._places(alone), strict=True):
                place.copy_(tensor.reshape(place.shape))
        return alone

    def unpack(self, flat: torch.Tensor) -> None:
        """Copy a run of ``numel`` elements into the tensors."""
        for tensor, place in zip(self.tensors, self._places(flat), strict=True):
            tensor.copy_(place.reshape(tensor.shape))

    def _places(self, flat: torch.Tensor) -> list[torch.Tensor]:
        table = flat.view(self.rows, self.numel // self.rows)
        widths = [tensor.numel() // self.rows for tensor in self.tensors]
        return list(torch.split(table, widths, dim=1))
