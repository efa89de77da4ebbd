"""Training on ``init_process_group("reducer")``: the options of DDP, ZeRO, FSDP2, checkpoints.

The same programs run over gloo, with equal parameters up to the order of sums. Over the reducers
the parameters of all ranks are equal bit for bit.

Only ranks import `torch.distributed.fsdp`: each runner of the tests would need 1.4 CPU seconds.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch  # only where it is installed
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from tests.support.counters import bytes_taken
from tests.support.counts import LONG, draws
from tests.support.process_group import process_group
from tests.support.ranks import run_ranks
from tests.support.torch_names import (
    functional_all_gather,
    functional_reduce_scatter,
    reduce_scatter_single,
)

STEPS = draws(2, 4)

# Options of DistributedDataParallel, by name.
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "small buckets": {"bucket_cap_mb": 0.01},
    "gradient_as_bucket_view": {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.01},
    "static_graph": {"static_graph": True},
    "find_unused_parameters": {"find_unused_parameters": True},
    "no init_sync": {"init_sync": False},
    "no forward_sync_buffers": {"init_sync": False, "forward_sync_buffers": False},
    "batched_grad_copy": {"batched_grad_copy": True, "bucket_cap_mb": 0.01},
    "bucket_cap_mb_list": {"bucket_cap_mb_list": [0.005, 0.02]},
    "skip_all_reduce_unused_params": {
        "find_unused_parameters": True,
        "skip_all_reduce_unused_params": True,
        "bucket_cap_mb": 0.01,
    },
}


class Net(nn.Module):
    """BatchNorm buffers, and a branch that a forward pass may leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU())
        self.branch = nn.Linear(64, 64)
        self.last = nn.Linear(64, 3)

    def forward(self, x: torch.Tensor, skip: bool = False) -> torch.Tensor:
        hidden = self.first(x)
        return self.last(hidden if skip else torch.relu(self.branch(hidden)))


def _net() -> Net:
    torch.manual_seed(11)
    return Net()


def _inputs(rank: int, step: int) -> torch.Tensor:
    return torch.randn(8, 20, generator=torch.Generator().manual_seed(100 * rank + step))


def _parameters(module: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def _step(
    model: Any, optimizer: torch.optim.Optimizer, rank: int, step: int, **forward: Any
) -> None:
    model(_inputs(rank, step), **forward).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def _train(model: Any, rank: int, skip_every: int | None = None) -> torch.Tensor:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        skips = {"skip": True} if skip_every and step % skip_every == 0 else {}
        _step(model, optimizer, rank, step, **skips)
    return _parameters(model)


def _every_option(rank: int, world: int) -> Iterator[tuple[str, torch.Tensor]]:
    # The branch is unused in every n-th step; skip_all_reduce_unused_params requires n = 1.
    skips = {"find_unused_parameters": 2, "skip_all_reduce_unused_params": 1}
    known = inspect.signature(DistributedDataParallel.__init__).parameters.keys()
    for name, options in OPTIONS.items():
        if not options.keys() <= known:  # needs a later torch
            continue
        model = DistributedDataParallel(_net(), **options)
        yield name, _train(model, rank, skips.get(name))
    model = DistributedDataParallel(_net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(STEPS):
        with model.no_sync():
            model(_inputs(rank, step)).square().mean().backward()
        _step(model, optimizer, rank, step + STEPS)
    yield "no_sync", _parameters(model)
    model = DistributedDataParallel(nn.Linear(20, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with model.join():
        for step in range(STEPS + rank):
            _step(model, optimizer, rank, step)
    yield "join", _parameters(model)
    model = DistributedDataParallel(nn.Linear(20, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with model.join(divide_by_initial_world_size=False):
        for step in range(STEPS + rank):
            _step(model, optimizer, rank, step)
    yield "join of those that are left", _parameters(model)


def _hooks(rank: int, world: int) -> Iterator[tuple[str, torch.Tensor]]:
    for hook in (default_hooks.allreduce_hook, default_hooks.fp16_compress_hook):
        model = DistributedDataParallel(_net(), bucket_cap_mb=0.01)
        model.register_comm_hook(None, hook)
        yield hook.__name__, _train(model, rank)
    for kind in (dist.BuiltinCommHookType.ALLREDUCE, dist.BuiltinCommHookType.FP16_COMPRESS):
        model = DistributedDataParallel(_net(), bucket_cap_mb=0.01, find_unused_parameters=True)
        model._register_builtin_comm_hook(kind)
        yield f"built-in {kind}", _train(model, rank)
    if not dist.is_nccl_available():  # torch's own limit
        model = DistributedDataParallel(_net())
        with pytest.raises(TypeError, match="BF16"):
            model.register_comm_hook(None, default_hooks.bf16_compress_hook)


def _power_sgd(rank: int, world: int) -> torch.Tensor:
    """PowerSGD starts sums in callbacks and blocks on them, for several buckets at once."""
    deep = nn.Sequential(*(nn.Linear(32, 32) for _ in range(8)), nn.Linear(32, 3))
    model = DistributedDataParallel(deep, bucket_cap_mb=0.01)
    state = power_sgd.PowerSGDState(
        None, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=0.5
    )
    model.register_comm_hook(state, power_sgd.powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(10):
        inputs = torch.randn(8, 32, generator=torch.Generator().manual_seed(rank + 10 * step))
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return _parameters(model)


def _zero(rank: int, world: int) -> Iterator[tuple[str, torch.Tensor]]:
    from torch.distributed.optim import ZeroRedundancyOptimizer  # the import warns of TorchScript

    model = DistributedDataParallel(_net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.05, momentum=0.9)
    for step in range(STEPS):
        _step(model, optimizer, rank, step)
    yield "ZeRO", _parameters(model)


def _compiled(rank: int, world: int) -> Iterator[tuple[str, torch.Tensor]]:
    """torch.compile of a DDP model, and of a graph with functional collectives."""
    model = DistributedDataParallel(_net())
    compiled = _train(torch.compile(model, backend="aot_eager"), rank)
    _assert_close("compiled", compiled, _train(DistributedDataParallel(_net()), rank))
    yield "compiled", compiled

    name = dist.distributed_c10d._get_default_group().group_name

    def gathered(tensor: torch.Tensor) -> torch.Tensor:
        total = functional.all_reduce(tensor * 2, "sum", name)
        parts = functional_all_gather(total, 0, name)
        return functional_reduce_scatter(parts, "avg", 0, name)

    tensor = _inputs(rank, 0)
    expected = gathered(tensor) + 0
    graph = torch.compile(gathered, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(graph(tensor), expected)
    yield "functional", expected


def _sharded(rank: int, world: int) -> Iterator[tuple[str, torch.Tensor]]:
    from torch.distributed.fsdp import fully_shard

    meshes = {"FSDP2": init_device_mesh("cpu", (world,))}
    names = ("replica", "shard")
    meshes["HSDP"] = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=names)
    for name, mesh in meshes.items():
        model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))
        torch.manual_seed(3)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.1)
        for layer in (model[0], model[2], model):
            fully_shard(layer, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(STEPS):
            _step(model, optimizer, rank, step)
        yield name, torch.cat([p.full_tensor().detach().flatten() for p in model.parameters()])


def _sparse(rank: int, world: int) -> Iterator[tuple[str, torch.Tensor]]:
    torch.manual_seed(2)
    model = DistributedDataParallel(nn.EmbeddingBag(50, 4, sparse=True, mode="sum"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        indices = torch.randint(50, (6, 3), generator=torch.Generator().manual_seed(step + rank))
        model(indices).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    yield "sparse", _parameters(model)


def _programs(rank: int, world: int) -> dict[str, torch.Tensor]:
    programs = [_every_option, _hooks, _zero, _sharded, _sparse]
    return {name: found for program in programs for name, found in program(rank, world)}


@contextlib.contextmanager
def _gloo(rank: int, world: int, store: str) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _matrix(rank: int, world: int, addresses: list[str], job: str, folder: str) -> dict[str, str]:
    with process_group(rank, world, addresses, f"{folder}/ours", job=job) as group:
        _assert_gradients_go_through_reducers(group, rank)
        found = _programs(rank, world)
        compressed = _power_sgd(rank, world)
        _assert_nothing_went_over_gloo()
        _checkpoint(rank, world, folder)
    with _gloo(rank, world, f"{folder}/gloo"):
        part = torch.zeros(1)
        reduce_scatter_single(part, torch.ones(world), op=dist.ReduceOp.AVG)
        # The gloo of torch 2.8 sums here instead.
        wrong = () if part.item() == 1 else ("FSDP2", "HSDP")
        over_gloo = _programs(rank, world)
    for name in over_gloo.keys() - set(wrong):
        _assert_close(name, found[name], over_gloo[name])
    found["PowerSGD"] = compressed
    return {name: _digest(value) for name, value in found.items()}


def _assert_close(name: str, ours: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(
        ours, expected, rtol=1e-3, atol=1e-5, msg=lambda message: f"{name}: {message}"
    )


def _assert_gradients_go_through_reducers(group: Any, rank: int) -> None:
    model = DistributedDataParallel(nn.Linear(20, 1000))
    before = bytes_taken(group.reducer_group)
    _train(model, rank)
    taken = bytes_taken(group.reducer_group) - before
    gradients = STEPS * 4 * sum(p.numel() for p in model.parameters())
    assert group.size() * gradients <= taken < 1.01 * group.size() * gradients


def _assert_nothing_went_over_gloo() -> None:
    """Assert that neither the default group nor a mesh's groups had to make an inner group."""
    groups: Any = list(dist.distributed_c10d._world.pg_map)
    assert groups and not [group.group_name for group in groups if group._inner._made]


def _checkpoint(rank: int, world: int, folder: str) -> None:
    """Save and load a sharded module, which gathers, scatters and broadcasts objects."""
    from torch.distributed import checkpoint
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (world,))
    model = fully_shard(nn.Linear(20, 8), mesh=mesh)
    expected = [p.full_tensor().clone() for p in model.parameters()]
    checkpoint.save({"model": model.state_dict()}, checkpoint_id=f"{folder}/saved")
    saving = checkpoint.async_save({"model": model.state_dict()}, checkpoint_id=f"{folder}/later")
    saving.result(60)
    for name in ("saved", "later"):
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        state = {"model": model.state_dict()}
        checkpoint.load(state, checkpoint_id=f"{folder}/{name}")
        model.load_state_dict(state["model"])
        for parameter, value in zip(model.parameters(), expected, strict=True):
            assert torch.equal(parameter.full_tensor(), value)


def _digest(value: torch.Tensor) -> str:
    return hashlib.sha256(value.numpy().tobytes()).hexdigest()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("world", [2, 4] if LONG else [2])
def test_what_trains_over_gloo_trains_over_the_reducers(
    world: int, addresses: list[str], job: str, tmp_path: Path
) -> None:
    ranks = run_ranks(world, _matrix, addresses, job, str(tmp_path), timeout=350)
    assert all(digests == ranks[0] for digests in ranks)
    same = ("default", "small buckets", "gradient_as_bucket_view", "static_graph", "no init_sync")
    assert len({ranks[0][name] for name in same}) == 1


def _compile(rank: int, world: int, addresses: list[str], job: str, folder: str) -> dict[str, str]:
    with process_group(rank, world, addresses, f"{folder}/ours", job=job):
        return {name: _digest(value) for name, value in _compiled(rank, world)}


@pytest.mark.long  # 20 CPU seconds, nearly all in torch.compile
def test_compiled_models_and_graphs_train_alike(
    addresses: list[str], job: str, tmp_path: Path
) -> None:
    first, second = run_ranks(2, _compile, addresses, job, str(tmp_path))
    assert first == second
