"""The expected results of quantised sums, whose scales depend on 256 elements each.

The ranks' values have a period, and the blocks have 256 elements, so results repeat after 256
periods. The native kernels compute them, because the NumPy kernels would need seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from reducer import kernels
from reducer.wire.codes import BLOCK_ELEMENTS, TO_BFLOAT16, DType
from reducer.wire.sizes import contribution_bytes, result_bytes
from reducer_tools.bench.sweep import Sweep

Array = npt.NDArray[Any]


def count_wrong(sweep: Sweep, sources: Sequence[Array], result: Array, begin: int) -> int:
    """The number of elements of a result that are wrong.

    ``sources`` has one period of each rank, and ``begin`` is the position in it of element 0.
    """
    repeat = BLOCK_ELEMENTS * sources[0].size
    whole = result.size - result.size % BLOCK_ELEMENTS  # the last block may be shorter
    expected = reduced(sweep, sources, begin, min(whole, repeat))
    wrong = 0
    for at in range(0, whole, repeat):
        part = result[at : min(at + repeat, whole)]
        wrong += _differences(part, expected[: part.size])
    last = reduced(sweep, sources, begin + whole, result.size - whole)
    return wrong + _differences(result[whole:], last)


def reduced(sweep: Sweep, sources: Sequence[Array], begin: int, count: int) -> Array:
    """The result of ``count`` elements that begin with a block."""
    ours, dtype = kernels.load(), sweep.wire
    parts = []
    for source in sources:
        values = np.resize(np.roll(source, -begin), count)
        blocks = np.empty(contribution_bytes(dtype, count), np.uint8)
        ours.quantise(dtype, count, values.data, blocks.data)
        parts.append(blocks.data)
    out = np.empty(result_bytes(dtype, count), np.uint8)
    ours.finish(sweep.reduce_op, dtype, count, len(parts), None, parts, out.data)
    found = np.empty(count, np.float32)
    if dtype in TO_BFLOAT16:
        ours.widen(DType.BFLOAT16, count, out.data, found.data)
    else:
        ours.dequantise(dtype, count, out.data, found.data)
    return found


def _differences(one: Array, other: Array) -> int:
    return int(np.count_nonzero(one.view(np.uint32) != other.view(np.uint32)))
