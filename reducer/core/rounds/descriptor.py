"""The descriptor of a round: the fields that must be equal on all ranks."""

from __future__ import annotations

from typing import Final

from reducer.wire.codes import Collective, DType, Flag, ReduceOp
from reducer.wire.header import Header

WIDE: Final = int(Flag.WIDE)


class Descriptor:
    """Two descriptors are equal if the ranks agree."""

    __slots__ = ("collective", "count", "dtype", "op", "root", "wide")

    def __init__(self, header: Header) -> None:
        self.collective = header.collective
        self.op = header.op
        self.dtype = header.dtype
        self.wide = bool(header.flags & WIDE)
        self.count = header.count
        self.root = header.root

    def _fields(self) -> tuple[int, ...]:
        return (self.collective, self.op, self.dtype, self.wide, self.count, self.root)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Descriptor) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash(self._fields())

    def __str__(self) -> str:
        text = Collective(self.collective).name.lower()
        if self.op not in (ReduceOp.NONE, ReduceOp.COPY):
            text += f" {ReduceOp(self.op).name.lower()}"
        if self.collective != Collective.BARRIER:
            text += f" {DType(self.dtype).name.lower()} x {self.count}"
        if self.wide:
            text += " (wire type of a float32 tensor)"
        if self.collective == Collective.BROADCAST:
            text += f" from root {self.root}"
        return text
