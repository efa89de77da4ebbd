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
from reducer_client.torch.packing import Packing
from reducer_client.torch.strands import Strand
from reducer_client.torch.tasks import Task
from tests.support.wait import wait_until


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


def _fail() -> None:
    raise RuntimeError("no such luck")


def test_a_dropped_work_still_fails(group: Any) -> None:
    box = _boxed(group._calls.start_task(_fail, [], asynchronous=True))
    assert "no such luck" in str(_returns(lambda: dist.Work.unbox(box).wait()))


def test_ddp_joins_beside_many_other_calls(group: Any) -> None:
    """Those that the program waits for, by themselves or by their futures."""
    model = DistributedDataParallel(nn.Linear(3, 3))

    def train() -> str:
        with model.join(divide_by_initial_world_size=False):
            loss = model(torch.ones(2, 3)).sum()
            for _ in range(group._calls._keeper._WORKS):
                dist.all_reduce(torch.ones(1), async_op=True).wait()
                dist.all_reduce(torch.ones(1), async_op=True).get_future().wait()
            loss.backward()
        return "trained"

    assert _returns(train) == "trained"


def _started_late(group: Any, tensor: torch.Tensor, on_start: Callable[[], object]) -> Any:
    """A work that is under way, and what ends it; ``on_start`` is called while it is started."""
    handles: list[Any] = []

    def submit(*_: object, on_done: Any, **__: object) -> Any:
        on_start()
        handles.append(Task(Strand("late"), on_done))
        return handles[0]

    packing = Packing([tensor])
    work = group._calls.start(
        submit, packing, packing, outputs=[tensor], asynchronous=True, timeout=20
    )
    return work, lambda end=lambda: None: handles[0].run(end)


def test_a_work_that_is_asked_while_it_is_under_way_may_be_asked_again(group: Any) -> None:
    """As DDP does: it waits, and takes the future then."""
    work, end = _started_late(group, torch.ones(2), lambda: None)
    box = _boxed(work)
    del work
    barrier = dist.barrier(async_op=True)  # waits for it, too
    end()
    assert _returns(lambda: dist.Work.unbox(box).wait()) is True
    barrier.wait()
    del barrier, end
    gc.collect()
    assert _returns(lambda: dist.Work.unbox(box).get_future().wait())


def test_a_barrier_comes_after_what_fails() -> None:
    """Which is over on another rank, where the barrier knows nothing of it."""
    work, end = _started_late(dist.group.WORLD, torch.ones(2), lambda: None)
    barrier = dist.barrier(async_op=True)
    assert not barrier.is_completed()
    end(_fail)
    assert barrier.wait()
    with pytest.raises(RuntimeError, match="no such luck"):
        work.wait()


def test_a_barrier_comes_before_what_another_thread_only_starts(group: Any) -> None:
    _, end = _started_late(group, torch.ones(2), dist.barrier)
    end()


def _coalesced(tensor: torch.Tensor) -> None:
    with dist.distributed_c10d._coalescing_manager(device=tensor.device, async_ops=True) as works:
        dist.broadcast(tensor, 0, async_op=True)
    works.wait()


HOLDING: dict[str, Callable[[Any, torch.Tensor], object]] = {
    "large": lambda group, tensor: dist.all_reduce(tensor, async_op=True),
    "part": lambda group, tensor: dist.all_reduce(tensor[:2], async_op=True),
    "no part": lambda group, tensor: dist.broadcast(tensor[:0], 0, async_op=True),
    "graph": lambda group, tensor: dist.all_reduce(
        tensor.requires_grad_().square().sum(), async_op=True
    ),
    "graph of a future": lambda group, tensor: (
        dist.all_reduce(tensor.requires_grad_().square().sum(), async_op=True).get_future().wait()
    ),
    "sparse": lambda group, tensor: dist.all_reduce(
        torch.sparse_coo_tensor([[0, 1]], tensor[:2], (4,), check_invariants=True),
        async_op=True,
    ),
    "coalesced": lambda group, tensor: _coalesced(tensor),
    "task": lambda group, tensor: group._calls.start_waiting(tensor.sum),
}


@pytest.mark.parametrize("name", HOLDING)
def test_what_is_dropped_holds_no_memory_of_the_program(group: Any, name: str) -> None:
    tensor = torch.ones(100_000)
    memory = tensor.untyped_storage()._weak_ref()
    HOLDING[name](group, tensor)
    del tensor

    def freed() -> bool:
        gc.collect()
        return torch.UntypedStorage._expired(memory)

    wait_until(freed, 20)


def test_what_is_dropped_is_let_go_in_time(group: Any) -> None:
    keeper = group._calls._keeper
    dist.all_reduce(torch.ones(1))
    assert not keeper._unasked and not keeper._asked
    for _ in range(keeper._WORKS + 10):
        dist.all_reduce(torch.ones(1), async_op=True)
        dist.all_reduce(torch.ones(1), async_op=True).wait()
    assert len(keeper._unasked) == len(keeper._asked) == keeper._WORKS
