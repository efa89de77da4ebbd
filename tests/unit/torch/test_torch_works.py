"""Works that the program drops: torch's C++ may still ask for the result, and nothing leaks."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from datetime import timedelta
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
from reducer_client.torch.calls.key_scopes import Scope
from reducer_client.torch.calls.tasks import Task
from reducer_client.torch.calls.works import CallWork
from reducer_client.torch.tensors.packing import Packing
from tests.support.wait import wait_until


@pytest.fixture(autouse=True)
def group(tmp_path: Path) -> Iterator[Any]:
    """The default group, with only this process."""
    store = f"file://{tmp_path}/store"
    dist.init_process_group("reducer", init_method=store, rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def _returns(call: Callable[[], object], seconds: float = 20.0) -> Any:
    """The result or exception of the call; AssertionError if it does not return."""
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


def _fail(*_: object) -> None:
    raise RuntimeError("no such luck")


def _forward(model: DistributedDataParallel) -> torch.Tensor:
    loss: torch.Tensor = model(torch.ones(2, 3)).sum()
    gc.collect()
    return loss


def test_ddp_joins_beside_any_number_of_other_calls() -> None:
    """Dropped or waited calls between a forward pass and its two backward passes do no harm."""
    model = DistributedDataParallel(nn.Linear(3, 3))

    def train() -> str:
        with model.join(divide_by_initial_world_size=False):
            loss = _forward(model)
            for _ in range(1100):
                dist.all_reduce(torch.ones(1), async_op=True)
                dist.all_reduce(torch.ones(1), async_op=True).wait()
                dist.all_reduce(torch.ones(1), async_op=True).get_future().wait()
            loss.backward(retain_graph=True)
            loss.backward()
        return "trained"

    assert _returns(train) == "trained"


def test_a_forward_pass_whose_call_has_failed_ends_the_backward_pass(group: Any) -> None:
    model = DistributedDataParallel(nn.Linear(3, 3))
    loss = _forward(model)
    work = group._calls.start_task(_fail, [], asynchronous=True)
    model.reducer._set_forward_pass_work_handle(work, False)
    del work
    gc.collect()
    assert "no such luck" in str(_returns(loss.backward))


def _started_late(group: Any, tensor: torch.Tensor, on_start: Callable[[], object]) -> Any:
    """A work in flight, and a function that ends it. ``on_start`` is called during its start."""
    handles: list[Any] = []

    def submit(*_: object, on_done: Any, **__: object) -> Any:
        on_start()
        handles.append(Task(Scope("late"), on_done))
        return handles[0]

    packing = Packing([tensor])
    options = c10d.AllreduceOptions()
    options.timeout = timedelta(seconds=20)
    work = group._calls.start(submit, packing, packing, [tensor], options)
    return work, lambda end=lambda: None: handles[0].run(end)


def test_a_barrier_comes_after_what_fails() -> None:
    """On another rank the call may be over, so that the barrier does not wait for it there."""
    work, end = _started_late(dist.group.WORLD, torch.ones(2), lambda: None)
    barrier = dist.barrier(async_op=True)
    assert not barrier.is_completed()
    end(_fail)
    assert barrier.wait()
    with pytest.raises(RuntimeError, match="no such luck"):
        work.wait()


@pytest.mark.parametrize(
    "start",
    [
        lambda: dist.barrier(async_op=True),
        lambda: dist.all_reduce(torch.zeros(3).to_sparse(), async_op=True),
    ],
    ids=["barrier", "sparse sum"],
)
def test_a_barrier_comes_after_what_takes_several_steps(
    group: Any, monkeypatch: pytest.MonkeyPatch, start: Callable[[], Any]
) -> None:
    threads, steps = group._calls._threads, list[Callable[[], None]]()
    with monkeypatch.context() as patch:
        patch.setattr(threads, "submit", steps.append)  # a thread that is slow to begin
        work = start()
        barrier = dist.barrier(async_op=True)
    first, second = steps
    threads.submit(second)
    assert not barrier.is_completed() and not work.is_completed()
    threads.submit(first)
    assert barrier.wait()
    assert work.is_completed()


def test_barriers_of_the_program_and_of_callbacks_take_other_rounds(
    group: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of threads may differ between ranks."""
    keys: list[str] = []
    monkeypatch.setattr(group._calls.group, "barrier", lambda seconds, key: keys.append(key))
    dist.barrier()
    done = dist.all_reduce(torch.ones(3), async_op=True).get_future()
    done.then(lambda _: dist.barrier()).wait()
    done.then(lambda _: dist.barrier()).wait()
    assert len(set(keys)) == 3


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
    "task": lambda group, tensor: group._calls.start_waiting(tensor.sum, []),
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


def _works() -> int:
    gc.collect()
    return sum(type(known) is CallWork for known in gc.get_objects())


def test_works_that_are_dropped_are_gone_when_the_calls_are_over() -> None:
    """Even small works, since a program may drop any number of them."""
    before = _works()
    for _ in range(10):
        dist.all_reduce(torch.ones(1), async_op=True)
        dist.all_reduce(torch.ones(1), async_op=True).wait()
    wait_until(lambda: _works() <= before, 20)


def test_a_reducer_takes_the_works_of_other_backends() -> None:
    model = DistributedDataParallel(nn.Linear(3, 3))
    ready: torch.futures.Future[Any] = torch.futures.Future()
    ready.set_result([torch.ones(1)])
    loss = _forward(model)
    model.reducer._set_forward_pass_work_handle(c10d._create_work_from_future(ready), False)
    loss.backward()
