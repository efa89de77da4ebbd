"""Quantised wires: float32 sent as blocks of short codes, each block with its own scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from reducer.wire.codes import DType

BlocksName = Literal["int8", "float8_e4m3fn", "e3m0"]
Down = Literal["bfloat16", "same"]
Rounding = Literal["nearest", "stochastic"]

BLOCKS_NAMES: tuple[BlocksName, ...] = get_args(BlocksName)


@dataclass(frozen=True)
class Quantized:
    """A ``wire_dtype`` for sums and means of float32: 256 elements share a float32 scale.

    A plain name, such as ``wire_dtype="int8"``, means ``Quantized("int8")``. Each element of a
    contribution is rounded once; the reducers sum in float32 and round the result once. A block
    with a NaN or Inf becomes NaN as a whole.

    Args:
        dtype: ``"int8"`` or ``"float8_e4m3fn"``, 8 bits an element and a quarter of the bytes, or
            ``"e3m0"``, 4 bits (a sign and a power of two) and an eighth.
        down: how results come back: as ``"bfloat16"``, or in the ``"same"`` blocks, which takes
            fewer bytes and rounds more. Equal on all ranks.
        rounding: ``"nearest"``, or ``"stochastic"``: up or down at random, right in the mean. The
            random numbers depend on key, round, rank and place, so a rerun gives the same bits.
    """

    dtype: BlocksName
    down: Down = "bfloat16"
    rounding: Rounding = "nearest"

    def __post_init__(self) -> None:
        for field, allowed in (
            ("dtype", BLOCKS_NAMES),
            ("down", get_args(Down)),
            ("rounding", get_args(Rounding)),
        ):
            value = getattr(self, field)
            if value not in allowed:
                raise ValueError(f"{field}={value!r}: expected one of {', '.join(allowed)}")

    def __str__(self) -> str:
        marks = (self.down if self.down == "same" else "", self.rounding.removeprefix("nearest"))
        return " ".join((self.dtype, *filter(None, marks)))

    @property
    def code(self) -> DType:
        """The number of this dtype in the protocol."""
        name = f"{self.dtype}_blocks".upper()
        return DType[name if self.down == "same" else f"{name}_TO_BFLOAT16"]
