"""The layout of a worker's state: the names, dtypes and shapes of its arrays."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgpack  # type: ignore[import-untyped]  # ships no stubs

from reducer_client.arrays import Array

_MOST_BYTES = 64 << 20  # of a layout that is unpacked


class Part(NamedTuple):
    """One array."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Layout:
    """The parts of a state, in their order. Workers with equal layouts can train together."""

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts

    @classmethod
    def of(cls, arrays: Mapping[str, Array]) -> Layout:
        return cls([Part(name, array.dtype.str, array.shape) for name, array in arrays.items()])

    @property
    def digest(self) -> bytes:
        """16 bytes; b"" for a state without arrays."""
        if not self.parts:
            return b""
        return hashlib.sha256(repr(self.parts).encode()).digest()[:16]

    def fields(self) -> list[Any]:
        return [list(part) for part in self.parts]

    def pack(self) -> bytes:
        return zlib.compress(msgpack.packb(self.fields()))

    def difference(self, there: Layout) -> str:
        """What differs first, in words; "" if nothing does."""
        own, others = ({p.name: p for p in each.parts} for each in (self, there))
        for name in sorted(own.keys() ^ others.keys()):
            has, lacks = ("here", "there") if name in own else ("there", "here")
            return f"{name!r} is {has} and not {lacks}"
        for name, part in own.items():
            if part != others[name]:
                other = others[name]
                return (
                    f"{name!r} is {part.dtype} of shape {part.shape} here, {other.dtype} of shape "
                    f"{other.shape} there"
                )
        return "" if self.parts == there.parts else "the arrays are in another order"


def layout_from(fields: list[Any]) -> Layout:
    return Layout([Part(name, dtype, tuple(shape)) for name, dtype, shape in fields])


def unpack(packed: bytes) -> Layout:
    """The layout in these bytes of `Layout.pack`. Raises ValueError."""
    data = zlib.decompressobj().decompress(packed, _MOST_BYTES)
    return layout_from(msgpack.unpackb(data))
