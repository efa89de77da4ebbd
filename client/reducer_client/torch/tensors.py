"""Tensors in host memory as the arrays that a group takes: the same memory, never a copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist

from reducer_client.arrays import Array
from reducer_client.dtypes import Op

# What NumPy has no dtype for: its name for a group, and integers as wide.
_BY_NAME = {
    torch.bfloat16: ("bfloat16", torch.uint16),
    torch.float8_e4m3fn: ("float8_e4m3fn", torch.uint8),
    torch.float8_e5m2: ("float8_e5m2", torch.uint8),
}
_OPS: dict[object, str] = {
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
# A bool is a byte 0 or 1; as NCCL does, a sum is true where any is.
_BOOL_OPS: dict[str, str] = {
    "sum": "max",
    "max": "max",
    "bor": "max",
    "prod": "min",
    "min": "min",
    "band": "min",
}


@dataclass(frozen=True)
class Reducible:
    """A tensor as ``Group.all_reduce`` takes it."""

    array: Array
    op: Op
    dtype: str | None


def reducible(flat: torch.Tensor, op: Any) -> Reducible:
    """A contiguous host tensor and a ``ReduceOp`` for a group; TypeError for a pair without."""
    name = _OPS[op.op]
    if flat.is_complex():
        if name not in ("sum", "mean"):
            raise TypeError(f"{name} of {flat.dtype}: expected SUM or AVG for complex tensors")
        flat = torch.view_as_real(flat)
    if flat.dtype is torch.bool:
        return Reducible(flat.view(torch.uint8).numpy(), cast(Op, _bool_op(name)), None)
    if flat.dtype in _BY_NAME:
        dtype, integers = _BY_NAME[flat.dtype]
        return Reducible(flat.view(integers).numpy(), cast(Op, name), dtype)
    return Reducible(movable(flat), cast(Op, name), None)


def movable(flat: torch.Tensor) -> Array:
    """A contiguous host tensor as an array that is only moved: of its dtype, else of its bytes."""
    try:
        return flat.numpy()
    except TypeError:  # a dtype that NumPy has not
        return flat.view(torch.uint8).numpy()


def scaled(flat: torch.Tensor, op: Any) -> torch.Tensor:
    """The tensor, or for PREMUL_SUM a new one: multiplied by its factor."""
    return flat * op.factor if op.op == dist.ReduceOp.PREMUL_SUM else flat


def _bool_op(name: str) -> str:
    try:
        return _BOOL_OPS[name]
    except KeyError:
        raise TypeError(
            f"{name} of torch.bool: expected SUM, MAX or BOR (any), PRODUCT, MIN or BAND (all)"
        ) from None
