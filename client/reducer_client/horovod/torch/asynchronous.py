"""The asynchronous operations on tensors; autograd does not see them.

A tensor that was passed in must not be changed until its handle is done. Tensors of GPUs go through
host memory: the copy there waits for the device, the copy back is made by ``synchronize``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from reducer_client.arrays import Array
from reducer_client.horovod import arrays
from reducer_client.horovod.handles import Handle, MappedHandle
from reducer_client.horovod.process_sets import ProcessSet, global_process_set
from reducer_client.horovod.requests import Average, ReduceOp, find_op
from reducer_client.horovod.torch.tensors import copy_back, to_host, to_tensor


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[torch.Tensor]:
    """Start an all-reduce of a tensor over the ranks of the process set.

    ``synchronize`` returns a new tensor for the handle.
    """
    options = (find_op(op, average), name, prescale_factor, postscale_factor, process_set)
    return start(arrays.allreduce_async, tensor, *options)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[torch.Tensor]:
    """``allreduce_async`` in place."""
    options = (find_op(op, average), name, prescale_factor, postscale_factor, process_set)
    return start(arrays.allreduce_async, tensor, *options, in_place=True)


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[torch.Tensor]]:
    """Start to reduce tensors of one dtype, which are announced together.

    ``synchronize`` returns a list of new tensors.
    """
    options = (find_op(op, average), name, prescale_factor, postscale_factor, process_set)
    return start_all(arrays.grouped_allreduce_async, tensors, *options)


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[torch.Tensor]]:
    """``grouped_allreduce_async`` in place."""
    options = (find_op(op, average), name, prescale_factor, postscale_factor, process_set)
    return start_all(arrays.grouped_allreduce_async, tensors, *options, in_place=True)


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[torch.Tensor]:
    """Start to concatenate the tensors of all ranks along their first axis, in rank order.

    Ranks may have different numbers of rows.
    """
    return start(arrays.allgather_async, tensor, name, process_set)


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[torch.Tensor]]:
    """``allgather_async`` of tensors of one dtype; ``synchronize`` returns a list of results."""
    return start_all(arrays.grouped_allgather_async, tensors, name, process_set)


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[torch.Tensor]:
    """Start to send the tensor of the global rank ``root_rank`` to all ranks of the set.

    ``synchronize`` returns a new tensor.
    """
    return start(arrays.broadcast_async, tensor, root_rank, name, process_set)


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[torch.Tensor]:
    """``broadcast_async`` in place."""
    return start(arrays.broadcast_async, tensor, root_rank, name, process_set, in_place=True)


def alltoall_async(
    tensor: torch.Tensor,
    splits: object | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[tuple[torch.Tensor, torch.Tensor]]:
    """Start to send rows to each rank; see ``arrays.alltoall_async`` for the arguments.

    ``synchronize`` returns two tensors: the rows received, ordered by the rank that sent them, and
    how many rows each rank sent.
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
) -> Handle[torch.Tensor]:
    """Start to reduce a tensor and to scatter the result.

    ``synchronize`` returns this rank's rows. With n rows and s ranks, the first n % s ranks get one
    row more.
    """
    options = (op, name, prescale_factor, postscale_factor, process_set)
    return start(arrays.reducescatter_async, tensor, *options)


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle[list[torch.Tensor]]:
    """``reducescatter_async`` of tensors of one dtype; ``synchronize`` returns a list."""
    options = (op, name, prescale_factor, postscale_factor, process_set)
    return start_all(arrays.grouped_reducescatter_async, tensors, *options)


def start(
    call: Callable[..., Handle[Array]],
    tensor: torch.Tensor,
    *options: object,
    in_place: bool = False,
    **more: object,
) -> Handle[torch.Tensor]:
    """Make one of the calls of ``arrays`` with its arguments."""
    array, dtype = to_host(tensor)
    out = {"out": array} if in_place else {}
    back = copy_back if in_place else to_tensor
    handle = call(array, *options, **out, **more, dtype=dtype)
    return MappedHandle(handle, lambda found: back(found, tensor))


def start_all(
    call: Callable[..., Handle[list[Array]]],
    tensors: Sequence[torch.Tensor],
    *options: object,
    in_place: bool = False,
    **more: object,
) -> Handle[list[torch.Tensor]]:
    """``start`` for the calls of ``arrays`` that take several arrays."""
    hosts = [to_host(tensor) for tensor in tensors]
    kinds = {tensor.dtype for tensor in tensors}
    if len(kinds) != 1:
        raise ValueError(
            f"grouped tensors of {', '.join(sorted(map(str, kinds))) or 'nothing'}: expected "
            "tensors of one dtype"
        )
    sources, dtype = [host.array for host in hosts], hosts[0].dtype
    outs = {"outs": sources} if in_place else {}
    back = copy_back if in_place else to_tensor

    def finish(found: list[Array]) -> list[torch.Tensor]:
        return [back(array, tensor) for array, tensor in zip(found, tensors, strict=True)]

    return MappedHandle(call(sources, *options, **outs, **more, dtype=dtype), finish)
