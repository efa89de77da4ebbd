"""Checks of shapes and sizes. Each rank refuses a bad call before it sends anything.

As in gloo, all tensors of a list must have the shape of this rank's tensor, except in
``reduce_scatter``. A check of the total size alone would accept lists that put elements of one rank
into the tensor of another.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch

from reducer_client.torch.tensors.packing import Packing

Tensors = Sequence[torch.Tensor]


def check_root(call: str, root: int, world_size: int) -> None:
    """Raise ValueError unless the root is a rank of the group."""
    if not 0 <= root < world_size:
        raise ValueError(f"{call}: expected a root from 0 to {world_size - 1}, got {root}")


def check_count(call: str, of_ranks: Tensors, world_size: int) -> None:
    """Raise ValueError unless there is one tensor for each rank."""
    if len(of_ranks) != world_size:
        who = f"{call} over {world_size} ranks"
        raise ValueError(f"{who}: expected a list of {world_size} tensors, got {len(of_ranks)}")


def check_list(call: str, of_ranks: Tensors, own: torch.Tensor, world_size: int) -> None:
    """Raise ValueError unless there is one tensor for each rank, with the shape of ``own``."""
    check_count(call, of_ranks, world_size)
    who = f"{call} over {world_size} ranks"
    for rank, tensor in enumerate(of_ranks):
        if tensor.shape != own.shape:
            raise ValueError(
                f"{who}: expected a tensor of shape {tuple(own.shape)} for rank {rank}, the shape "
                f"of this rank's tensor, got {tuple(tensor.shape)}"
            )


def padded(whole: Tensors, part: torch.Tensor, rank: int) -> tuple[Tensors, Tensors]:
    """Inputs and output of a ``reduce_scatter``, padded with zeros to the longest input.

    Raises ValueError unless ``part`` has the shape of the input for this ``rank``.
    """
    if whole[rank].shape != part.shape:
        raise ValueError(
            f"reduce_scatter over {len(whole)} ranks: expected an output of shape "
            f"{tuple(whole[rank].shape)}, the shape of input {rank}, got {tuple(part.shape)}"
        )
    sizes = [tensor.numel() for tensor in whole]
    longest = max(sizes)
    if min(sizes) == longest:
        return whole, [part]
    pieces = [(tensor, tensor.new_zeros(longest - tensor.numel())) for tensor in whole]
    return [*chain.from_iterable(pieces)], [part, part.new_empty(longest - part.numel())]


def check_lists(call: str, of_ranks: Sequence[Tensors], own: Tensors, world_size: int) -> None:
    """Apply ``check_list`` to each of the several tensors that every rank gives."""
    for rank, tensors in enumerate(of_ranks):
        if len(tensors) != len(own):
            raise ValueError(
                f"{call} over {world_size} ranks: expected {len(own)} tensors for rank {rank}, as "
                f"many as this rank gives, got {len(tensors)}"
            )
    for number, tensor in enumerate(own):
        check_list(call, [tensors[number] for tensors in of_ranks], tensor, world_size)


def check_pairs(call: str, wholes: Tensors, parts: Tensors, world_size: int) -> None:
    """Raise ValueError unless each whole has room for the part of each rank."""
    who = f"{call} over {world_size} ranks"
    if len(wholes) != len(parts):
        raise ValueError(
            f"{who}: expected as many outputs as inputs, got {len(wholes)} tensors for all ranks "
            f"and {len(parts)} for one rank"
        )
    for number, (whole, part) in enumerate(zip(wholes, parts, strict=True)):
        if whole.numel() != part.numel() * world_size:
            raise ValueError(
                f"{who}: expected {part.numel() * world_size} elements for all ranks in pair "
                f"{number}, with {part.numel()} for one rank, got {whole.numel()}"
            )


def check_parts(call: str, whole: Packing, part: Packing, world_size: int) -> None:
    """Raise ValueError unless dtypes are equal and the whole has room for the part of each rank."""
    if whole.dtype is not part.dtype or whole.numel != part.numel * world_size:
        raise ValueError(
            f"{call} over {world_size} ranks: expected {part.numel * world_size} elements of "
            f"{part.dtype} for all ranks, with {part.numel} for one rank, got {whole.numel} of "
            f"{whole.dtype}"
        )
