"""Works of which torch's C++ keeps its half alone: the half in Python must not be missed."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

pytest.importorskip("torch")

import torch  # only where it is installed
import torch.distributed as dist
from torch import nn
from torch._C import _distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

import reducer_client.torch  # noqa: F401  # makes the backend known


@pytest.fixture(autouse=True)
def group(tmp_path: Path) -> Iterator[Any]:
    """The default group, of this process alone."""
    store = f"file://{tmp_path}/store"
    dist.init_process_group("reducer", init_method=store, rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def _returns(call: Callable[[], object], seconds: float = 20.0) -> Any:
    """What the call returns or raises; AssertionError where it never does."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(call())
        except Exception as error:
            outcome.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert outcome, f"has not returned after {seconds:g} s"
    return outcome[0]


def _boxed(work: Any) -> Any:
    """The C++ half alone, as an operator of torch passes works on."""
    box = work.boxed()
    del work
    gc.collect()
    return box


@pytest.mark.parametrize("divide_by_initial_world_size", [True, False])
def test_ddp_joins(divide_by_initial_world_size: bool) -> None:
    """DDP gives the work of each forward pass to its reducer in C++, and drops it."""
    model = DistributedDataParallel(nn.Linear(3, 3))

    def train() -> str:
        with model.join(divide_by_initial_world_size=divide_by_initial_world_size):
            for _ in range(3):
                model(torch.ones(2, 3)).sum().backward()
        return "trained"

    assert _returns(train) == "trained"


def test_an_operator_waits_for_a_work_that_python_has_dropped() -> None:
    tensor = torch.ones(2000)
    c10d._register_work(tensor, dist.all_reduce(tensor, async_op=True))
    gc.collect()
    waited = _returns(lambda: torch.ops._c10d_functional.wait_tensor(tensor))
    assert torch.equal(waited, torch.ones(2000))


@pytest.mark.parametrize("start", [dist.all_reduce, lambda *_, **call: dist.barrier(**call)])
def test_a_dropped_work_still_ends(start: Callable[..., Any]) -> None:
    box = _boxed(start(torch.ones(2), async_op=True))
    assert _returns(lambda: dist.Work.unbox(box).wait()) is True
    for _ in range(2):  # DDP asks again in a second backward pass
        for value in _returns(lambda: dist.Work.unbox(box).get_future().wait()):
            assert torch.equal(value, torch.ones(2))


def test_a_dropped_work_still_fails(group: Any) -> None:
    def fail() -> None:
        raise RuntimeError("no such luck")

    box = _boxed(group._calls.start_task(fail, [], asynchronous=True))
    assert "no such luck" in str(_returns(lambda: dist.Work.unbox(box).wait()))


def test_what_is_dropped_is_let_go_in_time(group: Any) -> None:
    """Memory of the program's own at once, small works after a thousand others."""
    keeper = group._calls._keeper
    dist.all_reduce(torch.ones(100_000), async_op=True)
    dist.all_reduce(torch.ones(1))
    assert not keeper._works
    dist.all_reduce(torch.ones(100, 100).to_sparse(), async_op=True).wait()
    assert not any(tensor.is_sparse for work in keeper._works for tensor in work.result())
    for _ in range(keeper._WORKS + 10):
        dist.all_reduce(torch.ones(1), async_op=True)
    assert len(keeper._works) == keeper._WORKS
