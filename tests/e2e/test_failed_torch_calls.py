"""Calls of a process group that fail on one rank alone, at their start or at their end."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch  # only where it is installed
import torch.distributed as dist

from reducer_client import ReducerError, RoundTimeoutError
from reducer_client import work as work_module
from reducer_client.torch.calls import key_scopes
from reducer_client.torch.hierarchy.all_reduce import AllReduce
from reducer_client.torch.hierarchy.hierarchy import LEAST_BYTES
from reducer_client.torch.tensors.packing import Packing
from tests.support.process_group import process_group
from tests.support.ranks import Tell, run_ranks, start_ranks, values

SECONDS = 20.0


@contextmanager
def _failing_once(owner: Any, name: str, error: BaseException) -> Iterator[None]:
    real, failed = getattr(owner, name), threading.Event()

    def fail(*arguments: Any, **named: Any) -> Any:
        if failed.is_set():
            return real(*arguments, **named)
        failed.set()
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, fail)
        yield
        assert failed.is_set()


def _sum_of(number: float) -> float:
    tensor = torch.full((4,), number + dist.get_rank())
    dist.all_reduce(tensor)
    return float(tensor[0])


def _by_future(number: float) -> float:
    work = dist.all_reduce(torch.full((4,), number + dist.get_rank()), async_op=True)
    return float(work.get_future().wait()[0][0])


def _losing(
    rank: int, world: int, addresses: list[str], store: str, job: str, name: str, by: str
) -> list[float]:
    """Rank 0 lacks memory for the result of its second call, and repeats the call."""
    call: Callable[[float], float] = _by_future if by == "future" else _sum_of
    found: list[float] = []
    error: BaseException = KeyboardInterrupt() if by == "interrupt" else MemoryError("injected")
    with process_group(rank, world, addresses, store, SECONDS, job=job, hierarchy=False):
        found.append(call(10))
        with pytest.raises(ReducerError):
            if rank == 0:
                with (
                    _failing_once(work_module.Work, name, error),
                    pytest.raises((type(error), RuntimeError)),
                ):
                    call(100)
            for number in (100, 1_000, 10_000):
                found.append(call(number))
    return found


@pytest.mark.parametrize(
    ("name", "by"),
    [
        ("exception", "call"),
        ("_wait_for", "call"),
        ("_wait_for", "interrupt"),
        ("exception", "future"),
    ],
)
def test_a_rank_that_alone_lacks_a_result_ends_the_group(
    addresses: list[str], tmp_path: Path, job: str, name: str, by: str
) -> None:
    """Regression: the repeated call was a round late, or a future was never done."""
    zero, one = run_ranks(2, _losing, addresses, f"{tmp_path}/store", job, name, by)
    assert zero == [21]
    assert one in ([21], [21, 201])


def _interrupted(
    rank: int, world: int, addresses: list[str], store: str, job: str, what: str
) -> list[float]:
    """Ctrl-C interrupts a synchronous call on rank 0, and the program goes on."""
    hierarchy = what == "hierarchy"
    if hierarchy:
        os.environ |= {"LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": str(rank % 2)}
        owner, name = AllReduce, "wait"
    else:
        owner, name = Packing, "unpack"
    count = LEAST_BYTES // 4

    def call(number: float) -> float:
        tensor = torch.zeros(count, 1 if hierarchy else 2)[:, 0].fill_(number + rank)
        dist.all_reduce(tensor)
        return float(tensor[-1])

    found: list[float] = []
    with process_group(rank, world, addresses, store, SECONDS, job=job, hierarchy=hierarchy):
        found.append(call(10))
        with pytest.raises(ReducerError):
            if rank == 0:
                interrupt = _failing_once(owner, name, KeyboardInterrupt())
                with interrupt, pytest.raises(KeyboardInterrupt):
                    call(100)
            for number in (100, 1_000, 10_000):
                found.append(call(number))
    return found


@pytest.mark.parametrize(("what", "world"), [("hierarchy", 4), ("unpack", 2)])
def test_an_interrupt_in_a_synchronous_call_ends_the_group(
    addresses: list[str], tmp_path: Path, job: str, what: str, world: int
) -> None:
    """Regression: the repeated call met the next call of the other ranks: wrong sums."""
    ranks = sum(range(world))
    first, second = 10.0 * world + ranks, 100.0 * world + ranks
    ran = run_ranks(world, _interrupted, addresses, f"{tmp_path}/store", job, what)
    assert ran[0] == [first]
    assert all(found in ([first], [first, second]) for found in ran)


def _refused(rank: int, world: int, addresses: list[str], store: str, job: str) -> list[float]:
    """Rank 0 cannot start threads for its calls, and repeats the calls."""
    names = 16
    found = []
    no_thread = RuntimeError("can't start new thread")
    with (
        pytest.MonkeyPatch.context() as patch,
        process_group(rank, world, addresses, store, SECONDS, job=job, hierarchy=False),
    ):
        patch.setattr(key_scopes, "_NAMES", names)
        tensor = torch.full((4,), 2.0 + rank)
        half = dist._make_nccl_premul_sum(0.5)
        if rank == 0:
            with (
                _failing_once(threading.Thread, "start", no_thread),
                pytest.raises(RuntimeError, match="thread"),
            ):
                dist.all_reduce(tensor, half, async_op=True)
        work = dist.all_reduce(tensor, half, async_op=True)
        work.wait()
        found.append(float(tensor[0]))
        if rank == 0:
            with (
                _failing_once(threading.Thread, "start", no_thread),
                pytest.raises(RuntimeError, match="thread"),
            ):
                dist.barrier(async_op=True)
        dist.barrier(async_op=True).wait()
        for _ in range(names - 1):
            _sum_of(1)
        sparse = torch.full((2,), 1.0 + rank).to_sparse()
        dist.all_reduce(sparse)  # calls in a callback, under the name of the barrier
        found.append(float(sparse.to_dense()[0]))
    return found


def test_a_call_that_was_refused_leaves_nothing(
    addresses: list[str], tmp_path: Path, job: str
) -> None:
    """Regression: PREMUL_SUM had scaled the tensor, or a name stayed in use until a timeout."""
    ran = run_ranks(2, _refused, addresses, f"{tmp_path}/store", job)
    assert ran == [[2.5, 3.0]] * 2


def _late(
    rank: int, world: int, addresses: list[str], store: str, job: str, what: str, tell: Tell
) -> list[float]:
    """Rank 1 makes its second call after it has timed out on rank 0, and goes on."""

    def call(number: float) -> float:
        if what == "barrier":
            dist.barrier()
            return number
        tensor = torch.full((4,), number + rank)
        dist.all_reduce(tensor, async_op=True).wait()
        return float(tensor[0])

    found: list[float] = []
    with process_group(rank, world, addresses, store, 2.0, job=job, hierarchy=False):
        found.append(call(10))
        with pytest.raises(ReducerError):
            if rank == 0:
                with pytest.raises(RoundTimeoutError):
                    call(100)
                tell("late")
            else:
                tell.hear()
            for number in (100, 1_000, 10_000):
                found.append(call(number))
    return found


@pytest.mark.parametrize("what", ["sum", "barrier"])
def test_a_call_that_timed_out_is_not_met_by_a_later_one(
    addresses: list[str], tmp_path: Path, job: str, what: str
) -> None:
    """Regression: until a thread noticed the timeout, a late call could meet a later one."""
    arguments = (addresses, f"{tmp_path}/store", job, what)
    with start_ranks(2, _late, *arguments, talk=True) as ranks:
        assert ranks.receive(0, 60) == "late"
        ranks.send(1)
        zero, one = values(ranks.collect(60))
    first = 10 if what == "barrier" else 21
    assert zero == [first] and one == [first]
