"""The arrays that are reduced: sizes, types, and values whose sum is exact in every order.

Quantised sums are not exact; the benchmark allows for what rounding can do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from reducer_client import Quantized
from reducer_client.dtypes import WireDtype

Array = npt.NDArray[Any]

# Name on the command line: dtype of the array, dtype on the wire.
TYPES = {
    "fp32": ("float32", "float32"),
    "bf16": ("bfloat16", "bfloat16"),
    "fp16": ("float16", "float16"),
    "fp32-bf16": ("float32", "bfloat16"),
    "fp32-int8": ("float32", "int8"),
    "fp32-int8-bf16": ("float32", "int8-bf16"),
    "fp32-e3m0": ("float32", "e3m0"),
    "fp32-e3m0-bf16": ("float32", "e3m0-bf16"),
}
# The quantised ones: how reducers send them, and the largest error of one rounding, as a part of
# the largest magnitude in a block.
QUANTISED = {
    "int8": (Quantized("int8", down="same"), 1 / 254),
    "int8-bf16": (Quantized("int8"), 1 / 254),
    "e3m0": (Quantized("e3m0", down="same"), 1 / 4),
    "e3m0-bf16": (Quantized("e3m0"), 1 / 4),
}
# Integers up to this are exact in every dtype above, and so are all partial sums.
_EXACT = 256
# The period of an array, in elements: a prime, so that a check finds a misplaced chunk.
_PERIOD = 65_537
# Limits of one turn of one contender: total bytes of its rounds, and number of rounds.
_TURN_BYTES = 4 << 20
_TURN_ROUNDS = 30


@dataclass(frozen=True)
class Case:
    """One size and type. ``size`` is in bytes of the array; the wire may have another dtype."""

    size: int
    type: str

    @property
    def dtype(self) -> np.dtype[Any]:
        return as_dtype(TYPES[self.type][0])

    @property
    def wire_dtype(self) -> str:
        return TYPES[self.type][1]

    @property
    def narrows(self) -> bool:
        """Whether the wire has another dtype than the array."""
        return self.wire_dtype != self.dtype.name

    @property
    def sent_as(self) -> WireDtype | None:
        """The ``wire_dtype`` of reducers."""
        if self.wire_dtype in QUANTISED:
            return QUANTISED[self.wire_dtype][0]
        return "bfloat16" if self.narrows else None

    @property
    def tolerance(self) -> float:
        """The largest error of a sum: each contribution is rounded once, and the sum once."""
        if self.wire_dtype not in QUANTISED:
            return 0.0
        return 2 * _EXACT * QUANTISED[self.wire_dtype][1] + 1

    @property
    def count(self) -> int:
        """Number of elements."""
        return self.size // self.dtype.itemsize

    @property
    def rounds(self) -> int:
        """Number of measurements of each contender in each turn."""
        return max(1, min(_TURN_ROUNDS, _TURN_BYTES // max(1, self.size)))

    def array(self, rank: int, workers: int) -> Array:
        """The contribution of a rank, shape (count,)."""
        return self._repeat(_draw(rank, workers))

    def total(self, workers: int) -> Array:
        """The sum of all ranks' arrays."""
        return self._repeat(np.sum([_draw(rank, workers) for rank in range(workers)], axis=0))

    def _repeat(self, integers: Array) -> Array:
        return np.resize(integers.astype(self.dtype), self.count)


def _draw(rank: int, workers: int) -> Array:
    most = max(1, _EXACT // workers)
    return np.random.default_rng(rank).integers(-most, most + 1, _PERIOD)


def as_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of this name; ml_dtypes has bfloat16."""
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)
