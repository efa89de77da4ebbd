"""Small calls without a key are spread evenly over reducers and lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from reducer_client import Group, MismatchError
from tests.support.groups import Groups
from tests.support.reducers import Reducers

REDUCERS, LANES, WORLD = 4, 2, 2
VALUES = 1024


@pytest.fixture(scope="module")
def reducers() -> Iterator[Reducers]:
    with Reducers(REDUCERS, lanes=LANES) as started:
        yield started


@pytest.fixture
def groups(reducers: Reducers, request: pytest.FixtureRequest) -> Iterator[Groups]:
    with Groups(WORLD, reducers.addresses, request.node.name) as joined:
        yield joined


def _loads(reducers: Reducers) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array([reducers.lane_bytes_in(index) for index in range(REDUCERS)])


def _assert_even(loads: np.ndarray[Any, Any]) -> None:
    for parts in (loads.sum(axis=1), loads.reshape(-1)):
        assert parts.min() > 0 and parts.max() <= 1.1 * parts.min(), loads


@contextmanager
def _process_groups(groups: Groups) -> Iterator[list[Any]]:
    """Process groups as ``init_process_group("reducer")`` makes them, all in this process."""
    pytest.importorskip("torch")
    from reducer_client.torch import Options
    from reducer_client.torch.backend.inner_groups import InnerGroups
    from reducer_client.torch.backend.process_group import ReducerProcessGroup

    never: Any = None  # no call here uses an inner group
    made = [
        ReducerProcessGroup(
            group,
            (rank, WORLD),
            "0",
            Options(),
            InnerGroups(never, rank, WORLD, timedelta(minutes=1)),
            None,
        )
        for rank, group in enumerate(groups.ranks)
    ]
    yield made
    for group in made:
        group._calls._stop()


def test_a_process_group_loads_all_reducers_alike(reducers: Reducers, groups: Groups) -> None:
    import torch

    before = _loads(reducers)
    with _process_groups(groups) as ranks:
        for _ in range(20):
            tensors = [[torch.ones(VALUES) for _ in range(100)] for _ in ranks]
            works = [
                group.allreduce([tensor])
                for group, mine in zip(ranks, tensors, strict=True)
                for tensor in mine
            ]
            assert all(work.wait() for work in works)
            assert all(tensor[0] == WORLD for mine in tensors for tensor in mine)
    loads = _loads(reducers) - before
    assert loads.sum() == 2000 * WORLD * VALUES * 4
    _assert_even(loads)


def test_calls_in_different_orders_are_a_mismatch(groups: Groups) -> None:
    """Also for kinds of calls that share keys, and after many calls; the group still works."""
    import torch

    def fail(works: list[Any]) -> None:
        for work in works:
            with pytest.raises(MismatchError, match=r"rank 0: .*rank 1: "):
                work.wait()

    with _process_groups(groups) as (first, second):
        for turn in range(150):
            large, small = torch.ones(3 + turn), torch.ones(2)
            works = [first.allreduce([large]), first.broadcast([small])]
            works += [second.broadcast([small.clone()]), second.allreduce([large.clone()])]
            fail(works)
        works = [group.allreduce([torch.ones(2)]) for group in (first, second)]
        assert all(work.wait() for work in works)


CALLS: dict[str, Callable[[Group], Any]] = {
    "all_reduce": lambda group: group.all_reduce(np.ones(VALUES)),
    "all_reduce_many": lambda group: group.all_reduce_many([np.ones(VALUES), np.ones(3)]),
    "broadcast": lambda group: group.broadcast(np.ones(VALUES)),
    "all_gather": lambda group: group.all_gather(np.ones(VALUES)),
    "reduce_scatter": lambda group: group.reduce_scatter(np.ones(VALUES)),
}


@pytest.mark.parametrize("kind", CALLS)
def test_a_group_loads_all_reducers_alike(reducers: Reducers, groups: Groups, kind: str) -> None:
    before = _loads(reducers)
    for _ in range(5):
        works = [CALLS[kind](group) for group in groups.ranks for _ in range(64)]
        for work in works:
            work.wait(60)
    _assert_even(_loads(reducers) - before)
