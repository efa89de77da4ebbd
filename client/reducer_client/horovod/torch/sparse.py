"""All-reduce of sparse tensors: gathers the entries of all ranks; torch adds equal indices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from reducer_client.horovod.basics import rank
from reducer_client.horovod.errors import HorovodInternalError
from reducer_client.horovod.handles import wait_all
from reducer_client.horovod.process_sets import ProcessSet, global_process_set
from reducer_client.horovod.requests import Average, ReduceOp, Sum
from reducer_client.horovod.synchronous import ends_on_interrupt
from reducer_client.horovod.torch.asynchronous import allgather_async


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str, op: ReduceOp, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Sum or mean of sparse COO tensors; each rank's entries travel to all others.

    Args:
        tensor: of equal shape and of equal sparse dimensions on all ranks, with any entries.
        name: equal on all ranks.
        op: Average or Sum, else ValueError.

    Returns:
        A function that waits for the result and returns it, a COO tensor that is not coalesced.
        Call the function once. The call raises HorovodInternalError on all ranks if shapes or
        sparse dimensions differ.
    """
    if op not in (Average, Sum):
        raise ValueError(f"sparse all-reduce {name!r}: expected op Average or Sum, got {op!r}")
    # An all-gather concatenates along the first axis, so this must be the axis of the entries.
    indices = allgather_async(tensor._indices().t().contiguous(), f"{name}.indices", process_set)
    values = allgather_async(tensor._values(), f"{name}.values", process_set)
    shape = torch.tensor([[rank(), tensor.sparse_dim(), *tensor.shape]], device="cpu")
    shapes = allgather_async(shape, f"{name}.shape", process_set)

    @ends_on_interrupt
    def finish() -> torch.Tensor:
        found, rows, said = wait_all([values, indices, shapes])
        _check(name, said.tolist())
        mean = found / len(process_set.ranks) if op == Average else found
        return torch.sparse_coo_tensor(
            rows.t(), mean, tensor.shape, device=mean.device, check_invariants=False
        )

    return finish


def _check(name: str, said: Sequence[Sequence[int]]) -> None:
    """Raise HorovodInternalError if the ranks' tensors differ in shape or sparse dimensions.

    Args:
        said: one row of each rank: rank, number of sparse dimensions, shape.
    """
    first, sparse, *shape = said[0]
    for other, its_sparse, *its_shape in said:
        if (its_sparse, its_shape) != (sparse, shape):
            raise HorovodInternalError(
                f"sparse all-reduce {name!r}: expected equal shapes, got {tuple(shape)} with "
                f"{sparse} sparse dimensions on rank {first}, {tuple(its_shape)} with {its_sparse} "
                f"on rank {other}",
                rank=other,
                reason="mismatch",
            )
