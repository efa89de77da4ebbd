"""Fusion buffers: the plan is the same on all ranks, and packing loses nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reducer_client.fusion import plan_fusion

DTYPES = ("float32", "int8", "float64")
SHAPES = st.lists(
    st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=3)), max_size=30
)


@given(SHAPES, st.integers(1, 300))
def test_every_array_is_in_one_buffer_of_its_dtype_within_the_threshold(
    shapes: list[tuple[str, list[int]]], threshold: int
) -> None:
    arrays = [np.full(shape, i, dtype) for i, (dtype, shape) in enumerate(shapes)]
    plan = plan_fusion(arrays, threshold)
    assert sorted(m for buffer in plan for m in buffer.members) == list(range(len(arrays)))
    assert [buffer.members[0] for buffer in plan] == sorted(b.members[0] for b in plan)
    for buffer in plan:
        members = [arrays[m] for m in buffer.members]
        assert {a.dtype for a in members} == {buffer.dtype}
        assert buffer.count == sum(a.size for a in members)
        assert len(members) == 1 or buffer.count * buffer.dtype.itemsize <= threshold
        fused = buffer.pack(arrays)
        for view, array in zip(buffer.views(fused, arrays), members, strict=True):
            assert np.shares_memory(view, fused) or array.size == 0
            assert np.array_equal(view, array)


def test_dtypes_do_not_close_each_others_buffers() -> None:
    arrays = [np.zeros(4, dtype) for dtype in ("float32", "int8", "float32", "int8")]
    assert [buffer.members for buffer in plan_fusion(arrays, 1000)] == [[0, 2], [1, 3]]
    assert [buffer.members for buffer in plan_fusion(arrays, 16)] == [[0], [1, 3], [2]]


def test_a_threshold_must_be_above_0() -> None:
    with pytest.raises(ValueError, match="fusion_threshold=0"):
        plan_fusion([], 0)
