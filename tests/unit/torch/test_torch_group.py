"""What torch needs of a process group besides collectives: devices, profiles, checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch  # only where it is installed
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint

import reducer_client.torch  # noqa: F401  # makes the backend known


@contextmanager
def _group(folder: Path, backend: str = "reducer") -> Iterator[Any]:
    """The default group, with only this process."""
    store = f"file://{folder}/store"
    dist.init_process_group(backend, init_method=store, rank=0, world_size=1)
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("backend", ["reducer", "cpu:reducer", "cpu:reducer,cuda:reducer"])
def test_it_takes_tensors_in_host_memory(tmp_path: Path, backend: str) -> None:
    with _group(tmp_path, backend) as group:
        assert torch.device("cpu") in group._device_types
        assert dist.distributed_c10d._get_object_coll_device(group) == "cpu"
        assert "cpu" in dist.distributed_c10d._device_capability(group)
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        assert torch.equal(tensor, torch.ones(2))


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")  # torch 2.8 itself
def test_a_checkpoint_is_saved_in_the_background(tmp_path: Path) -> None:
    saved = {"weight": torch.arange(4.0)}
    with _group(tmp_path, "cpu:reducer"):
        checkpoint.async_save(saved, checkpoint_id=f"{tmp_path}/saved").result(60)
        loaded = {"weight": torch.zeros(4)}
        checkpoint.load(loaded, checkpoint_id=f"{tmp_path}/saved")
    assert torch.equal(loaded["weight"], saved["weight"])


def test_a_coalescing_manager_gathers_the_works(tmp_path: Path) -> None:
    with _group(tmp_path):
        tensors = [torch.ones(3), torch.ones(4)]
        with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as started:
            dist.all_reduce(tensors[0])
            dist.broadcast(tensors[1], src=0, async_op=True)
        started.wait()
        assert dist.group.WORLD.coalescing is None


CALLS: dict[str, Callable[[], Any]] = {
    "all_reduce": lambda: dist.all_reduce(torch.ones(2)),
    "broadcast": lambda: dist.broadcast(torch.ones(2), src=0),
    "all_gather": lambda: dist.all_gather([torch.ones(2)], torch.ones(2)),
    "reduce_scatter": lambda: dist.reduce_scatter(torch.ones(2), [torch.ones(2)]),
    "reduce": lambda: dist.reduce(torch.ones(2), dst=0),
    "barrier": dist.barrier,
}


def test_the_profiler_shows_calls_by_name(tmp_path: Path) -> None:
    with _group(tmp_path):
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, acc_events=True) as profile:
            for call in CALLS.values():
                call()
            dist.all_reduce(torch.ones(2), async_op=True).wait()
            with pytest.raises(TypeError):
                dist.all_reduce(torch.ones(2), op=dist.ReduceOp.BOR)
    shown = [e.name for e in profile.events() if e.name.startswith("reducer:")]
    expected = [f"reducer:{name}" for name in CALLS]
    assert shown == [*expected, "reducer:all_reduce", "reducer:all_reduce"]
