"""Reduction of sparse tensors: every rank gathers all indices and values, and adds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from reducer_client.errors import MismatchError

# Size of a rank's record: the number of its values, then the properties that must be equal.
_RECORD_BYTES = 512

# gather(tensor) -> the tensors of all ranks, stacked by rank
Gather = Callable[[torch.Tensor], torch.Tensor]


def check_sparse_op(op: Any) -> None:
    """Raise TypeError for an operation other than SUM and AVG."""
    if op.op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        raise TypeError(f"{op.op} of sparse tensors: expected SUM or AVG")


def all_reduce_sparse(tensor: torch.Tensor, op: Any, gather: Gather) -> None:
    """Reduce a COO tensor over all ranks, in place. Ranks may have different numbers of values.

    Raises MismatchError on all ranks if shapes, sparse dimensions or dtypes differ.
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
        tensor.copy_(total)  # a detached tensor would keep the new values to itself


def _agree(mine: torch.Tensor, gather: Gather) -> list[int]:
    """The number of values of each rank. All other properties of the tensors must be equal."""
    records = gather(_record(mine).to(mine.device)).cpu()
    texts = [bytes(row.numpy()).rstrip(b"\0").decode() for row in records]
    counts, descriptions = zip(*(text.split(" ", 1) for text in texts), strict=True)
    for rank, description in enumerate(descriptions):
        if description != descriptions[0]:
            raise MismatchError(
                f"all_reduce of sparse tensors: expected equal properties, got on rank 0: "
                f"{descriptions[0]}; on rank {rank}: {description}",
                rank=rank,
                reason="mismatch",
            )
    return [int(count) for count in counts]


def _record(mine: torch.Tensor) -> torch.Tensor:
    """The record of a tensor. Raises ValueError if it would exceed _RECORD_BYTES."""
    text = (
        f"{mine.values().shape[0]} {str(mine.dtype).removeprefix('torch.')} of shape "
        f"{tuple(mine.shape)}, sparse in {mine.sparse_dim()} of {mine.dim()} dimensions"
    )
    if len(text) > _RECORD_BYTES:
        raise ValueError(
            f"all_reduce of a sparse tensor of {mine.dim()} dimensions: its description "
            f"has {len(text)} bytes, the limit is {_RECORD_BYTES}"
        )
    return torch.frombuffer(bytearray(text.encode().ljust(_RECORD_BYTES, b"\0")), dtype=torch.uint8)


def _padded(rows: torch.Tensor, count: int) -> torch.Tensor:
    padded = rows.new_zeros((count, *rows.shape[1:]))
    padded[: rows.shape[0]] = rows
    return padded
