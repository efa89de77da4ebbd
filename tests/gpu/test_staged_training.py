"""Training whose gradients are on a device, beside the same training over the path of the host."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch  # only where it is installed
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import reducer_client.torch as reducer_torch
from reducer_client.torch.hook.ddp import average
from reducer_client.torch.staging.transfer import SLICE_BYTES
from tests.support import cuda
from tests.support.elastic_job import ElasticJob
from tests.support.process_group import process_group
from tests.support.ranks import join, run_ranks
from tests.support.reducers import Reducers
from tests.support.torch_ranks import gloo_and_group

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.version.cuda is None, reason="this torch is built without CUDA"),
]

DEVICE = "cuda"
STEPS = 3


@pytest.fixture(autouse=True)
def deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read by the ranks


def _enter(rank: int) -> None:
    torch.use_deterministic_algorithms(True)
    torch.cuda.set_device(rank % torch.cuda.device_count())


def _digest(tensors: Any) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


# --- DDP and FSDP2: 22 MB of gradients, of which one has five slices ---


def _net() -> nn.Module:
    torch.manual_seed(7)
    layers = (nn.Linear(1024, 5 * 1024), nn.Tanh(), nn.Linear(5 * 1024, 64))
    assert layers[0].weight.nbytes == 5 * SLICE_BYTES
    return nn.Sequential(*layers).to(DEVICE)


def _train(model: nn.Module, rank: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        inputs = torch.randn(8, 1024, generator=generator).to(DEVICE)
        model(inputs).square().mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()


# No annotations: DDP compares them with classes, and in this module they are strings.
def _through_the_host(state, bucket):  # type: ignore[no-untyped-def]
    """A hook that gives the client a tensor of the host."""
    buffer = bucket.buffer()
    host = buffer.cpu()
    average(state, host, bucket.index()).wait()
    buffer.copy_(host)
    future: Any = torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else [])
    future.set_result(buffer)
    return future


def _hooks(rank: int, world: int, addresses: list[str], job: str, store: str) -> list[list[str]]:
    """By wire dtype: the parameters after training with `attach`, and over the host."""
    _enter(rank)
    found = []
    with gloo_and_group(rank, world, addresses, job, store) as group:
        for wire in (None, "bfloat16", "float16", "int8"):
            digests = []
            for on_host in (False, True):
                model = DistributedDataParallel(_net(), bucket_cap_mb=25)
                if on_host:
                    state = reducer_torch.ReductionState(group, wire_dtype=wire)
                    model.register_comm_hook(state, _through_the_host)
                else:
                    reducer_torch.attach(model, group, wire_dtype=wire)
                _train(model, rank)
                digests.append(_digest(model.parameters()))
            found.append(digests)
    return found


def test_the_hook_has_the_bits_of_the_host(running: Reducers, tmp_path: Path) -> None:
    ranks = run_ranks(2, _hooks, running.addresses, "hooks", str(tmp_path / "store"))
    assert ranks[0] == ranks[1]
    for number, (staged, on_host) in enumerate(ranks[0]):
        assert staged == on_host, number
    assert len({staged for staged, _ in ranks[0]}) == 4  # the wires round differently


def _backend(rank: int, world: int, addresses: list[str], job: str, store: str) -> list[str]:
    """The parameters after training by DDP, by DDP over the host, and by FSDP2."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    _enter(rank)
    with process_group(rank, world, addresses, store, job=job):
        ddp = DistributedDataParallel(_net(), bucket_cap_mb=25)
        _train(ddp, rank)
        on_host = DistributedDataParallel(_net(), bucket_cap_mb=25)
        on_host.register_comm_hook(None, _reduce_host_tensor)
        _train(on_host, rank)
        sharded = _net()
        mesh = init_device_mesh(DEVICE, (world,))
        layers = [layer for layer in sharded.children() if isinstance(layer, nn.Linear)]
        for layer in (*layers, sharded):
            fully_shard(layer, mesh=mesh)
        _train(sharded, rank)
        whole: list[Any] = [p.full_tensor() for p in sharded.parameters()]  # type: ignore[attr-defined]
        return [_digest(ddp.parameters()), _digest(on_host.parameters()), _digest(whole)]


def _reduce_host_tensor(state, bucket):  # type: ignore[no-untyped-def]
    buffer = bucket.buffer()
    host = buffer.cpu()
    dist.all_reduce(host, op=dist.ReduceOp.AVG)
    buffer.copy_(host)
    future: Any = torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else [])
    future.set_result(buffer)
    return future


def test_ddp_and_fsdp2_have_the_bits_of_the_host(running: Reducers, tmp_path: Path) -> None:
    ranks = run_ranks(2, _backend, running.addresses, "backend", str(tmp_path / "store"))
    for digests in ranks:
        assert set(digests) == {ranks[0][1]}, digests


# --- Overlap, DiLoCo, Elastic: gradients are the inputs, so both devices compute the same bits ---


class Product(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(count))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return (self.weight * inputs).sum()


def _products(device: str) -> nn.Module:
    """Two modules with a parameter each: one slice and a half, and two and a bit."""
    counts = (3 * SLICE_BYTES // 8, 2 * SLICE_BYTES // 4 + 5)
    return nn.ModuleList(Product(count) for count in counts).to(device)


def _backward(model: Any, rank: int, step: int) -> None:
    """The gradients are small integers, of which every sum and half is exact."""
    total: Any = 0
    for number, product in enumerate(model):
        weight = product.weight
        inputs = (torch.arange(weight.numel()) * (rank + 1) + step + number) % 97
        total = total + product(inputs.to(weight.device, weight.dtype))
    total.backward()


def _overlap(model: nn.Module, optimizer: Any, rank: int, addresses: list[str], job: str) -> None:
    with (
        join(rank, 2, addresses, job) as group,
        reducer_torch.Overlap(model, optimizer, group, bucket_cap_mb=25),
    ):
        for step in range(STEPS):
            optimizer.zero_grad()
            _backward(model, rank, step)
            optimizer.step()


def _diloco(model: nn.Module, optimizer: Any, rank: int, addresses: list[str], job: str) -> None:
    outer = reducer_torch.OuterSGD(0.5, 0.5)
    with join(rank, 2, addresses, job) as group:
        local = reducer_torch.DiLoCo(
            model, optimizer, group, every=2, fragments=2, delay=1, keep_local=0.5, outer=outer
        )
        for step in range(2 * STEPS):
            local.zero_grad()
            _backward(model, rank, step)
            local.step()


def _elastic(model: nn.Module, optimizer: Any, rank: int, addresses: list[str], job: str) -> None:
    with reducer_torch.Elastic(
        model, optimizer, addresses, workers=2, job=job, by_samples=False,
        join_timeout=60.0, step_timeout=60.0,
    ) as elastic:  # fmt: skip
        # The registry gives the ranks, so both workers use the rank that they have.
        for step in range(STEPS):
            _backward(model, elastic.rank, step)
            elastic.step()


Way = Callable[[nn.Module, Any, int, list[str], str], None]


def _on_both(rank: int, world: int, addresses: list[str], way: Way) -> list[str]:
    """The parameters after the same training on the CPU and on the device."""
    torch.set_num_threads(1)
    _enter(rank)
    found = []
    for device in ("cpu", DEVICE):
        model = _products(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        way(model, optimizer, rank, addresses, f"{way.__name__}-{device}")
        found.append(_digest(model.parameters()))
    return found


@pytest.mark.parametrize("way", [_overlap, _diloco])
def test_a_step_on_the_device_has_the_bits_of_the_host(running: Reducers, way: Way) -> None:
    ranks = run_ranks(2, _on_both, running.addresses, way)
    assert ranks[0][0] == ranks[0][1] and ranks[1][0] == ranks[1][1]
    if way is _overlap:
        assert ranks[0] == ranks[1]


def test_an_elastic_step_on_the_device_has_the_bits_of_the_host(tmp_path: Path) -> None:
    if why := cuda.absence():
        pytest.skip(why)
    with ElasticJob(tmp_path) as job:
        ranks = run_ranks(2, _on_both, job.addresses, _elastic)
    assert len({digest for digests in ranks for digest in digests}) == 1
