"""Whether values are finite and below a limit: both sets of kernels, each instruction set."""

from __future__ import annotations

import numpy as np
import pytest

from reducer.kernels import KernelSet, _numpy
from tests.support.unaligned import unaligned

INF = float("inf")
LIMIT = 2.0**63
BAD = (LIMIT, -LIMIT, 3e38, INF, -INF, float("nan"), -float("nan"))


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 67, 2_049, 16_385])
def test_one_value_at_any_place_decides(kernels: KernelSet, count: int) -> None:
    for place in {0, count // 2, count - 1}:
        for bad in BAD:
            values = np.full(count, np.nextafter(np.float32(LIMIT), np.float32(0)))
            for each in (kernels, _numpy):
                assert each.within(count, values.tobytes(), LIMIT)
            values[place] = bad
            for each in (kernels, _numpy):
                assert not each.within(count, unaligned(values.tobytes(), 1), LIMIT), bad
                assert each.within(count, values, INF) == bool(np.isfinite(bad)), bad


@pytest.mark.parametrize("count", [65_535, 65_536, 65_537, 131_073])
def test_values_that_are_read_in_streams(kernels: KernelSet, count: int) -> None:
    """A bad value on each side of the places where streams begin and end."""
    values = np.zeros(count, np.float32)
    edges = {edge + side for edge in range(0, count + 1, 16_384) for side in (-1, 0)}
    for place in sorted(edges & set(range(count)) | {count - 1}):
        assert kernels.within(count, values, LIMIT)
        values[place] = INF
        assert not kernels.within(count, values, LIMIT), place
        values[place] = 0.0


def test_nothing_is_within(kernels: KernelSet) -> None:
    for each in (kernels, _numpy):
        assert each.within(0, b"", LIMIT)


def test_bad_arguments(kernels: KernelSet) -> None:
    for each in (kernels, _numpy):
        with pytest.raises(ValueError, match="limit must be above 0"):
            each.within(1, bytes(4), 0.0)
        with pytest.raises(ValueError, match="limit must be above 0"):
            each.within(1, bytes(4), float("nan"))
        with pytest.raises(ValueError, match="values: expected at least 8 bytes"):
            each.within(2, bytes(4), 1.0)
