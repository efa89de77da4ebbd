"""The client: time of a small all-reduce over a real reducer, with one worker."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import reducer_client
from bench.micro.measure import Measure

CALLS = 2_000
COUNT = 1024  # float32: 4 KiB


@pytest.fixture(scope="module")
def group() -> Iterator[reducer_client.Group]:
    with (
        reducer_client.local_reducers(1) as addresses,
        reducer_client.connect(addresses, job="bench", rank=0, world_size=1) as group,
    ):
        yield group


def test_all_reduce_4_kib(measure: Measure, group: reducer_client.Group) -> None:
    """Submit and wait: the latency of one worker."""
    given = np.arange(COUNT, dtype=np.float32)
    result = np.empty_like(given)
    measure.each(
        lambda: group.all_reduce(given, out=result, key="latency").wait(),
        rounds=CALLS,
        size=given.nbytes,
    )
    assert np.array_equal(result, given)


def test_submit_4_kib(measure: Measure, group: reducer_client.Group) -> None:
    """Only the call of submit: the cost for the training thread."""
    given = np.arange(COUNT, dtype=np.float32)
    works: list[reducer_client.Work[np.ndarray[tuple[int, ...], np.dtype[np.generic]]]] = []

    def drained() -> None:
        while works:
            works.pop().wait()

    measure.each(
        lambda: works.append(group.all_reduce(given, key="submit")), setup=drained, rounds=CALLS
    )
    assert np.array_equal(works[-1].wait(), given)
