"""Checks that inputs and outputs fit. A misfit is refused on each rank before anything is sent.

As with gloo, the tensors of a list have one shape, that of the rank's own tensor, but for
``reduce_scatter``. A total that fits would not tell where one rank's elements end.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch

from reducer_client.torch.tensors.packing import Packing

Tensors = Sequence[torch.Tensor]


def check_root(call: str, root: int, world_size: int) -> None:
    """ValueError unless the root is a rank of the group."""
    if not 0 <= root < world_size:
        raise ValueError(f"{call}: expected a root from 0 to {world_size - 1}, got {root}")


def check_count(call: str, of_ranks: Tensors, world_size: int) -> None:
    """ValueError unless there is one tensor for each rank."""
    if len(of_ranks) != world_size:
        who = f"{call} over {world_size} ranks"
        raise ValueError(f"{who}: expected a list of {world_size} tensors, got {len(of_ranks)}")


def check_list(call: str, of_ranks: Tensors, own: torch.Tensor, world_size: int) -> None:
    """The same, and unless they have the shape of ``own``."""
    check_count(call, of_ranks, world_size)
    who = f"{call} over {world_size} ranks"
    for rank, tensor in enumerate(of_ranks):
        if tensor.shape != own.shape:
            raise ValueError(
                f"{who}: expected a tensor of shape {tuple(own.shape)} for rank {rank}, as this "
                f"rank's own, got {tuple(tensor.shape)}"
            )


def padded(whole: Tensors, part: torch.Tensor, rank: int) -> tuple[Tensors, Tensors]:
    """Inputs and output of a ``reduce_scatter``, with zeros behind those that are shorter.

    ValueError unless ``part`` has the shape of the input for this ``rank``.
    """
    if whole[rank].shape != part.shape:
        raise ValueError(
            f"reduce_scatter over {len(whole)} ranks: expected an output of shape "
            f"{tuple(whole[rank].shape)}, as this rank's input for itself, got {tuple(part.shape)}"
        )
    sizes = [tensor.numel() for tensor in whole]
    longest = max(sizes)
    if min(sizes) == longest:
        return whole, [part]
    pieces = [(tensor, tensor.new_zeros(longest - tensor.numel())) for tensor in whole]
    return [*chain.from_iterable(pieces)], [part, part.new_empty(longest - part.numel())]


def check_lists(call: str, of_ranks: Sequence[Tensors], own: Tensors, world_size: int) -> None:
    """``check_list`` for several tensors of each rank."""
    for rank, tensors in enumerate(of_ranks):
        if len(tensors) != len(own):
            raise ValueError(
                f"{call} over {world_size} ranks: expected {len(own)} tensors for rank {rank}, as "
                f"this rank's own, got {len(tensors)}"
            )
    for number, tensor in enumerate(own):
        check_list(call, [tensors[number] for tensors in of_ranks], tensor, world_size)


def check_pairs(call: str, wholes: Tensors, parts: Tensors, world_size: int) -> None:
    """ValueError unless each whole has room for the part of each rank."""
    who = f"{call} over {world_size} ranks"
    if len(wholes) != len(parts):
        raise ValueError(
            f"{who}: expected as many outputs as inputs, got {len(wholes)} tensors of "
            f"all ranks and {len(parts)} of one"
        )
    for number, (whole, part) in enumerate(zip(wholes, parts, strict=True)):
        if whole.numel() != part.numel() * world_size:
            raise ValueError(
                f"{who}: expected {world_size} times as many elements on one side, got "
                f"{whole.numel()} and {part.numel()} in pair {number}"
            )


def check_parts(call: str, whole: Packing, part: Packing, world_size: int) -> None:
    """ValueError unless dtypes are equal and the whole has room for the part of each rank."""
    if whole.dtype is not part.dtype or whole.numel != part.numel * world_size:
        raise ValueError(
            f"{call} over {world_size} ranks: expected tensors of one dtype and {world_size} times "
            f"as many elements on one side, got {whole.numel} of {whole.dtype} and {part.numel} of "
            f"{part.dtype}"
        )
