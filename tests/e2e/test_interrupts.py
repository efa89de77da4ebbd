"""Ctrl-C at the entry of each function of a synchronous call, in a program that goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from reducer_client import ReducerError
from reducer_client.group import wait_or_end
from reducer_client.horovod import Sum, arrays
from tests.support.horovod_ranks import initialized
from tests.support.process_group import process_group
from tests.support.ranks import join, run_ranks

SECONDS = 20.0
# Files of the client whose functions run in a synchronous call.
NAMES = ("interrupts", "work", "works", "synchronous", "handles")
FILES = tuple(f"/{name}.py" for name in NAMES)
# Sums over the ranks: rank 0 contributes the number, rank 1 contributes one more.
Call = Callable[[float], float]


class _Entries:
    """Counts the functions of ``FILES`` that a call enters, and interrupts at the entry of one.

    The interpreter also runs signal handlers at the entry of functions.
    """

    def __init__(self, interrupted: int) -> None:
        self._interrupted = interrupted
        self.count = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.endswith(FILES):
            self.count += 1
            if self.count == self._interrupted:
                raise KeyboardInterrupt

    @contextmanager
    def watching(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self)
        try:
            yield
        finally:
            sys.settrace(before)


@contextmanager
def _torch(rank: int, world: int, addresses: list[str], store: str, job: str) -> Iterator[Call]:
    torch = pytest.importorskip("torch")

    def call(number: float) -> float:
        tensor = torch.full((4,), number + rank)
        torch.distributed.all_reduce(tensor)
        return float(tensor[0])

    with process_group(rank, world, addresses, store, SECONDS, job=job, hierarchy=False):
        yield call


@contextmanager
def _numpy(rank: int, world: int, addresses: list[str], store: str, job: str) -> Iterator[Call]:
    def call(number: float) -> float:
        mine = np.full(4, number + rank)
        return float(wait_or_end(group, lambda: group.all_reduce(mine))[0])

    with join(rank, world, addresses, job) as group:
        yield call


@contextmanager
def _horovod(rank: int, world: int, addresses: list[str], store: str, job: str) -> Iterator[Call]:
    def call(number: float) -> float:
        return float(arrays.allreduce(np.full(4, number + rank), Sum)[0])

    with initialized(rank, world, addresses, job):
        yield call


_CONNECT = {"numpy": _numpy, "torch": _torch, "horovod": _horovod}


def _interrupted(
    rank: int, world: int, addresses: list[str], folder: str, job: str, kind: str
) -> int:
    """Interrupt rank 0 at each entry, each in a group of its own; returns how many there are."""

    def connect(point: int) -> Any:
        return _CONNECT[kind](rank, world, addresses, f"{folder}/{point}", f"{job}.{point}")

    nowhere = _Entries(0)
    with connect(0) as call, nowhere.watching():
        call(10)
    for point in range(1, nowhere.count + 1):
        with suppress(ReducerError), connect(point) as call:
            assert call(10) == 21
            try:
                with _Entries(point if rank == 0 else 0).watching():
                    assert call(100) == 201, f"the call with an interrupt, point {point}"
            except KeyboardInterrupt:
                assert call(100) == 201, f"the repeated call, point {point}"
            assert call(1_000) == 2_001, f"the call after the interrupted one, point {point}"
    return nowhere.count


@pytest.mark.parametrize("kind", _CONNECT)
def test_an_interrupt_gives_no_wrong_sum(
    addresses: list[str], tmp_path: Path, job: str, kind: str
) -> None:
    """Regression: the repeated call met the next call of the other ranks: wrong sums."""
    points = run_ranks(2, _interrupted, addresses, str(tmp_path), job, kind)
    assert points[0] == points[1] >= 8
