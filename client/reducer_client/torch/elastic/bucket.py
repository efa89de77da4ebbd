"""One bucket: the gradients of some parameters as one run of elements, and their sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from reducer_client.dtypes import WireDtype
from reducer_client.group import Group
from reducer_client.torch.staging.reduction import Reduction
from reducer_client.torch.staging.staging import Staging
from reducer_client.work import LedgerEntry

# divisor(members) is the number by which the sum of these ranks' contributions is divided.
Divisor = Callable[[tuple[int, ...]], int]


class Bucket:
    """The parameters of a bucket have one device. Their gradients are summed in one dtype.

    A contribution is the gradient times the rank's number of samples. float16 and bfloat16 are
    summed in float32, because such a product may exceed float16.

    Args:
        keeps: whether the contribution is kept until the next step, so it can be summed again.
        staging: copies tensors of this device to the host and back; None on the CPU.
    """

    def __init__(
        self,
        index: int,
        parameters: Sequence[torch.nn.Parameter],
        *,
        keeps: bool,
        wire_dtype: WireDtype | None,
        staging: Staging | None,
    ) -> None:
        self.parameters = list(parameters)
        self.started = False
        self._key = f"elastic/gradients{index}"
        self._staging = staging
        self._filled: set[int] = set()
        first = self.parameters[0]
        dtype = sum_dtype(first.dtype)
        self._narrow = wire_dtype if dtype is torch.float32 else None
        count = sum(p.numel() for p in self.parameters)
        self._source = torch.zeros(count, dtype=dtype, device=first.device)
        self._target = torch.empty_like(self._source) if keeps else self._source
        self.sum: Reduction | None = None  # the newest
        self._sources, self._targets = self._places(self._source), self._places(self._target)

    @property
    def is_full(self) -> bool:
        return len(self._filled) == len(self.parameters)

    def has(self, place: int) -> bool:
        return place in self._filled

    def fill(self, place: int, weight: int) -> None:
        """Copy the gradient of the parameter at this place, multiplied by the weight.

        Without a gradient, the contribution is zeros.
        """
        gradient, to = self.parameters[place].grad, self._sources[place]
        if gradient is None or not weight:  # the gradient of no samples may be NaN
            to.zero_()
        elif gradient.layout is not torch.strided:
            raise TypeError(
                f"a sparse gradient of shape {tuple(gradient.shape)}: expected a dense one; make "
                "the embedding with sparse=False"
            )
        elif gradient.dtype is to.dtype:
            torch.mul(gradient.detach(), weight, out=to)
        else:
            to.copy_(gradient.detach()).mul_(weight)
        self._filled.add(place)

    def start(self, group: Group, generation: int = 0) -> Reduction:
        """Start the sum over all ranks. Each generation sums the same contributions anew."""
        self.started = True
        key = f"{self._key}/{generation}" if generation else self._key
        self.sum = Reduction(group, key, self._narrow)
        return self.sum.start(self._source, self._target, self._staging)

    @property
    def ledger(self) -> tuple[LedgerEntry, ...]:
        work = None if self.sum is None else self.sum.work
        return () if work is None else work.ledger

    def finish(self, divisor: Divisor) -> None:
        """Divide each part of the sum, and copy the means into the parameters' gradients."""
        at = 0
        for entry in self.ledger:
            number = divisor(entry.members)
            if number > 1:
                self._target[at : at + entry.elements].div_(number)
            at += entry.elements
        for parameter, mean in zip(self.parameters, self._targets, strict=True):
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(mean)
        self._filled.clear()
        self.started = False

    def _places(self, flat: torch.Tensor) -> list[torch.Tensor]:
        parts = torch.split(flat, [p.numel() for p in self.parameters])
        return [part.view(p.shape) for part, p in zip(parts, self.parameters, strict=True)]


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which gradients of a dtype are summed. Raises TypeError."""
    if dtype is torch.float64:
        return torch.float64
    if dtype in (torch.float32, torch.float16, torch.bfloat16):
        return torch.float32
    raise TypeError(f"gradients of {dtype}: expected float32, float64, float16 or bfloat16")
