"""FSDP2 on two hosts of two ranks: gloo shards within a host, the reducers sum over hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch  # only where it is installed
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from reducer_client.config import keep_gloo_on_loopback
from reducer_client.torch import Options
from tests.support.ranks import run_ranks

WORLD, LOCAL, STEPS = 4, 2, 5


def _model(mesh: DeviceMesh) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(7)
    net = nn.Sequential(
        nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 3)
    )
    fully_shard(net[2], mesh=mesh)
    return fully_shard(net, mesh=mesh)


def _train(model: nn.Module, rank: int) -> torch.Tensor:
    """Train; returns this rank's shard of all parameters."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(8, 20, generator=generator)).square().mean().backward()
        optimizer.step()
    return torch.cat([p.to_local().detach().reshape(-1) for p in model.parameters()])  # type: ignore[attr-defined]


def _compare(rank: int, world: int, addresses: list[str], job: str, store: str) -> bytes:
    from reducer_client.torch.fsdp import attach_fsdp

    torch.set_num_threads(1)
    keep_gloo_on_loopback()
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    try:
        mesh = init_device_mesh("cpu", (world // LOCAL, LOCAL), mesh_dim_names=("hosts", "local"))
        native = _train(_model(mesh), rank)
        model = _model(mesh["local"])
        options = Options(addresses=addresses, job=job)
        state = attach_fsdp(model, mesh["hosts"], options=options, timeout=60)
        ours = _train(model, rank)
        assert state.group is not None
        assert (state.group.rank, state.group.world_size) == (rank // LOCAL, world // LOCAL)
        assert state.bytes_reduced >= STEPS * ours.numel() * 4  # FSDP pads
        state.group.close()
        torch.testing.assert_close(ours, native, rtol=1e-4, atol=1e-6)
        return ours.numpy().tobytes()
    finally:
        dist.destroy_process_group()


def test_it_trains_as_native_hybrid_sharding_does(
    addresses: list[str], job: str, tmp_path: Path
) -> None:
    shards = run_ranks(WORLD, _compare, addresses, job, str(tmp_path / "store"), timeout=150)
    assert shards[:LOCAL] == shards[LOCAL:]
    assert shards[0] != shards[1]


def test_attach_fsdp_wants_a_sharded_module() -> None:
    from reducer_client.torch.fsdp import attach_fsdp

    with pytest.raises(TypeError, match="expected a module after fully_shard, got Linear"):
        attach_fsdp(nn.Linear(1, 1), None)  # type: ignore[arg-type]
