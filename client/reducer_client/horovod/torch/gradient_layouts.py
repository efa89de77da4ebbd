"""How the gradient of each parameter is sent: summed as dense, or gathered as sparse.

Law: all ranks send a parameter's gradient in the same layout. A rank without a gradient, for
example because its batch never used an embedding, does not know the layout. So in the first step
each rank sends the gradients that it has, and the ranks agree on the layouts at the end of that
step. Then the ranks without a gradient send theirs. From then on the layout is fixed: a gradient of
another layout is converted, and a missing gradient is sent as zeros or without entries. A gradient
that is sparse on no rank in the first step stays dense.

The ranks agree again after each join and each ``init``, when there are ranks that did not take
part.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from reducer_client.horovod import context
from reducer_client.horovod.controller import Controller
from reducer_client.horovod.errors import HorovodInternalError
from reducer_client.horovod.process_sets import ProcessSet
from reducer_client.horovod.requests import Sum
from reducer_client.horovod.torch.asynchronous import allreduce_async_

_COUNTERS = 3  # ranks with a dense gradient, ranks with a sparse one, sum of its sparse axes


class Layouts:
    """The layouts on which the ranks of the set have agreed, by parameter.

    Args:
        names: the names of the parameters; equal on all ranks.
    """

    def __init__(self, names: dict[torch.Tensor, str], process_set: ProcessSet) -> None:
        self._names = names
        self._process_set = process_set
        self._agreed_by: tuple[Controller, int] | None = None
        self._axes: dict[torch.Tensor, int] = {}

    def sparse_axes(self, parameter: torch.Tensor) -> int:
        """Number of sparse axes of the parameter's gradient; 0 means dense.

        Before the agreement, the axes of this rank's own gradient.
        """
        self._forget_others()
        known = self._axes.get(parameter)
        return _axes_of(parameter.grad) if known is None else known

    def agree(self, parameters: Iterable[torch.Tensor]) -> None:
        """Agree on the layout of each new parameter. All ranks pass the same list of parameters.

        Raises HorovodInternalError on all ranks if a gradient is sparse on some ranks and dense on
        others, because the ranks have sent this gradient in two layouts.
        """
        self._forget_others()
        new = [parameter for parameter in parameters if parameter not in self._axes]
        if not new:
            return
        counters = torch.zeros(len(new), _COUNTERS, dtype=torch.int32, device="cpu")
        for row, parameter in zip(counters, new, strict=True):
            if parameter.grad is not None:
                axes = _axes_of(parameter.grad)
                row += torch.tensor([axes == 0, axes > 0, axes], device="cpu")
        name = f"{self._names[new[0]]}.layouts"
        allreduce_async_(counters, name=name, op=Sum, process_set=self._process_set).wait()
        for parameter, (dense, sparse, axes) in zip(new, counters.tolist(), strict=True):
            if dense and sparse:
                raise HorovodInternalError(
                    f"gradient of {self._names[parameter]!r}: dense on {dense} and sparse on "
                    f"{sparse} of the ranks, expected the same on all ranks; try "
                    "sparse_as_dense=True",
                    key=self._names[parameter],
                    reason="mismatch",
                )
            self._axes[parameter] = axes // sparse if sparse else 0

    def _forget_others(self) -> None:
        """Forget the agreement if the ranks of the set have changed or have joined."""
        controller = context.current().sets.controller(self._process_set.process_set_id)
        agreed_by = (controller, controller.joins)
        if agreed_by != self._agreed_by:
            self._agreed_by = agreed_by
            self._axes.clear()


def laid_out(parameter: torch.Tensor, sparse_axes: int) -> torch.Tensor:
    """The parameter's gradient with ``sparse_axes`` sparse axes.

    A missing gradient becomes zeros, or a sparse tensor without entries.
    """
    grad = parameter.grad
    if grad is None and not sparse_axes:
        return torch.zeros_like(parameter)
    if grad is None:
        indices = torch.empty(sparse_axes, 0, dtype=torch.int64, device=parameter.device)
        values = parameter.detach().new_empty(0, *parameter.shape[sparse_axes:])
        return torch.sparse_coo_tensor(
            indices,
            values,
            parameter.shape,
            device=parameter.device,
            check_invariants=False,
            is_coalesced=True,
        )
    if sparse_axes and not grad.is_sparse:
        return grad.to_sparse(sparse_axes)
    return grad


def _axes_of(grad: torch.Tensor | None) -> int:
    return grad.sparse_dim() if grad is not None and grad.is_sparse else 0
