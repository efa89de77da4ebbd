"""Gradients of the operations, by Horovod's conventions.

Where an operation moves data, its gradient is the mean of the ranks' gradients, so that a loss
that every rank computes is counted only once. The gradient of a sum is the sum of the ranks'
gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from reducer_client.horovod import arrays
from reducer_client.horovod.basics import rank
from reducer_client.horovod.process_sets import ProcessSet
from reducer_client.horovod.requests import Average, ReduceOp, Sum
from reducer_client.horovod.synchronous import ends_on_interrupt
from reducer_client.horovod.torch import asynchronous
from reducer_client.horovod.torch.asynchronous import start, start_all
from reducer_client.quantized import BlocksName

# torch leaves what decorates and applies Functions untyped.
# mypy: disable-error-code="no-untyped-call,no-any-return"

Gradients = tuple[torch.Tensor | None, ...]


def _reduced(
    call: Any,
    tensors: Sequence[torch.Tensor],
    options: tuple[object, ...],
    grouped: bool,
    wire_dtype: BlocksName | None,
) -> tuple[torch.Tensor, ...]:
    if grouped:
        return tuple(start_all(call, tensors, *options, wire_dtype=wire_dtype).wait())
    return (start(call, tensors[0], *options, wire_dtype=wire_dtype).wait(),)


class AllReduce(torch.autograd.Function):
    """The all-reduce of tensors that are announced together."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: ReduceOp,
        scales: tuple[float, float],
        process_set: ProcessSet,
        grouped: bool,
        wire_dtype: BlocksName | None,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.arguments = (op, scales, process_set, grouped, wire_dtype)
        options = (op, name, *scales, process_set)
        return _reduced(
            arrays.grouped_allreduce_async if grouped else arrays.allreduce_async,
            tensors, options, grouped, wire_dtype,
        )  # fmt: skip

    @staticmethod
    @ends_on_interrupt
    def backward(ctx: Any, *gradients: torch.Tensor) -> Gradients:
        reduced = AllReduce.apply(None, *ctx.arguments, *gradients)
        return (None, None, None, None, None, None, *reduced)


class AllGather(torch.autograd.Function):
    """The all-gather of tensors that are announced together."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        process_set: ProcessSet,
        grouped: bool,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.rows = [len(tensor) if tensor.dim() else 0 for tensor in tensors]
        ctx.process_set = process_set
        if not grouped:
            return (asynchronous.allgather_async(tensors[0], name, process_set).wait(),)
        return tuple(asynchronous.grouped_allgather_async(tensors, name, process_set).wait())

    @staticmethod
    @ends_on_interrupt
    def backward(ctx: Any, *gradients: torch.Tensor) -> Gradients:
        process_set: ProcessSet = ctx.process_set
        means = asynchronous.grouped_allreduce_async(
            gradients, None, None, Average, process_set=process_set
        )
        counts = asynchronous.allgather_async(
            torch.tensor([ctx.rows], device="cpu"), process_set=process_set
        ).wait()
        before = counts[: process_set.rank()].sum(dim=0).tolist()
        places = zip(means.wait(), before, ctx.rows, strict=True)
        return (None, None, None, *(mean.narrow(0, start, n) for mean, start, n in places))


class Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        root_rank: int,
        name: str | None,
        process_set: ProcessSet,
    ) -> torch.Tensor:
        ctx.root_rank, ctx.process_set = root_rank, process_set
        return asynchronous.broadcast_async(tensor, root_rank, name, process_set).wait()

    @staticmethod
    @ends_on_interrupt
    def backward(ctx: Any, *gradients: torch.Tensor) -> Gradients:
        mean = asynchronous.allreduce_async(
            gradients[0], op=Average, process_set=ctx.process_set
        ).wait()
        own = mean if rank() == ctx.root_rank else torch.zeros_like(mean)
        return own, None, None, None


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        splits: object | None,
        name: str | None,
        process_set: ProcessSet,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        output, received = asynchronous.alltoall_async(tensor, splits, name, process_set).wait()
        ctx.received, ctx.process_set = received, process_set
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    @ends_on_interrupt
    def backward(ctx: Any, *gradients: torch.Tensor) -> Gradients:
        handle = asynchronous.alltoall_async(
            gradients[0], ctx.received, process_set=ctx.process_set
        )
        return handle.wait()[0], None, None, None


class ReduceScatter(torch.autograd.Function):
    """The reduce-scatter of tensors that are announced together."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: ReduceOp,
        scales: tuple[float, float],
        process_set: ProcessSet,
        grouped: bool,
        wire_dtype: BlocksName | None,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.arguments = (op, scales, process_set)
        options = (op, name, *scales, process_set)
        return _reduced(
            arrays.grouped_reducescatter_async if grouped else arrays.reducescatter_async,
            tensors, options, grouped, wire_dtype,
        )  # fmt: skip

    @staticmethod
    @ends_on_interrupt
    def backward(ctx: Any, *gradients: torch.Tensor) -> Gradients:
        op, scales, process_set = ctx.arguments
        factor = scales[0] * scales[1] * (process_set.size() if op == Sum else 1)
        scaled: Sequence[torch.Tensor] = [gradient * factor for gradient in gradients]
        handle = asynchronous.grouped_allgather_async(scaled, process_set=process_set)
        return (None, None, None, None, None, None, *handle.wait())
