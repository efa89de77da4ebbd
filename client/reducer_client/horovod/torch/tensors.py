"""Tensors as arrays that share their memory where they can."""

from __future__ import annotations

from typing import NamedTuple

import torch

from reducer_client.arrays import Array
from reducer_client.torch.tensors.memory import resolved, with_memory

# Dtypes that NumPy lacks: the integers that hold their bits, and their names for the reducers.
_AS_BITS: dict[torch.dtype, tuple[torch.dtype, str]] = {
    torch.bfloat16: (torch.int16, "bfloat16"),
    torch.float8_e4m3fn: (torch.uint8, "float8_e4m3fn"),
    torch.float8_e5m2: (torch.uint8, "float8_e5m2"),
}


class Host(NamedTuple):
    """A tensor's array, and the dtype of its elements if the array holds their bits as integers."""

    array: Array
    dtype: str | None


def to_host(tensor: torch.Tensor) -> Host:
    """Convert a tensor. The array shares the memory of a CPU tensor; other tensors are copied.

    Raises TypeError for a sparse tensor, and for one without memory of its own, such as a DTensor.
    """
    if tensor.layout is not torch.strided:
        raise TypeError(
            f"a tensor of layout {tensor.layout}: expected a dense one; use "
            "sparse_allreduce_async() or to_dense()"
        )
    plain = resolved(with_memory(tensor).detach().cpu())
    bits = _AS_BITS.get(plain.dtype)
    if bits is None:
        return Host(plain.numpy(), None)
    return Host(plain.view(bits[0]).numpy(), bits[1])


def to_tensor(array: Array, like: torch.Tensor) -> torch.Tensor:
    """A tensor of the dtype and on the device of ``like``, with the array's shape and values."""
    tensor = torch.from_numpy(array)
    if like.dtype in _AS_BITS:
        tensor = tensor.view(like.dtype)
    return tensor.to(like.device)


def copy_back(array: Array, into: torch.Tensor) -> torch.Tensor:
    """``into`` with the array's values: nothing to do where they share memory."""
    # Apart where they are of several devices, or the tensor is lazily negated or conjugated.
    if array.ctypes.data != with_memory(into).data_ptr():
        with torch.no_grad():
            into.copy_(to_tensor(array, into))
    return into
