"""Arrays that the engine may read while it writes results, and those that must be copied."""

from __future__ import annotations

import numpy as np
import pytest

from reducer_client.arrays import apart, as_array


def test_a_source_that_the_target_overlaps_is_copied() -> None:
    memory = np.arange(100, dtype=np.float32)
    for source, target in (
        (memory[:60], memory[40:]),  # results would overwrite unread input
        (memory[:50], memory[:100]),  # all_gather into a buffer that contains the input
        (memory, memory[50:]),  # reduce_scatter into a part of the input
    ):
        taken = apart(source, target)
        assert taken is not None
        assert not np.shares_memory(taken, target)
        assert (taken == source).all()


def test_in_place_and_separate_arrays_are_not_copied() -> None:
    memory = np.arange(100, dtype=np.float32)
    assert apart(memory, memory) is memory
    assert apart(memory, np.empty_like(memory)) is memory
    assert apart(memory, None) is memory
    assert apart(None, memory) is None


def test_masked_arrays_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match="masked arrays"):
        as_array(np.ma.masked_array([1.0, 2.0], mask=[True, False]))
