"""Sums of sparse tensors: every rank gathers all indices and values, and adds them up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

# gather(tensor) -> the tensors of all ranks, stacked by rank
Gather = Callable[[torch.Tensor], torch.Tensor]


def check_sparse_op(op: Any) -> None:
    """TypeError for an operation that sparse tensors have not."""
    if op.op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        raise TypeError(f"{op.op} of sparse tensors: expected SUM or AVG")


def all_reduce_sparse(tensor: torch.Tensor, op: Any, gather: Gather) -> None:
    """Sum a COO tensor over all ranks, in place; equal shapes, any number of values on each."""
    mine = tensor.detach().coalesce()
    indices, values = mine.indices(), mine.values()
    counts = gather(torch.tensor([values.shape[0]], device=values.device)).flatten().tolist()
    most = max(counts)
    all_indices = gather(_padded(indices.t(), most))
    all_values = gather(_padded(values, most))
    total = torch.sparse_coo_tensor(
        torch.cat([part[:count] for part, count in zip(all_indices, counts, strict=True)]).t(),
        torch.cat([part[:count] for part, count in zip(all_values, counts, strict=True)]),
        mine.shape,
        check_invariants=False,
    ).coalesce()
    if op.op == dist.ReduceOp.AVG:
        total = total / len(counts)
    with torch.no_grad():
        tensor.copy_(total)  # a detached one would keep what it becomes to itself


def _padded(rows: torch.Tensor, count: int) -> torch.Tensor:
    padded = rows.new_zeros((count, *rows.shape[1:]))
    padded[: rows.shape[0]] = rows
    return padded
