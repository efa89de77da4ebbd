"""REDUCER_CUDA_WAIT=stream on a real device: the host goes on, and only the stream waits.

`tests/e2e/test_device_words.py` has the same laws on a simulated device.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch  # only where it is installed
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from reducer_client import ReducerError
from reducer_client.torch.staging.cuda import CudaDevice
from tests.support.process_group import process_group
from tests.support.ranks import Tell, run_ranks, start_ranks
from tests.support.reducers import Reducers
from tests.support.torch_names import reduce_scatter_single

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.version.cuda is None, reason="this torch is built without CUDA"),
]

COUNT = 3_000_000  # three slices of float32
WAIT = 60.0  # seconds


def _enter(rank: int, wait: str = "stream") -> None:
    os.environ["REDUCER_CUDA_WAIT"] = wait
    torch.set_num_threads(1)
    torch.cuda.set_device(rank % torch.cuda.device_count())
    assert CudaDevice(torch.device("cuda", torch.cuda.current_device())).can_order()


def _the_host_goes_on(
    rank: int, world: int, addresses: list[str], job: str, store: str, tell: Tell
) -> None:
    _enter(rank)
    with process_group(rank, world, addresses, store, job=job):
        if rank == 1:
            tell.hear()  # rank 0 has waited, and has queued its use of the result
        tensor = torch.full((COUNT,), rank + 1.0, device="cuda")
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        doubled = tensor * 2
        if rank == 0:
            assert not work.is_completed()
            tell("waited")
        assert bool((doubled == 6.0).all())


def test_a_wait_returns_before_the_other_rank_has_called(running: Reducers, tmp_path: Path) -> None:
    arguments = (running.addresses, "goes-on", str(tmp_path / "store"))
    with start_ranks(2, _the_host_goes_on, *arguments, talk=True) as ranks:
        assert ranks.receive(0, WAIT) == "waited"
        ranks.send(1)
        for outcome in ranks.collect(WAIT):
            assert outcome.error is None, outcome.trace


def _the_other_rank_fails(
    rank: int, world: int, addresses: list[str], job: str, store: str, tell: Tell
) -> None:
    _enter(rank)
    with pytest.raises(ReducerError), process_group(rank, world, addresses, store, job=job):
        group = dist.group.WORLD
        if rank == 1:
            tell.hear()
            group.abort()  # type: ignore[union-attr]
            raise ReducerError("as the test wants")
        parameter = torch.ones(COUNT, device="cuda", requires_grad=True)
        parameter.grad = torch.ones_like(parameter)
        dist.all_reduce(parameter.grad, async_op=True).wait()
        torch.optim.SGD([parameter], lr=0.1).step()
        tell("stepped")
        assert bool(parameter.isnan().all())
        dist.all_reduce(torch.ones(COUNT, device="cuda"))


def test_a_failed_call_leaves_no_finite_parameter(running: Reducers, tmp_path: Path) -> None:
    arguments = (running.addresses, "fails", str(tmp_path / "store"))
    with start_ranks(2, _the_other_rank_fails, *arguments, talk=True) as ranks:
        assert ranks.receive(0, WAIT) == "stepped"
        ranks.send(1)
        for outcome in ranks.collect(WAIT):
            assert outcome.error is None, outcome.trace


def _net() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(512, 4096), nn.Tanh(), nn.Linear(4096, 512)).cuda()


def _train(model: nn.Module, rank: int) -> None:
    generator = torch.Generator().manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(5):
        batch = torch.randn(16, 512, generator=generator).cuda()
        model(batch).square().mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()


def _every_way(
    rank: int, world: int, addresses: list[str], job: str, store: str, wait: str
) -> list[bytes]:
    """Parameters after training by DDP and FSDP2, and what collectives of shards give."""
    _enter(rank, wait)
    with process_group(rank, world, addresses, store, job=job):
        ddp = DistributedDataParallel(_net())
        _train(ddp, rank)
        sharded = _net()
        mesh = init_device_mesh("cuda", (world,))
        for layer in (*sharded.children(), sharded):
            fully_shard(layer, mesh=mesh)
        _train(sharded, rank)
        tensors = [p.detach() for p in ddp.parameters()]
        tensors += [p.full_tensor().detach() for p in sharded.parameters()]
        part = torch.empty(COUNT // world, device="cuda")
        reduce_scatter_single(part, torch.arange(float(COUNT), device="cuda") * (rank + 1))
        whole = [torch.empty_like(part) for _ in range(world)]
        dist.all_gather(whole, part)
        return [t.cpu().numpy().tobytes() for t in (*tensors, *whole)]


def test_the_bits_are_those_of_the_waiting_host(running: Reducers, tmp_path: Path) -> None:
    ways = {
        wait: run_ranks(
            2, _every_way, running.addresses, wait, str(tmp_path / f"store-{wait}"), wait
        )
        for wait in ("host", "stream")
    }
    assert ways["stream"] == ways["host"]
    assert ways["host"][0] == ways["host"][1]
