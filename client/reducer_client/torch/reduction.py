"""How sums are taken: by the reducers, from every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist

from reducer_client.dtypes import WireDtype
from reducer_client.torch.calls import Calls
from reducer_client.torch.packing import Packing
from reducer_client.torch.tensors import reducible, scaled
from reducer_client.torch.works import CallWork, Handle


class Reduction(Protocol):
    """What a process group asks for sums."""

    def all_reduce(
        self,
        tensors: Sequence[torch.Tensor],
        op: dist.ReduceOp,
        asynchronous: bool,
        timeout: float | None,
    ) -> CallWork:
        """Reduce tensors of one dtype over all ranks, in place; one round for all of them."""
        ...


class FlatReduction:
    """Every rank sends all that it has to the reducers."""

    def __init__(self, calls: Calls, wire_dtype: WireDtype | None) -> None:
        self._calls = calls
        self._wire_dtype = wire_dtype

    def all_reduce(
        self,
        tensors: Sequence[torch.Tensor],
        op: dist.ReduceOp,
        asynchronous: bool,
        timeout: float | None,
    ) -> CallWork:
        packing = Packing(tensors)

        def submit(source: torch.Tensor, target: torch.Tensor, **call: Any) -> Handle:
            source.copy_(scaled(source, op))
            what = reducible(source, op)
            return self._calls.group.all_reduce(
                what.array,
                what.op,
                out=what.array,
                wire_dtype=narrow(source, self._wire_dtype),
                dtype=what.dtype,
                **call,
            )

        return self._calls.start(
            submit,
            packing,
            packing,
            outputs=tensors,
            asynchronous=asynchronous,
            timeout=timeout,
        )


def narrow(tensor: torch.Tensor, wire_dtype: WireDtype | None) -> WireDtype | None:
    """The dtype in which a tensor travels: only float32 is narrowed."""
    return wire_dtype if tensor.dtype is torch.float32 else None
