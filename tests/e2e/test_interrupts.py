"""Interrupts of synchronous calls in programs that go on: Ctrl-C, and errors of signal handlers."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from reducer_client.group import wait_or_end
from reducer_client.horovod import Sum, arrays
from tests.support.horovod_ranks import initialized
from tests.support.process_group import process_group
from tests.support.ranks import join, run_ranks

SECONDS = 20.0
# Files of the client whose functions run in a synchronous call.
FILES = ("interrupts", "work", "works", "group_calls", "synchronous", "handles", "delegate")
# Sums over the ranks: rank 0 contributes the number, rank 1 contributes one more.
Call = Callable[[float], float]


class _Entries:
    """Counts the functions of some files that a call enters, and interrupts at the entry of one.

    The interpreter also runs signal handlers at the entry of functions.
    """

    def __init__(self, files: Sequence[str], interrupted: int) -> None:
        self._files = tuple(f"/{file}.py" for file in files)
        self._interrupted = interrupted
        self.count = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.endswith(self._files):
            self.count += 1
            if self.count == self._interrupted:
                signal.raise_signal(signal.SIGALRM)

    @contextmanager
    def watching(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self)
        try:
            yield
        finally:
            sys.settrace(before)


@contextmanager
def _handler_raises(error: type[BaseException]) -> Iterator[None]:
    def handler(*_: object) -> None:
        raise error("the interrupt")

    before = signal.signal(signal.SIGALRM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


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
def _inner(rank: int, world: int, addresses: list[str], store: str, job: str) -> Iterator[Call]:
    """A call of the inner group of gloo."""
    torch = pytest.importorskip("torch")

    def call(number: float) -> float:
        received = torch.empty(world)
        torch.distributed.all_to_all_single(received, torch.full((world,), float(number + rank)))
        return float(received.sum())

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


_CONNECT = {"numpy": _numpy, "torch": _torch, "inner": _inner, "horovod": _horovod}


def _interrupted(
    rank: int,
    world: int,
    addresses: list[str],
    folder: str,
    job: str,
    kind: str,
    error: type[BaseException],
    files: Sequence[str],
) -> int:
    """Interrupt rank 0 at each entry, each in a group of its own; returns how many there are."""

    def connect(point: int) -> AbstractContextManager[Call]:
        return _CONNECT[kind](rank, world, addresses, f"{folder}/{point}", f"{job}.{point}")

    def interrupted_call(point: int) -> float:
        with _handler_raises(error), _Entries(files, point).watching():
            return call(100)

    nowhere = _Entries(files, 0)
    with connect(0) as call, nowhere.watching():
        call(10)
    for point in range(1, nowhere.count + 1):
        with connect(point) as call:
            assert call(10) == 21
            with suppress(RuntimeError):  # the group has ended, on this rank or on the other
                if rank == 0:
                    with pytest.raises(error, match="the interrupt"):
                        interrupted_call(point)
                assert call(100) == 201, f"the repeated call, point {point}"
                assert call(1_000) == 2_001, f"the call after the interrupted one, point {point}"
    return nowhere.count


@pytest.mark.parametrize(
    ("kind", "error", "files"),
    [
        ("numpy", KeyboardInterrupt, FILES),
        ("torch", KeyboardInterrupt, FILES),
        ("horovod", KeyboardInterrupt, FILES),
        ("inner", KeyboardInterrupt, ("interrupts", "delegate")),
        ("torch", TimeoutError, ("interrupts", "group_calls")),
        ("horovod", TimeoutError, ("interrupts", "synchronous", "handles")),
    ],
    ids=["numpy", "torch", "horovod", "inner", "torch-handler", "horovod-handler"],
)
def test_an_interrupt_gives_no_wrong_sum(
    addresses: list[str],
    tmp_path: Path,
    job: str,
    kind: str,
    error: type[BaseException],
    files: Sequence[str],
) -> None:
    """Regression: the repeated call met the next call of the other ranks: wrong sums."""
    points = run_ranks(2, _interrupted, addresses, str(tmp_path), job, kind, error, files)
    assert points[0] == points[1] > len(files)


def _interrupted_while_waiting(
    rank: int, world: int, addresses: list[str], store: str, job: str
) -> None:
    with _inner(rank, world, addresses, store, job) as call:
        assert call(10) == 21
        with suppress(RuntimeError), _handler_raises(KeyboardInterrupt):
            if rank == 0:
                signal.setitimer(signal.ITIMER_REAL, 0.1)
                with pytest.raises(KeyboardInterrupt):
                    call(100)
            else:
                time.sleep(0.5)  # rank 0 waits in gloo, whose wait ignores signals
            assert call(100) == 201, "the repeated call"
            assert call(1_000) == 2_001, "the call after the interrupted one"


def test_an_interrupt_of_gloos_wait_gives_no_wrong_values(
    addresses: list[str], tmp_path: Path, job: str
) -> None:
    """Regression: the interrupt came after the wait, and the repeated call met the next one."""
    run_ranks(2, _interrupted_while_waiting, addresses, str(tmp_path / "store"), job)
