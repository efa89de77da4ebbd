"""Requests, which a rank announces before its data is sent, and their encoding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class Kind(IntEnum):
    """The operation of a request. Timelines show these names."""

    ALLREDUCE = 0
    ALLGATHER = 1
    BROADCAST = 2
    JOIN = 3
    ALLTOALL = 4
    BARRIER = 5
    REDUCESCATTER = 6


class ReduceOp(IntEnum):
    """Reduce operations, with Horovod's numbers."""

    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5


Average, Sum, Adasum = ReduceOp.AVERAGE, ReduceOp.SUM, ReduceOp.ADASUM
Min, Max, Product = ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT


def find_op(op: ReduceOp | None, average: bool | None) -> ReduceOp:
    """``op``, or what the deprecated ``average`` means. Raises ValueError if both are given."""
    if average is None:
        return Average if op is None else op
    if op is not None:
        raise ValueError(f"op={op!r} and average={average!r}: expected one of them")
    return Average if average else Sum


@dataclass(frozen=True, slots=True)
class Request:
    """One rank's part of an operation on one tensor.

    ``dtype`` is a name that is only compared and shown; ``itemsize`` is in bytes. ``root`` is a
    rank of the process set. ``numbers`` has the rows for each rank in an alltoall. In the barrier
    of a process set that is added or removed, ``numbers`` has the set's ranks or number. Ranks that
    have joined must take part in such a barrier. ``wire`` is a ``wire_dtype``; empty: none.
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
    numbers: tuple[int, ...] = ()
    wire: str = ""

    @property
    def count(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.count * self.itemsize

    @property
    def row_shape(self) -> tuple[int, ...] | None:
        """The shape without the first axis; None for a scalar, which has no rows."""
        return self.shape[1:] if self.shape else None

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of the first axis."""
        return math.prod(self.shape[1:]) * self.itemsize

    def to_wire(self) -> list[Any]:
        scales = (self.prescale, self.postscale)
        return [
            *(self.name, int(self.kind), self.dtype, self.itemsize, list(self.shape)),
            *(int(self.op), self.root, *scales, list(self.numbers), self.wire),
        ]


def from_wire(fields: list[Any]) -> Request:
    name, kind, dtype, itemsize, shape, op, root, prescale, postscale, numbers, wire = fields
    return Request(
        *(name, Kind(kind), dtype, itemsize, tuple(shape)),
        *(ReduceOp(op), root, prescale, postscale, tuple(numbers)),
        wire=wire,
    )
