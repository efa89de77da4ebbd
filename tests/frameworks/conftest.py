from __future__ import annotations

from collections.abc import Iterator

import pytest

import reducer_client
from tests.support import ranks


@pytest.fixture(scope="module")
def addresses() -> Iterator[list[str]]:
    """Two reducers, for all tests of a module: each test takes a job name of its own."""
    with reducer_client.local_reducers(2) as started:
        yield started


@pytest.fixture(autouse=True)
def fresh_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks load what their framework loads, and nothing before."""
    monkeypatch.setattr(ranks, "all_fresh", True)
