"""Divides tensors into buckets of a limited size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

T = TypeVar("T", bound=torch.Tensor)


def partition(
    tensors: Sequence[T], most: int, dtype_of: Callable[[T], torch.dtype]
) -> Iterator[list[T]]:
    """The tensors of each bucket, of at most ``most`` bytes or one tensor.

    The last tensors come first, because backward() makes their gradients first. All tensors of a
    bucket have one device and one dtype, which ``dtype_of`` tells.
    """
    bucket: list[T] = []
    room = most
    for tensor in reversed(tensors):
        dtype = dtype_of(tensor)
        size = tensor.numel() * dtype.itemsize
        is_alike = bucket and (dtype_of(bucket[0]), bucket[0].device) == (dtype, tensor.device)
        if bucket and (not is_alike or size > room):
            yield bucket
            bucket, room = [], most
        bucket.append(tensor)
        room -= size
    if bucket:
        yield bucket
