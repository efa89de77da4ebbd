"""The values that ranks send, and the exact results that each must receive.

A rank's values are periodic, and the period is a prime number of elements. No chunk is a whole
number of periods, so a chunk at a wrong position has wrong values. Each iteration begins at another
position of the period, so the result of an earlier iteration is wrong as well. The expected result
of one period is the fold in rank order by the NumPy kernels, and the comparison is bitwise, without
a tolerance. Quantised results depend on the place in a block, too; quantised.py has their law.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from reducer import kernels
from reducer.kernels.floats import from_float32
from reducer.wire.codes import ITEM_SIZES, NOT_IN_NUMPY, DType
from reducer_tools.bench import quantised
from reducer_tools.bench.sweep import Sweep

Array = npt.NDArray[Any]

PERIOD = 16_381
# Elements between the starts of two iterations: whole cache lines for every dtype.
_STEP = 256
_STARTS = 61
_COMPARED = 1 << 18

_HELD: dict[DType, str] = {d: d.name.lower() for d in DType} | {
    d: f"uint{8 * ITEM_SIZES[d]}" for d in NOT_IN_NUMPY
}


class Pattern:
    """The values of all ranks for one sweep."""

    def __init__(self, sweep: Sweep, world_size: int) -> None:
        self._sweep = sweep
        self._world_size = world_size
        self._results: list[Array] = []

    def sent(self, rank: int, count: int) -> Array:
        """A rank's values: ``count`` elements and one more period, so that any start fits."""
        return np.resize(contribution(self._sweep, rank), count + PERIOD)

    def count_wrong(self, result: Array, rank: int, turn: int) -> int:
        """The number of elements of this rank's result that are wrong for iteration ``turn``."""
        begin = start(turn)
        if self._sweep.collective == "reduce_scatter":
            begin += rank * result.size
        if self._sweep.quantised:
            sources = [contribution(self._sweep, each) for each in range(self._world_size)]
            return quantised.count_wrong(self._sweep, sources, result, begin)
        parts = result.reshape(len(self._periods()), -1)
        periods = zip(parts, self._periods(), strict=True)
        return sum(count_differences(part, period, begin) for part, period in periods)

    def _periods(self) -> list[Array]:
        """One period of each part of the result; computed at the first call."""
        if not self._results:
            if self._sweep.collective == "all_gather":
                ranks = range(self._world_size)
                self._results = [contribution(self._sweep, rank) for rank in ranks]
            elif self._sweep.collective == "broadcast":
                self._results = [contribution(self._sweep, 0)]
            else:
                self._results = [reduced(self._sweep, self._world_size)]
        return self._results


def start(turn: int) -> int:
    """The position in the period at which iteration ``turn`` begins."""
    return turn % _STARTS * _STEP


def contribution(sweep: Sweep, rank: int) -> Array:
    """One period of a rank's values, in the dtype of a program's array."""
    random = np.random.default_rng(rank)
    held = np.dtype(_HELD[sweep.held])
    if sweep.held in NOT_IN_NUMPY:
        return from_float32(sweep.held, random.normal(1.0, 0.5, PERIOD).astype(np.float32))
    if held.kind == "f":
        return random.normal(1.0, 0.5, PERIOD).astype(held)
    values = (1, 2, 3) if held.kind == "u" else (-3, -2, -1, 1, 2, 3)  # zeros hide errors
    return random.choice(np.array(values, held), PERIOD)


def reduced(sweep: Sweep, world_size: int) -> Array:
    """One period of the result over all ranks."""
    twin = kernels.load("numpy")
    op, wire = sweep.reduce_op, sweep.wire
    total = np.empty(PERIOD * twin.acc_itemsize(op, wire), np.uint8)
    for rank in range(world_size):
        values = contribution(sweep, rank)
        if sweep.narrows:
            values = _narrowed(wire, values)
        twin.fold(op, wire, PERIOD, total.data, [values.data], rank == 0)
    result = np.empty(PERIOD, _HELD[wire])
    twin.finish(op, wire, PERIOD, world_size, total.data, [], result.data)
    return _widened(wire, result) if sweep.narrows else result


def count_differences(result: Array, period: Array, begin: int) -> int:
    """Number of elements of ``result`` whose bits differ from the repeated ``period``.

    ``begin`` is the position in the period of the first element.
    """
    expected = _bits(np.resize(period, min(_COMPARED, result.size) + PERIOD))
    wrong = 0
    for at in range(0, result.size, _COMPARED):
        block = _bits(result[at : at + _COMPARED])
        first = (begin + at) % PERIOD
        wrong += int(np.count_nonzero(block != expected[first : first + block.size]))
    return wrong


def _bits(array: Array) -> Array:
    return array.view(f"u{array.itemsize}")


def _narrowed(dtype: DType, values: Array) -> Array:
    out = np.empty(values.size, _HELD[dtype])
    kernels.load("numpy").narrow(dtype, values.size, values.data, out.data)
    return out


def _widened(dtype: DType, values: Array) -> Array:
    out = np.empty(values.size, np.float32)
    kernels.load("numpy").widen(dtype, values.size, values.data, out.data)
    return out
