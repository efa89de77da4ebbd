"""Tensors in host memory as the arrays that a group takes: the same memory, never a copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from reducer_client.arrays import Array
from reducer_client.dtypes import Op, find_reduction

_DTYPES: dict[torch.dtype, np.dtype[Any]] = {
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.float16: np.dtype(np.float16),
    torch.int8: np.dtype(np.int8),
    torch.uint8: np.dtype(np.uint8),
    torch.int32: np.dtype(np.int32),
    torch.uint32: np.dtype(np.uint32),
    torch.int64: np.dtype(np.int64),
    torch.uint64: np.dtype(np.uint64),
    torch.bool: np.dtype(np.bool_),
}
# What NumPy has no dtype for: its name for a group, and integers as wide.
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
    # The factor is applied before the sum.
    dist.ReduceOp.PREMUL_SUM: "sum",
}


@dataclass(frozen=True)
class Reducible:
    """A tensor as ``Group.all_reduce`` takes it."""

    array: Array
    op: Op
    dtype: str | None


class _Memory:
    """A tensor's memory for NumPy. ``tensor.numpy()`` would fix the size of its storage for ever,
    which FSDP and others change."""

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


def reducible(flat: torch.Tensor, op: Any) -> Reducible:
    """A contiguous host tensor and a ``ReduceOp`` for a group; TypeError for a pair without."""
    name, dtype = _OPS[op.op], flat.dtype
    if dtype in _COMPLEX and name in ("sum", "mean"):
        dtype = _COMPLEX[dtype]
    if dtype in _BY_NAME:
        declared, integers = _BY_NAME[dtype]
        return Reducible(_array(flat, integers), name, declared)
    if dtype not in _DTYPES:
        supported = ", ".join(str(d) for d in (*_DTYPES, *_BY_NAME, *_COMPLEX))
        raise TypeError(f"{name} of {flat.dtype} tensors: the reducers do {supported}")
    return Reducible(_array(flat, _DTYPES[dtype]), name, None)


def check_reducible(dtype: torch.dtype, op: Any) -> None:
    """TypeError for a pair that the reducers do not have."""
    what = reducible(torch.empty(0, dtype=dtype, device="cpu"), op)
    find_reduction(what.op, what.array.dtype, what.dtype)


def movable(flat: torch.Tensor) -> Array:
    """A contiguous host tensor as an array that is only moved: its elements, else its bytes."""
    return _array(flat, _DTYPES.get(flat.dtype, _BYTES))


def scaled(flat: torch.Tensor, op: Any) -> torch.Tensor:
    """The tensor, or for PREMUL_SUM a new one: multiplied by its factor."""
    return flat * _factor(op) if op.op == dist.ReduceOp.PREMUL_SUM else flat


def _factor(op: Any) -> Any:
    """The factor of PREMUL_SUM; torch 2.12 and earlier show it only in a pickle."""
    return op.__getstate__()[1]
