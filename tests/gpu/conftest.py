"""Tests of real NCCL on GPUs: skipped, with the reason, where something that they need lacks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import cuda, gpu_job, ranks
from tests.support.plugin import NCCL_PLUGIN
from tests.support.reducers import Reducers


def _lack() -> str:
    if why := cuda.absence():
        return why
    if not NCCL_PLUGIN.exists():
        return f"{NCCL_PLUGIN} was not built: make nccl-plugin"
    if not gpu_job.libraries():
        return "no libnccl.so.2: pip install nvidia-nccl-cu12, or make test-nccl"
    return ""


@pytest.fixture(scope="session")
def library() -> Path:
    """The libnccl of this machine's frameworks, or what else there is."""
    if why := _lack():
        pytest.skip(why)
    return gpu_job.libraries()[0]


@pytest.fixture
def reducers(library: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reducers]:
    """Two reducers, and the plugin where the dynamic linker of new processes looks."""
    paths = (str(NCCL_PLUGIN.parent), os.environ.get("LD_LIBRARY_PATH"))
    monkeypatch.setenv("LD_LIBRARY_PATH", os.pathsep.join(path for path in paths if path))
    with Reducers(2) as running:
        yield running


@pytest.fixture
def running() -> Iterator[Reducers]:
    """Two reducers, for PyTorch on a CUDA device without NCCL's plugin."""
    if why := cuda.absence():
        pytest.skip(why)
    with Reducers(2) as reducers:
        yield reducers


@pytest.fixture(autouse=True)
def fresh_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dynamic linker of a rank reads LD_LIBRARY_PATH."""
    monkeypatch.setattr(ranks, "all_fresh", True)
