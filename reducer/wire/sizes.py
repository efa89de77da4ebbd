"""Bytes of elements on the wire (PROTOCOL.md, section 5)."""

from __future__ import annotations

from typing import Final

from reducer.wire.codes import BLOCK_ELEMENTS, ITEM_SIZES, TO_BFLOAT16, DType

_SCALE_BYTES: Final = 4  # float32, in front of the codes of a block
_CODE_BITS: Final = {
    DType.INT8_BLOCKS: 8,
    DType.FLOAT8_E4M3FN_BLOCKS: 8,
    DType.E3M0_BLOCKS: 4,
    DType.INT8_BLOCKS_TO_BFLOAT16: 8,
    DType.FLOAT8_E4M3FN_BLOCKS_TO_BFLOAT16: 8,
    DType.E3M0_BLOCKS_TO_BFLOAT16: 4,
}


class Layout:
    """How elements lie in a payload: `unit` elements in `unit_bytes`, again and again.

    A unit is one element, or a block. The rest at the end has `head` bytes more than its `bits`.
    """

    __slots__ = ("bits", "head", "unit", "unit_bytes")

    def __init__(self, unit: int, head: int, bits: int) -> None:
        self.unit = unit
        self.head = head
        self.bits = bits
        self.unit_bytes = head + unit * bits // 8

    def bytes(self, elements: int) -> int:
        """Bytes of `elements` elements that begin with a unit."""
        if self.unit == 1:
            return elements * self.unit_bytes
        units, rest = divmod(elements, self.unit)
        size = units * self.unit_bytes
        return size + self.head + (rest * self.bits + 7) // 8 if rest else size


LAYOUTS: Final[dict[int, Layout]] = {  # of contributions, by dtype
    **{int(dtype): Layout(1, 0, 8 * size) for dtype, size in ITEM_SIZES.items()},
    **{
        int(dtype): Layout(BLOCK_ELEMENTS, _SCALE_BYTES, bits) for dtype, bits in _CODE_BITS.items()
    },
}
_OF_RESULTS: Final[dict[int, Layout]] = {
    **LAYOUTS,
    **{int(dtype): LAYOUTS[DType.BFLOAT16] for dtype in TO_BFLOAT16},
}


def contribution_layout(dtype: int) -> Layout:
    """How a contribution lies in its payload; raises KeyError for an unknown dtype."""
    return LAYOUTS[dtype]


def result_layout(dtype: int) -> Layout:
    """How a result lies in its payload; raises KeyError for an unknown dtype."""
    return _OF_RESULTS[dtype]


def contribution_bytes(dtype: int, elements: int) -> int:
    """Bytes of a contribution of one chunk of `elements`."""
    return LAYOUTS[dtype].bytes(elements)


def result_bytes(dtype: int, elements: int) -> int:
    """Bytes of the result of one chunk of `elements`."""
    return _OF_RESULTS[dtype].bytes(elements)
