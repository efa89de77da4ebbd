"""The asynchronous operations on tensors; autograd does not see them.

A tensor that was passed in must not be changed until its handle is done. Tensors of GPUs go through
host memory: the copy there waits for the device, the copy back is made by ``synchronize``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from reducer_client.arrays import Array
from reducer_client.horovod import arrays
from reducer_client.horovod.handles import GroupHandle, Handle, MappedHandle
from reducer_client.horovod.process_sets import ProcessSet, global_process_set
from reducer_client.horovod.requests import Average, ReduceOp, Sum
from reducer_client.horovod.torch.tensors import copy_back, to_host, to_tensor


def find_op(op: ReduceOp | None, average: bool | None) -> ReduceOp:
    """What ``op``, or ``average`` of old programs, asks for; ValueError for both."""
    if average is None:
        return Average if op is None else op
    if op is not None:
        raise ValueError(f"op={op!r} and average={average!r}: expected one of them")
    return Average if average else Sum


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start to reduce a tensor over the ranks of the set; its value is a new tensor."""
    array, dtype = to_host(tensor)
    scales = (prescale_factor, postscale_factor)
    handle = arrays.allreduce_async(
        array, find_op(op, average), name, *scales, process_set, dtype=dtype
    )
    return _as_tensor(handle, tensor)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """``allreduce_async`` in place."""
    array, dtype = to_host(tensor)
    scales = (prescale_factor, postscale_factor)
    handle = arrays.allreduce_async(
        array, find_op(op, average), name, *scales, process_set, out=array, dtype=dtype
    )
    return _in_place(handle, tensor)


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start to reduce tensors of one dtype that are announced together; a list of new ones."""
    sources, dtype = _to_hosts(tensors)
    scales = (prescale_factor, postscale_factor)
    handle = arrays.grouped_allreduce_async(
        sources, find_op(op, average), name, *scales, process_set, dtype=dtype
    )
    return _as_tensors(handle, tensors)


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """``grouped_allreduce_async`` in place."""
    sources, dtype = _to_hosts(tensors)
    scales = (prescale_factor, postscale_factor)
    handle = arrays.grouped_allreduce_async(
        sources, find_op(op, average), name, *scales, process_set, outs=sources, dtype=dtype
    )

    def finish(found: list[Array]) -> list[torch.Tensor]:
        return [copy_back(array, into) for array, into in zip(found, tensors, strict=True)]

    return MappedHandle(handle, finish)


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start to put the ranks' rows one below the other; ranks may have different numbers."""
    array, dtype = to_host(tensor)
    return _as_tensor(arrays.allgather_async(array, name, process_set, dtype=dtype), tensor)


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """``allgather_async`` of several tensors of one dtype; a list of results."""
    sources, dtype = _to_hosts(tensors)
    handle = arrays.grouped_allgather_async(sources, name, process_set, dtype=dtype)
    return _as_tensors(handle, tensors)


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start to send the tensor of the global rank ``root_rank``; its value is a new tensor."""
    array, dtype = to_host(tensor)
    handle = arrays.broadcast_async(array, root_rank, name, process_set, dtype=dtype)
    return _as_tensor(handle, tensor)


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """``broadcast_async`` in place."""
    array, dtype = to_host(tensor)
    handle = arrays.broadcast_async(array, root_rank, name, process_set, out=array, dtype=dtype)
    return _in_place(handle, tensor)


def alltoall_async(
    tensor: torch.Tensor,
    splits: object | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start to send rows to each rank; the value is (rows from all ranks, their numbers).

    See ``arrays.alltoall_async`` for what travels.
    """
    array, dtype = to_host(tensor)
    wanted = splits.cpu() if isinstance(splits, torch.Tensor) else splits
    handle = arrays.alltoall_async(array, wanted, name, process_set, dtype=dtype)

    def finish(found: tuple[Array, Array]) -> tuple[torch.Tensor, torch.Tensor]:
        received = torch.from_numpy(found[1])
        if isinstance(splits, torch.Tensor):
            received = received.to(splits.device)
        return to_tensor(found[0], tensor), received

    return MappedHandle(handle, finish)


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Start to reduce a tensor; the value is this rank's rows, of which the first ranks may have
    one more."""
    array, dtype = to_host(tensor)
    scales = (prescale_factor, postscale_factor)
    handle = arrays.reducescatter_async(array, op, name, *scales, process_set, dtype=dtype)
    return _as_tensor(handle, tensor)


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """``reducescatter_async`` of several tensors of one dtype; a list of results."""
    sources, dtype = _to_hosts(tensors)
    scales = (prescale_factor, postscale_factor)
    handle = arrays.grouped_reducescatter_async(
        sources, op, name, *scales, process_set, dtype=dtype
    )
    return _as_tensors(handle, tensors)


def _to_hosts(tensors: Sequence[torch.Tensor]) -> tuple[list[Array], str | None]:
    hosts = [to_host(tensor) for tensor in tensors]
    kinds = {tensor.dtype for tensor in tensors}
    if len(kinds) != 1:
        raise ValueError(
            f"grouped tensors of {', '.join(sorted(map(str, kinds))) or 'nothing'}: expected "
            "tensors of one dtype"
        )
    return [host.array for host in hosts], hosts[0].dtype


def _as_tensor(handle: Handle, like: torch.Tensor) -> Handle:
    return MappedHandle(handle, lambda found: to_tensor(found, like))


def _as_tensors(handle: GroupHandle, like: Sequence[torch.Tensor]) -> Handle:
    def finish(found: list[Array]) -> list[torch.Tensor]:
        return [to_tensor(array, tensor) for array, tensor in zip(found, like, strict=True)]

    return MappedHandle(handle, finish)


def _in_place(handle: Handle, tensor: torch.Tensor) -> Handle:
    return MappedHandle(handle, lambda found: copy_back(found, tensor))
