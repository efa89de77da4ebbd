"""Sums of sparse tensors: every rank gathers all indices and values, and adds them up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from reducer_client.errors import MismatchError

# Bytes of what each rank says of its tensor: its number of values, and what must be equal.
_RECORD_BYTES = 512

# gather(tensor) -> the tensors of all ranks, stacked by rank
Gather = Callable[[torch.Tensor], torch.Tensor]


def check_sparse_op(op: Any) -> None:
    """TypeError for an operation that sparse tensors have not."""
    if op.op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        raise TypeError(f"{op.op} of sparse tensors: expected SUM or AVG")


def all_reduce_sparse(tensor: torch.Tensor, op: Any, gather: Gather) -> None:
    """Sum a COO tensor over all ranks, in place; any number of values on each.

    Raises MismatchError on all ranks where shape, sparse dimensions or dtype differ.
    """
    mine = tensor.detach().coalesce()
    indices, values = mine.indices(), mine.values()
    counts = _agree(mine, gather)
    most = max(counts)
    all_indices = gather(_padded(indices.t(), most))
    all_values = gather(_padded(values, most))
    total = torch.sparse_coo_tensor(
        torch.cat([part[:count] for part, count in zip(all_indices, counts, strict=True)]).t(),
        torch.cat([part[:count] for part, count in zip(all_values, counts, strict=True)]),
        mine.shape,
        device=mine.device,
        check_invariants=False,
    ).coalesce()
    if op.op == dist.ReduceOp.AVG:
        total = total / len(counts)
    with torch.no_grad():
        tensor.copy_(total)  # a detached one would keep what it becomes to itself


def _agree(mine: torch.Tensor, gather: Gather) -> list[int]:
    """How many values each rank has, of tensors that are equal otherwise."""
    told = gather(_record(mine).to(mine.device)).cpu()
    said = [bytes(row.numpy()).rstrip(b"\0").decode() for row in told]
    counts, descriptions = zip(*(text.split(" ", 1) for text in said), strict=True)
    for rank, description in enumerate(descriptions):
        if description != descriptions[0]:
            raise MismatchError(
                f"all_reduce of sparse tensors: expected equal ones, got on rank 0: "
                f"{descriptions[0]}; on rank {rank}: {description}",
                rank=rank,
                reason="mismatch",
            )
    return [int(count) for count in counts]


def _record(mine: torch.Tensor) -> torch.Tensor:
    """ValueError for one that is not described in _RECORD_BYTES."""
    text = (
        f"{mine.values().shape[0]} {str(mine.dtype).removeprefix('torch.')} of shape "
        f"{tuple(mine.shape)}, sparse in {mine.sparse_dim()} of {mine.dim()} dimensions"
    )
    if len(text) > _RECORD_BYTES:
        raise ValueError(f"all_reduce of a sparse tensor of {mine.dim()} dimensions: too many")
    return torch.frombuffer(bytearray(text.encode().ljust(_RECORD_BYTES, b"\0")), dtype=torch.uint8)


def _padded(rows: torch.Tensor, count: int) -> torch.Tensor:
    padded = rows.new_zeros((count, *rows.shape[1:]))
    padded[: rows.shape[0]] = rows
    return padded
