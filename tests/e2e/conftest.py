from __future__ import annotations

from collections.abc import Iterator

import pytest

import reducer_client
from reducer_client import Group


@pytest.fixture(scope="session")
def addresses() -> Iterator[list[str]]:
    """Two reducers for all tests of a runner. Each test uses its own job name."""
    with reducer_client.local_reducers(2) as started:
        yield started


@pytest.fixture
def job(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)[:100]


@pytest.fixture
def solo(addresses: list[str], job: str) -> Iterator[Group]:
    """A group of one worker in this process."""
    with reducer_client.connect(addresses, job=job, rank=0, world_size=1) as group:
        yield group
