"""``init_process_group("reducer")`` on CUDA tensors: pinned memory, and the order of streams."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

pytest.importorskip("torch")

import numpy as np
import torch  # only where it is installed
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.support.arrays import Array
from tests.support.process_group import process_group
from tests.support.ranks import run_ranks
from tests.support.reducers import Reducers
from tests.support.torch_names import reduce_scatter_single

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.version.cuda is None, reason="this torch is built without CUDA"),
]

COUNT = 1 << 20


def _of(rank: int, count: int = COUNT) -> torch.Tensor:
    return torch.arange(count, device="cuda") % 100 + rank * 1.0


def _collectives(rank: int, world: int, addresses: list[str], job: str, store: str) -> None:
    torch.cuda.set_device(rank % torch.cuda.device_count())
    everyone = [_of(r) for r in range(world)]
    with process_group(rank, world, addresses, store, job=job):
        tensor = _of(rank)
        dist.all_reduce(tensor)
        assert torch.equal(tensor, sum(everyone))
        tensor = _of(rank).view(1024, -1).t()
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        assert torch.equal(tensor, everyone[-1].view(1024, -1).t())
        tensor = _of(rank)
        dist.broadcast(tensor, src=1)
        assert torch.equal(tensor, everyone[1])
        gathered = [torch.empty_like(tensor) for _ in range(world)]
        dist.all_gather(gathered, _of(rank))
        assert all(map(torch.equal, gathered, everyone))
        part = torch.empty(COUNT // world, device="cuda")
        reduce_scatter_single(part, _of(rank))
        assert torch.equal(part, sum(everyone).chunk(world)[rank])
        dist.barrier()


def test_collectives_of_cuda_tensors(running: Reducers, tmp_path: Path) -> None:
    run_ranks(2, _collectives, running.addresses, "cuda", str(tmp_path / "store"))


def _streams(rank: int, world: int, addresses: list[str], job: str, store: str) -> None:
    """Many at once, each made on a stream of its own just before, and used right after."""
    torch.cuda.set_device(rank % torch.cuda.device_count())
    with process_group(rank, world, addresses, store, job=job):
        streams = [torch.cuda.Stream() for _ in range(8)]
        works, tensors = [], []
        for index, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(10_000_000)  # the tensor is not there yet when the call is made
                tensor = torch.full((COUNT,), float(index + rank), device="cuda")
                works.append(dist.all_reduce(tensor, async_op=True))
                tensors.append(tensor)
        doubled = [work.get_future().then(lambda f: f.value()[0] * 2) for work in works]
        for index, (work, tensor) in enumerate(zip(works, tensors, strict=True)):
            work.wait()
            expected = world * index + sum(range(world))
            assert (tensor + 0 == expected).all()
            assert (doubled[index].wait() == 2 * expected).all()


def test_calls_keep_the_order_of_streams(running: Reducers, tmp_path: Path) -> None:
    run_ranks(2, _streams, running.addresses, "streams", str(tmp_path / "store"))


def _on_both_devices(rank: int, world: int, addresses: list[str], job: str, store: str) -> None:
    torch.cuda.set_device(rank % torch.cuda.device_count())
    values = torch.randn(COUNT, generator=torch.Generator().manual_seed(rank))
    with process_group(rank, world, addresses, store, job=job):
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
            here = values.to(dtype)
            there = here.cuda()
            for tensor in (here, there):
                dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
            assert torch.equal(here, there.cpu()), dtype


def test_the_device_has_the_bits_of_the_host(running: Reducers, tmp_path: Path) -> None:
    run_ranks(2, _on_both_devices, running.addresses, "both", str(tmp_path / "store"))


def _net() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 8)).cuda()


def _batches(world: int) -> list[torch.Tensor]:
    """Of each step: by rank, 16 examples."""
    steps = torch.Generator().manual_seed(5)
    return [torch.randn(world, 16, 64, generator=steps).cuda() for _ in range(10)]


def _train(model: nn.Module, batches: list[torch.Tensor]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for batch in batches:
        model(batch).square().mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()


def _on_the_host(tensors: Iterable[torch.Tensor]) -> Array:
    found: Array = torch.cat([tensor.detach().flatten().cpu() for tensor in tensors]).numpy()
    return found


def _every_way(rank: int, world: int, addresses: list[str], job: str, store: str) -> list[Array]:
    """Parameters after the same training by DDP, by FSDP2, and in one process."""
    torch.cuda.set_device(rank % torch.cuda.device_count())
    everyone = _batches(world)
    mine = [batch[rank] for batch in everyone]
    with process_group(rank, world, addresses, store, job=job):
        ddp = DistributedDataParallel(_net(), bucket_cap_mb=0.05)
        _train(ddp, mine)
        sharded = _net()
        mesh = init_device_mesh("cuda", (world,))
        for layer in (*sharded.children(), sharded):
            fully_shard(layer, mesh=mesh)
        _train(sharded, mine)
        whole = [p.full_tensor() for p in sharded.parameters()]
    alone = _net()
    _train(alone, [batch.flatten(0, 1) for batch in everyone])
    return [_on_the_host(ddp.parameters()), _on_the_host(whole), _on_the_host(alone.parameters())]


def test_ddp_and_fsdp2_train_as_one_process_would(running: Reducers, tmp_path: Path) -> None:
    ranks = run_ranks(2, _every_way, running.addresses, "train", str(tmp_path / "store"))
    ddp, _, alone = ranks[0]
    for others in ranks:
        assert np.array_equal(others[0], ddp)
        assert np.array_equal(others[1], ddp)
    np.testing.assert_allclose(ddp, alone, rtol=1e-4, atol=1e-5)
