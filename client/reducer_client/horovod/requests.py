"""Requests: what a rank announces before its data moves, and their form on the wire."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class Kind(IntEnum):
    """What is asked for; the names are those of timelines."""

    ALLREDUCE = 0
    ALLGATHER = 1
    BROADCAST = 2
    JOIN = 3
    ALLTOALL = 4
    BARRIER = 5
    REDUCESCATTER = 6


class ReduceOp(IntEnum):
    """Horovod's numbers of its reductions."""

    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5


Average, Sum, Adasum = ReduceOp.AVERAGE, ReduceOp.SUM, ReduceOp.ADASUM
Min, Max, Product = ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT


@dataclass(frozen=True, slots=True)
class Request:
    """One tensor of one rank.

    ``dtype`` is a name for people and for equality, ``itemsize`` in bytes. ``root`` counts within
    the process set. ``splits``: for alltoall the rows for each rank; for a barrier of a process set
    that comes or goes its ranks or its number, and who has joined is needed there, too.
    """

    name: str
    kind: Kind
    dtype: str = ""
    itemsize: int = 0
    shape: tuple[int, ...] = ()
    op: ReduceOp = ReduceOp.SUM
    root: int = 0
    prescale: float = 1.0
    postscale: float = 1.0
    splits: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.count * self.itemsize

    @property
    def row_shape(self) -> tuple[int, ...] | None:
        """Without the first axis; None for a scalar, which has no rows."""
        return self.shape[1:] if self.shape else None

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of the first axis."""
        return math.prod(self.shape[1:]) * self.itemsize

    def to_wire(self) -> list[Any]:
        scales = (self.prescale, self.postscale)
        return [
            *(self.name, int(self.kind), self.dtype, self.itemsize, list(self.shape)),
            *(int(self.op), self.root, *scales, list(self.splits)),
        ]


def from_wire(fields: list[Any]) -> Request:
    name, kind, dtype, itemsize, shape, op, root, prescale, postscale, splits = fields
    return Request(
        *(name, Kind(kind), dtype, itemsize, tuple(shape)),
        *(ReduceOp(op), root, prescale, postscale, tuple(splits)),
    )
