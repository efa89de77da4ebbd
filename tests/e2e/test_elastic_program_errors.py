"""Errors of the program in an elastic job, with workers that are threads: the others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from threading import enumerate as enumerate_threads
from typing import Any

import numpy as np
import pytest

from reducer_client import JoinError, ReducerUnavailableError, elastic
from tests.support.elastic_job import ElasticJob
from tests.support.wait import wait_until

Connect = Callable[..., elastic.ElasticGroup]


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """A reducer with a registry. Each test uses a job name of its own."""
    with ElasticJob(tmp_path_factory.mktemp("registry"), reducers=1) as job:
        yield job.addresses


@pytest.fixture
def connect(addresses: list[str], job: str) -> Connect:
    def connect(workers: int = 1, size: int = 4, state: Any = None, **options: Any) -> Any:
        state = state or elastic.ArrayState({"weights": np.zeros(size, np.float32)})
        return elastic.connect(
            addresses, workers=workers, state=state, job=job,
            **{"join_timeout": 20.0, "step_timeout": 10.0, **options},
        )  # fmt: skip

    return connect


def train(group: elastic.ElasticGroup, ends: Event) -> int:
    """Make steps until one of the workers has seen the event."""
    with group:
        while not group.all_reduce(np.array([ends.is_set()], np.int32), key="ends").wait()[0]:
            group.step()
        return len(group.members)


class Unloadable(elastic.ArrayState):
    def load(self, *_: Any) -> None:
        raise RuntimeError("the program cannot load this")


def test_a_worker_that_cannot_load_the_state_leaves_the_others_alone(connect: Connect) -> None:
    """Regression: its engine stayed, so the others waited for it until the step timed out."""
    ends = Event()
    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(train, connect(), ends)
        with pytest.raises(RuntimeError, match="cannot load"):
            connect(state=Unloadable({"weights": np.zeros(4, np.float32)}))
        late = connect()
        assert late.world_size == 2
        ends.set()
        train(late, ends)
        assert other.result(20) in (1, 2)


class Unreachable:
    """A registry that answers no call."""

    def __init__(self) -> None:
        self.is_closed = False

    def get(self, _: str) -> None:
        raise ReducerUnavailableError("no answer")

    def close(self) -> None:
        self.is_closed = True


def test_a_connect_that_fails_leaves_no_thread_and_closes_the_registry(connect: Connect) -> None:
    before = set(enumerate_threads())
    with pytest.raises(JoinError, match="1 of 2 workers"):
        connect(workers=2, join_timeout=0.3, discover=list)
    registry = Unreachable()
    with pytest.raises(ReducerUnavailableError):
        connect(registry=registry, discover=list)
    assert registry.is_closed
    wait_until(lambda: set(enumerate_threads()) <= before, 5)


def raises(_: object) -> None:
    raise RuntimeError("of the program")


def test_an_error_in_on_change_ends_neither_the_job_nor_its_views(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """Regression: the worker noticed no later loss, or was in without taking part."""
    ends = Event()
    with ThreadPoolExecutor(3) as threads:
        works = [
            threads.submit(connect, workers=3, rank=rank, on_change=raises if rank == 0 else None)
            for rank in range(3)
        ]
        stays, *others = [work.result(20) for work in works]
        done = threads.submit(train, stays, ends)
        for group in others:
            group.abort()
        ends.set()
        assert done.result(20) >= 1
    assert "on_change has raised an error" in caplog.text and "of the program" in caplog.text


def test_a_job_that_is_over_is_founded_again_with_another_model(connect: Connect) -> None:
    """Regression: the new workers were compared with those that had left."""
    connect(size=4).close()
    with connect(size=5) as group:
        assert group.is_new
        with pytest.raises(JoinError, match="of shape"):
            connect(size=4)
