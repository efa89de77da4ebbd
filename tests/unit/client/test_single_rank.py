"""A group of one rank does what a group over reducers does with one rank."""

from __future__ import annotations

from typing import Any

import numpy as np

from reducer_client.single_rank import SingleRankGroup


def test_results_have_the_shapes_of_a_group_of_one() -> None:
    group, array = SingleRankGroup(), np.arange(3.0)
    for work in (
        group.all_reduce(array, "sum"),
        group.reduce_scatter(array, "sum"),
        group.broadcast(array, 0),
    ):
        assert np.array_equal(work.wait(), array) and work.wait() is not array
    assert group.all_gather(array).wait().shape == (1, 3)


def test_a_target_gets_the_result_and_a_callback_the_work() -> None:
    done: list[Any] = []
    target = np.zeros(3)
    work = SingleRankGroup().all_reduce(np.ones(3), "sum", out=target, on_done=done.append)
    assert work.wait() is target and target.all()
    assert done == [work] and work.done and work.exception() is None
