"""``DiLoCo`` between sites of several ranks: DDP or FSDP2 within a site, over gloo."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch  # only where it is installed
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from reducer_client.config import keep_gloo_on_loopback
from reducer_client.torch import DiLoCo
from tests.support.local_steps import backward, fingerprint, net
from tests.support.ranks import join, run_ranks

WORLD, LOCAL, STEPS = 4, 2, 10
OPTIONS: dict[str, Any] = {"every": 4, "fragments": 2, "delay": 1, "keep_local": 0.5}


def _start(rank: int, world: int, store: str) -> Any:
    torch.set_num_threads(1)
    keep_gloo_on_loopback()
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world // LOCAL, LOCAL), mesh_dim_names=("sites", "local"))
    return mesh["local"]


def _train(model: nn.Module, opt: DiLoCo, rank: int, steps: range) -> list[str]:
    prints = []
    for number in steps:
        backward(model, rank, number)
        opt.step()
        prints.append(fingerprint(model))
    return prints


def _ddp(rank: int, world: int, addresses: list[str], job: str, store: str) -> Any:
    """The first rank of each site exchanges. A rank resumes from the state of the first one."""
    mesh = _start(rank, world, store)
    site, place = divmod(rank, LOCAL)
    group = join(site, world // LOCAL, addresses, job) if place == 0 else None
    try:
        inner = net(seed=site)
        model = DistributedDataParallel(inner, process_group=mesh.get_group())
        opt = DiLoCo(model, torch.optim.SGD(model.parameters(), 0.1), group, **OPTIONS)
        prints = [fingerprint(model), *_train(model, opt, rank, range(STEPS))]
        state: list[Any] = copy.deepcopy([opt.state_dict(), inner.state_dict()])
        dist.broadcast_object_list(state, site * LOCAL, group=mesh.get_group())
        uninterrupted = _train(model, opt, rank, range(STEPS, STEPS + 4))
        opt.load_state_dict(state[0])
        inner.load_state_dict(state[1])
        assert _train(model, opt, rank, range(STEPS, STEPS + 4)) == uninterrupted
        opt.finish()
        with pytest.raises(ValueError, match=r"expected a Group on rank 0, which exchanges for"):
            DiLoCo(model, opt.optimizer, None if group else object(), every=2)  # type: ignore[arg-type]
        return prints, fingerprint(model)
    finally:
        if group is not None:
            group.close()
        dist.destroy_process_group()


def test_one_rank_of_a_ddp_module_exchanges_for_its_host(
    addresses: list[str], job: str, tmp_path: Path
) -> None:
    ranks = run_ranks(WORLD, _ddp, addresses, job, str(tmp_path / "store"))
    (a, last), (b, _), (c, _), (d, _) = ranks
    assert a == b and c == d  # within a site always
    assert a[0] == c[0] and a[1] != c[1]
    assert {end for _, end in ranks} == {last}


def _fsdp(rank: int, world: int, addresses: list[str], job: str, store: str) -> Any:
    """Each rank exchanges its shard with the ranks that have the same shard."""
    from torch.distributed.fsdp import fully_shard

    mesh = _start(rank, world, store)
    site, place = divmod(rank, LOCAL)
    with join(site, world // LOCAL, addresses, f"{job}-{place}") as group:
        model = net(seed=3)
        fully_shard(model[2], mesh=mesh)
        fully_shard(model, mesh=mesh)
        opt = DiLoCo(model, torch.optim.SGD(model.parameters(), 0.1), group, **OPTIONS)
        for number in range(STEPS):
            backward(model, site, number)
            opt.step()
        opt.finish()
        whole = [p.full_tensor().detach() for p in model.parameters()]  # type: ignore[attr-defined]
    dist.destroy_process_group()
    return [p.numpy() for p in whole]


def _plain(rank: int, world: int, addresses: list[str], job: str) -> Any:
    with join(rank, world, addresses, job) as group:
        model = net(seed=3)
        opt = DiLoCo(model, torch.optim.SGD(model.parameters(), 0.1), group, **OPTIONS)
        _train(model, opt, rank, range(STEPS))
        opt.finish()
        return [p.detach().numpy() for p in model.parameters()]


def test_sharded_sites_train_as_ranks_with_whole_models(
    addresses: list[str], job: str, tmp_path: Path
) -> None:
    sites = run_ranks(WORLD, _fsdp, addresses, job, str(tmp_path / "store"))
    ranks = run_ranks(WORLD // LOCAL, _plain, addresses, f"{job}-plain")
    for whole in sites:
        for ours, plain in zip(whole, ranks[0], strict=True):
            torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-6)
