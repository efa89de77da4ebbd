"""Host tensors as arrays for a group. The arrays share the memory of the tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from reducer_client.arrays import Array
from reducer_client.dtypes import NARROW_NAMES, Op, WireDtype, find_reduction

_FLOATS = ("float32", "float64", "float16")
_INTEGERS = ("int8", "uint8", "int32", "uint32", "int64", "uint64")
_DTYPES: dict[torch.dtype, np.dtype[Any]] = {
    getattr(torch, name): np.dtype(name) for name in (*_FLOATS, *_INTEGERS, "bool")
}
# Dtypes that NumPy lacks: the name for a group, and an integer dtype of the same width.
_BY_NAME: dict[torch.dtype, tuple[str, np.dtype[Any]]] = {
    torch.bfloat16: ("bfloat16", np.dtype(np.uint16)),
    torch.float8_e4m3fn: ("float8_e4m3fn", np.dtype(np.uint8)),
    torch.float8_e5m2: ("float8_e5m2", np.dtype(np.uint8)),
}
_COMPLEX: dict[torch.dtype, torch.dtype] = {
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}
_BYTES: np.dtype[Any] = np.dtype(np.uint8)
_OPS: dict[object, Op] = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "mean",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.PRODUCT: "prod",
    dist.ReduceOp.BAND: "band",
    dist.ReduceOp.BOR: "bor",
    dist.ReduceOp.BXOR: "bxor",
    # `scaled` has applied the factor.
    dist.ReduceOp.PREMUL_SUM: "sum",
}


@dataclass(frozen=True)
class Reducible:
    """The arguments of ``Group.all_reduce`` for a tensor."""

    array: Array
    op: Op
    dtype: str | None


class _Memory:
    """The memory of a tensor for NumPy.

    ``tensor.numpy()`` would fix the size of the tensor's storage forever, but FSDP and others
    change it.
    """

    def __init__(self, flat: torch.Tensor, dtype: np.dtype[Any]) -> None:
        self._kept = flat
        self.__array_interface__ = {
            "version": 3,
            "data": (flat.data_ptr(), False),
            "typestr": dtype.str,
            "shape": (flat.numel() * flat.element_size() // dtype.itemsize,),
        }


def _array(flat: torch.Tensor, dtype: np.dtype[Any]) -> Array:
    return np.asarray(_Memory(flat, dtype)) if flat.numel() else np.empty(0, dtype)


def summable(flat: torch.Tensor, op: Op = "sum") -> tuple[Array, str | None]:
    """A contiguous host tensor of floats or integers as ``array`` and ``dtype`` of a reduction.

    Raises TypeError if the reducers do not support this dtype.
    """
    dtype = flat.dtype
    if dtype in _BY_NAME:
        declared, integers = _BY_NAME[dtype]
        return _array(flat, integers), declared
    if dtype not in _DTYPES:
        supported = ", ".join(str(d) for d in (*_DTYPES, *_BY_NAME, *_COMPLEX))
        raise TypeError(f"{op} of {dtype} tensors: expected one of {supported}")
    return _array(flat, _DTYPES[dtype]), None


def carried_dtype(dtype: torch.dtype, wire_dtype: WireDtype | None) -> torch.dtype | None:
    """The dtype to which a device casts values that go to the wire in 16 bits; None: its own.

    The bits are those of a cast on the host, for half of the bytes between device and host.
    """
    if dtype is not torch.float32 or wire_dtype not in NARROW_NAMES:
        return None
    narrow: torch.dtype = getattr(torch, str(wire_dtype))
    return narrow


def reducible(flat: torch.Tensor, op: Any) -> Reducible:
    """The arguments that reduce a contiguous host tensor with a ``ReduceOp``.

    Raises TypeError if the reducers do not support this dtype.
    """
    name = _OPS[op.op]
    if flat.dtype in _COMPLEX and name in ("sum", "mean"):
        flat = flat.view(_COMPLEX[flat.dtype])
    array, declared = summable(flat, name)
    return Reducible(array, name, declared)


def check_reducible(dtype: torch.dtype, op: Any) -> None:
    """Raise TypeError if the reducers do not support the operation for this dtype."""
    what = reducible(torch.empty(0, dtype=dtype, device="cpu"), op)
    find_reduction(what.op, what.array.dtype, what.dtype)


def movable(flat: torch.Tensor) -> Array:
    """A contiguous host tensor as an array of its elements, or of bytes, for moving only."""
    return _array(flat, _DTYPES.get(flat.dtype, _BYTES))


def scaled(flat: torch.Tensor, op: Any) -> torch.Tensor:
    """The tensor; for PREMUL_SUM a new tensor, multiplied by the factor."""
    return flat * _factor(op) if op.op == dist.ReduceOp.PREMUL_SUM else flat


def _factor(op: Any) -> Any:
    """The factor of PREMUL_SUM. Torch 2.12 and earlier show it only in the pickled state."""
    return op.__getstate__()[1]


def as_stored(tensor: torch.Tensor) -> Array:
    """A contiguous host tensor as an array of its shape, for moving only.

    Values of dtypes that NumPy lacks become unsigned integers of the same width.
    """
    return _array(tensor.view(-1), _stored_dtype(tensor.dtype)).reshape(tensor.shape)


def from_stored(array: Array, dtype: str) -> torch.Tensor:
    """The tensor of `as_stored`, in the memory of the array."""
    return torch.from_numpy(array).view(getattr(torch, dtype))


def _stored_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    try:
        return torch.empty(0, dtype=dtype, device="cpu").numpy().dtype
    except TypeError:
        return np.dtype(f"u{dtype.itemsize}")
