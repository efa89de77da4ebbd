"""Horovod's operations on tensors.

An operation has gradients if its name contains no ``_async`` and does not end in an underscore.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from reducer_client.horovod import arrays
from reducer_client.horovod.process_sets import ProcessSet, global_process_set
from reducer_client.horovod.requests import Average, ReduceOp, find_op
from reducer_client.horovod.synchronous import ends_on_interrupt, synchronous
from reducer_client.horovod.torch import autograd
from reducer_client.horovod.torch.asynchronous import (
    allreduce_async_,
    broadcast_async_,
    grouped_allreduce_async_,
)
from reducer_client.horovod.torch.compression import Compression

# torch leaves Function.apply untyped.
# mypy: disable-error-code="no-untyped-call,no-any-return"


class CompressorLike(Protocol):
    """What ``compression`` may be: a member of ``Compression``, or a class with these methods."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]: ...

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor: ...


@ends_on_interrupt
def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: CompressorLike | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """The tensor reduced over the ranks of the set, by default averaged.

    Args:
        average: deprecated; use ``op``, which is Average or Sum.
        name: equal on all ranks. Without a name the n-th calls of all ranks are one operation.
        compression: the compressor for the data that is sent.
        prescale_factor: factor before the reduction; ``postscale_factor`` after the reduction.
    """
    options = (name, find_op(op, average), (prescale_factor, postscale_factor), process_set)
    return _compressed(autograd.AllReduce, compression, [tensor], *options, False)[0]


allreduce_ = synchronous(allreduce_async_)


@ends_on_interrupt
def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: CompressorLike | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """``allreduce`` of tensors of one dtype, which are announced and fused together."""
    options = (name, find_op(op, average), (prescale_factor, postscale_factor), process_set)
    return _compressed(autograd.AllReduce, compression, tensors, *options, True)


grouped_allreduce_ = synchronous(grouped_allreduce_async_)


@ends_on_interrupt
def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """The rows of all ranks, in the order of ranks. Ranks may have different numbers of rows."""
    return autograd.AllGather.apply(name, process_set, False, tensor)[0]


@ends_on_interrupt
def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """``allgather`` of tensors of one dtype."""
    return list(autograd.AllGather.apply(name, process_set, True, *tensors))


@ends_on_interrupt
def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """The tensor of the global rank ``root_rank``."""
    return autograd.Broadcast.apply(tensor, root_rank, name, process_set)


broadcast_ = synchronous(broadcast_async_)


@ends_on_interrupt
def alltoall(
    tensor: torch.Tensor,
    splits: object | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """The rows that all ranks send to this rank; with ``splits``, also the number from each rank.

    See ``arrays.alltoall_async`` for what travels.
    """
    output, received = autograd.AllToAll.apply(tensor, splits, name, process_set)
    return output if splits is None else (output, received)


@ends_on_interrupt
def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: CompressorLike | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """This rank's rows of the reduced tensor. The first ranks may get one row more."""
    options = (name, op, (prescale_factor, postscale_factor), process_set)
    return _compressed(autograd.ReduceScatter, compression, [tensor], *options, False)[0]


@ends_on_interrupt
def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: CompressorLike | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """``reducescatter`` of tensors of one dtype."""
    options = (name, op, (prescale_factor, postscale_factor), process_set)
    return _compressed(autograd.ReduceScatter, compression, tensors, *options, True)


def join(device: int = -1) -> int:
    """See ``arrays.join``; ``device`` is not needed."""
    return arrays.join()


def _compressed(
    function: type[autograd.AllReduce | autograd.ReduceScatter],
    compression: CompressorLike | None,
    tensors: Sequence[torch.Tensor],
    *options: object,
) -> list[torch.Tensor]:
    """Apply a reduction to the compressed tensors and decompress the results."""
    compressor: CompressorLike = Compression.none if compression is None else compression
    pairs = [compressor.compress(tensor) for tensor in tensors]
    wire_dtype = getattr(compressor, "wire_dtype", None)
    reduced = function.apply(*options, wire_dtype, *(sent for sent, _ in pairs))
    contexts = (context for _, context in pairs)
    return [compressor.decompress(*found) for found in zip(reduced, contexts, strict=True)]
