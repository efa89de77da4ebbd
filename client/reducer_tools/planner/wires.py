"""The formats in which float32 arrays are sent, and their bytes as parts of float32's."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

# Blocks of 256 elements with a float32 scale: 260 bytes for int8, 132 for e3m0, 1,024 for float32.
_INT8 = Fraction(260, 1024)
_E3M0 = Fraction(132, 1024)
_BFLOAT16 = Fraction(1, 2)


@dataclass(frozen=True)
class Wire:
    """A format of the contributions and of the results.

    ``up`` and ``down`` are the bytes that a worker sends and receives, as parts of float32's.
    ``arguments`` choose the format in the client's API.
    """

    name: str
    up: Fraction
    down: Fraction
    arguments: str = ""
    is_quantised: bool = False


FLOAT32 = Wire("float32", Fraction(1), Fraction(1))
BFLOAT16 = Wire("bfloat16", _BFLOAT16, _BFLOAT16, 'wire_dtype="bfloat16"')
INT8_TO_BFLOAT16 = Wire("int8, bf16 down", _INT8, _BFLOAT16, 'wire_dtype="int8"', True)
INT8 = Wire("int8", _INT8, _INT8, 'wire_dtype=Quantized("int8", down="same")', True)
E3M0_TO_BFLOAT16 = Wire("e3m0, bf16 down", _E3M0, _BFLOAT16, 'wire_dtype="e3m0"', True)
E3M0 = Wire("e3m0", _E3M0, _E3M0, 'wire_dtype=Quantized("e3m0", down="same")', True)
