"""The hierarchy on two hosts of two ranks, both on this machine and so without NICs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch  # only where it is installed
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import reducer_client.torch as reducer_torch
from reducer_client import (
    Group,
    MismatchError,
    NumericError,
    PeerLostError,
    ReducerError,
    RoundTimeoutError,
)
from reducer_client.config import keep_gloo_on_loopback
from reducer_client.debug import join_logger
from reducer_client.torch.hierarchy.all_reduce import SHARD_BYTES
from reducer_client.torch.hierarchy.hierarchy import LEAST_BYTES, Hierarchy, open_hierarchy
from tests.support.process_group import process_group
from tests.support.ranks import Tell, join, run_ranks, start_ranks, values
from tests.support.reducers import Reducers

WORLD, LOCAL = 4, 2
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# Elements. COUNT divides into unequal parts for every dtype. PIECES of float32 are one piece and a
# second one so small that rank 1 of a host has no part of it.
COUNT = LEAST_BYTES // 2 + 1
PIECES = SHARD_BYTES * LOCAL // 4 + 3


@contextmanager
def _hosts(
    rank: int, addresses: list[str], job: str, store: str
) -> Iterator[tuple[Group, partial[Hierarchy]]]:
    """The group of all ranks, and a function that opens a hierarchy with a name."""
    torch.set_num_threads(1)
    keep_gloo_on_loopback()
    os.environ |= {"LOCAL_WORLD_SIZE": str(LOCAL), "LOCAL_RANK": str(rank % LOCAL)}
    shared = dist.FileStore(store, WORLD)
    options: dict[str, Any] = {"on_nonfinite": "error"}

    def connect(name: str, host: int, hosts: int) -> Group:
        return join(host, hosts, addresses, job, run_id=f"run#{name}", **options)

    with join(rank, WORLD, addresses, job, run_id="run", **options) as group:
        yield group, partial(_open, group, shared, connect)


def _open(group: Group, store: Any, connect: Any, name: str, **options: Any) -> Hierarchy:
    options = {"wanted": True, "timeout": 60, **options}
    made = open_hierarchy(group, store, connect, name=name, **options)
    assert made is not None
    return made


def _contribution(rank: int, dtype: torch.dtype, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count + rank)
    return torch.randn(count, generator=generator, dtype=torch.float64).to(dtype)


def _two_levels(dtype: torch.dtype, count: int, op: str) -> torch.Tensor:
    """The expected result by torch's arithmetic: each level in the wider type, rounded once."""
    wide = {torch.bfloat16: torch.float32, torch.float16: torch.float64}.get(dtype, dtype)

    def level(parts: list[torch.Tensor]) -> torch.Tensor:
        first, second = (part.to(wide) for part in parts)
        if op == "max":
            return torch.maximum(first, second).to(dtype)
        return ((first + second) / (2 if op == "mean" else 1)).to(dtype)

    parts = [_contribution(rank, dtype, count) for rank in range(WORLD)]
    return level([level(parts[:2]), level(parts[2:])])


def _numpy(tensor: torch.Tensor) -> Any:
    return (tensor.view(torch.uint16) if tensor.dtype is torch.bfloat16 else tensor).numpy()


def _submit(hierarchy: Hierarchy, tensor: torch.Tensor, op: Any, key: str, **options: Any) -> Any:
    array = _numpy(tensor)
    name = "bfloat16" if tensor.dtype is torch.bfloat16 else None
    return hierarchy.all_reduce(array, op, key, array, dtype=name, **options)


def _sums(rank: int, hierarchy: Hierarchy) -> None:
    """With all calls in flight at once, the bits are a two-level sum's, for pieces of any size."""
    done: list[str] = []
    under_way = []
    cases = [(dtype, "mean", COUNT) for dtype in DTYPES]
    cases += [(torch.bfloat16, op, COUNT) for op in ("sum", "max")]
    for dtype, op, count in [*cases, (torch.float32, "mean", PIECES)]:
        tensor = _contribution(rank, dtype, count)
        key = f"{op}/{dtype}/{count}"
        work = _submit(hierarchy, tensor, op, key, on_done=lambda work: done.append(work.key))
        under_way.append((work, tensor, dtype, count, op))
    for work, tensor, dtype, count, op in under_way:
        work.wait(60)
        expected = _two_levels(dtype, count, op)
        assert tensor.view(torch.uint8).equal(expected.view(torch.uint8)), work
    hierarchy.all_reduce(np.ones(1 << 20, np.int32), "sum").wait(60)  # not a float, so flat
    assert done == [work.key for work, *_ in under_way]


def _small(rank: int, group: Group, hierarchy: Hierarchy) -> None:
    """Arrays below the least size are summed flat, by a call of the group itself."""
    tensor = torch.full((LEAST_BYTES // 4 - 1,), 1.0 + rank)
    work = _submit(hierarchy, tensor, "mean", "small")
    assert type(work.wait(60)) is np.ndarray
    assert type(work).__name__ == "Work"
    assert tensor.unique().tolist() == [2.5]


def _narrow_on_the_wire(rank: int, hierarchy: Hierarchy) -> None:
    exact = sum(_contribution(r, torch.float32, COUNT).double() for r in range(WORLD))
    for wire in ("bfloat16", "int8"):
        tensor = _contribution(rank, torch.float32, COUNT)
        _submit(hierarchy, tensor, "sum", wire, wire_dtype=wire).wait(60)
        assert not tensor.double().equal(exact)
        torch.testing.assert_close(tensor.double(), exact, rtol=0.02, atol=0.1)
    residual = np.zeros(COUNT, np.float32)
    tensor = _contribution(rank, torch.float32, COUNT)
    _submit(hierarchy, tensor, "mean", "kept", wire_dtype="e3m0", residual=residual).wait(60)
    sent = np.flatnonzero(residual)  # this rank sends half of the elements of its host
    assert 0.3 * COUNT < len(sent) < 0.55 * COUNT
    with pytest.raises(TypeError, match="expected op sum or mean"):
        _submit(hierarchy, tensor, "max", "wrong", wire_dtype="int8")


def _nonfinite(rank: int, hierarchy: Hierarchy) -> str:
    """NaN of one rank, in one shard, raises on every rank; the hierarchy still works."""
    tensor = torch.ones(COUNT)
    if rank == 3:
        tensor[-1] = float("nan")
    work = _submit(hierarchy, tensor, "sum", "bad")
    with pytest.raises(NumericError) as caught:
        work.wait(60)
    assert caught.value.rank == 3
    assert work.exception() is caught.value
    fine = torch.ones(COUNT)
    _submit(hierarchy, fine, "sum", "bad").wait(60)
    assert fine.unique().tolist() == [4.0]
    return str(caught.value)


def _mismatch(rank: int, hierarchy: Hierarchy) -> str:
    tensor = torch.ones(COUNT + (rank == 1))
    work = _submit(hierarchy, tensor, "sum", "bad")
    with pytest.raises(MismatchError) as caught:
        work.wait(60)
    with pytest.raises(MismatchError):  # the hierarchy has ended
        _submit(hierarchy, tensor, "sum", "later").wait(60)
    return str(caught.value)


def _absent(rank: int, hierarchy: Hierarchy) -> str:
    if rank == 2:
        return ""
    tensor = torch.ones(COUNT)
    begun = time.monotonic()
    with pytest.raises(RoundTimeoutError) as caught:
        _submit(hierarchy, tensor, "sum", "late", timeout=1.0).wait(60)
    assert time.monotonic() - begun < 30
    assert caught.value.rank == 2
    return str(caught.value)


def _unqueued(rank: int, hierarchy: Hierarchy) -> None:
    """Rank 0 lacks memory to pass a call from one thread to the next."""
    if rank == 0:
        hierarchy._collecting.put = _no_memory  # type: ignore[method-assign]
    begun = time.monotonic()
    # The other host may have the sum: rank 0 has contributed.
    on_its_host = rank < LOCAL
    with pytest.raises(ReducerError) if on_its_host else suppress(ReducerError):
        _submit(hierarchy, torch.ones(COUNT), "sum", "unqueued", timeout=20.0).wait()
    assert time.monotonic() - begun < 15


def _no_memory(step: object) -> None:
    raise MemoryError("injected")


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(500, 600), nn.ReLU(), nn.Linear(600, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def _train(rank: int, group: Group | Hierarchy) -> torch.Tensor:
    torch.manual_seed(3)
    model = DistributedDataParallel(_Net(), bucket_cap_mb=1.1)
    reducer_torch.attach(model, group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 500, generator=generator)).square().mean().backward()
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def _ddp(rank: int, group: Group, hierarchy: Hierarchy, store: str) -> str:
    """The DDP hook accepts a hierarchy instead of a group."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    try:
        ours, flat = _train(rank, hierarchy), _train(rank, group)
    finally:
        dist.destroy_process_group()
    torch.testing.assert_close(ours, flat, rtol=1e-4, atol=1e-6)
    return ours.numpy().tobytes().hex()


def _refused(rank: int, group: Group, make: partial[Hierarchy]) -> str:
    """A rank that demands an impossible hierarchy stops all ranks; otherwise ranks sum flat."""
    os.environ["LOCAL_WORLD_SIZE"] = str(WORLD)
    heard = BufferingHandler(10)
    join_logger.addHandler(heard)
    join_logger.setLevel("INFO")
    assert open_hierarchy(group, None, None, name="none") is None  # type: ignore[arg-type]
    join_logger.removeHandler(heard)
    why = "no hierarchy: 4 ranks are not several hosts of 4 (LOCAL_WORLD_SIZE)"
    assert [record.getMessage() for record in heard.buffer] == ([why] if rank == 0 else [])
    with pytest.raises(ValueError, match="hierarchy=True on rank 2, but 4 ranks are not") as caught:
        make("none", wanted=True if rank == 2 else None)
    os.environ["LOCAL_WORLD_SIZE"] = str(LOCAL)
    return str(caught.value)


def _through_torch(rank: int, device: str) -> None:
    """The default process group uses the hierarchy on its own."""
    expected = _two_levels(torch.bfloat16, COUNT, "mean")
    tensors = [_contribution(rank, torch.bfloat16, COUNT).to(device) for _ in range(3)]
    works = [dist.all_reduce(t, dist.ReduceOp.AVG, async_op=True) for t in tensors]
    for work, tensor in zip(works, tensors, strict=True):
        work.wait()
        assert tensor.cpu().view(torch.int16).equal(expected.view(torch.int16))


def _lose_a_reducer(rank: int, hierarchy: Hierarchy, tell: Tell) -> None:
    """A reducer dies meanwhile: no error, and the same bits."""
    tensors = [_contribution(rank, torch.float32, PIECES) for _ in range(6)]
    works = [_submit(hierarchy, tensor, "sum", "struck") for tensor in tensors[:4]]
    tell("summing")
    tell.hear()
    works += [_submit(hierarchy, tensor, "sum", "struck") for tensor in tensors[4:]]
    expected = _two_levels(torch.float32, PIECES, "sum")
    for work, tensor in zip(works, tensors, strict=True):
        work.wait(60)
        assert tensor.equal(expected)


def _lose_a_rank(rank: int, hierarchy: Hierarchy, tell: Tell) -> ReducerError:
    tell("ready")
    tell.hear()
    tensor = torch.ones(COUNT)
    work = _submit(hierarchy, tensor, "sum", "after")
    begun = time.monotonic()
    with pytest.raises(PeerLostError) as caught:
        work.wait(60)
    assert time.monotonic() - begun < 20
    return caught.value


def _everything(
    rank: int, world: int, addresses: list[str], job: str, store: str, tell: Tell
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with _hosts(rank, addresses, job, store) as (group, make):
        found["refused"] = _refused(rank, group, make)
        hierarchy = make("sums")
        _sums(rank, hierarchy)
        _small(rank, group, hierarchy)
        _narrow_on_the_wire(rank, hierarchy)
        found["nonfinite"] = _nonfinite(rank, hierarchy)
        found["ddp"] = _ddp(rank, group, hierarchy, f"{store}-ddp")
        hierarchy.close()
        options = {"job": f"{job}-torch", "addresses": addresses, "store": f"{store}-torch"}
        with process_group(rank, world, **options) as torch_group:
            assert torch_group.layout == hierarchy.layout
            _through_torch(rank, "cpu")
        for name, step in (("mismatch", _mismatch), ("absent", _absent)):
            hierarchy = make(name)
            found[name] = step(rank, hierarchy)
            group.barrier(60)
            hierarchy.close()
        hierarchy = make("unqueued")
        _unqueued(rank, hierarchy)
        group.barrier(60)
        hierarchy.close()
        hierarchy = make("lost")
        _lose_a_reducer(rank, hierarchy, tell)
        found["lost"] = _lose_a_rank(rank, hierarchy, tell)
        hierarchy.close()
        return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_mean_of_two_a_host_is_that_of_dividing_once(dtype: torch.dtype) -> None:
    """A property of `_two_levels`, with which the ranks below compare their results."""
    first, second = (
        (_contribution(rank, dtype, COUNT).float() + _contribution(rank + 1, dtype, COUNT).float())
        for rank in (0, 2)
    )
    once = ((first.to(dtype).float() + second.to(dtype).float()) / WORLD).to(dtype)
    assert once.equal(_two_levels(dtype, COUNT, "mean"))


@pytest.mark.timeout(240)
def test_two_hosts_of_two_ranks(job: str, tmp_path: Path) -> None:
    arguments = (job, str(tmp_path / "store"))
    with (
        Reducers(2) as reducers,
        start_ranks(WORLD, _everything, reducers.addresses, *arguments, talk=True) as ranks,
    ):
        assert ranks.receive(0, 120) == "summing"
        reducers.kill(1)
        for rank in range(WORLD):
            assert rank == 0 or ranks.receive(rank, 120) == "summing"
            ranks.send(rank)
        for rank in range(WORLD):
            assert ranks.receive(rank, 120) == "ready"
        ranks.kill(1)
        for rank in (0, 2, 3):
            ranks.send(rank)
        outcomes = ranks.collect(60)
    found = values([outcome for outcome in outcomes if outcome.rank != 1])
    for name in ("refused", "nonfinite", "ddp", "mismatch"):
        assert len({ours[name] for ours in found}) == 1, [ours[name] for ours in found]
    assert "rank 0 sum of float32 x 524289, key 'bad'; rank 1 sum of" in found[0]["mismatch"]
    for ours in found:
        assert ours["lost"].rank == 1, ours["lost"]


def test_ranks_of_a_host_are_folded_in_their_order(
    addresses: list[str], job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three ranks a host, as threads: two would show no order, and halves are exact."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    store = str(tmp_path / "store")
    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(lambda rank: _mean_of_three(rank, addresses, job, store), range(6)))
    parts = [_contribution(rank, torch.float32, COUNT) for rank in range(6)]
    hosts = [sum(parts[first + 1 : first + 3], parts[first]) / 3 for first in (0, 3)]
    for result in results:
        assert result.equal((hosts[0] + hosts[1]) / 2)
    # Five sums and two divisions of numbers below 8: each has a rounding error of at most 2**-22.
    exact = torch.stack([part.double() for part in parts]).mean(0)
    assert (results[0].double() - exact).abs().max() < 7 * 2**-22


def _mean_of_three(rank: int, addresses: list[str], job: str, store: str) -> torch.Tensor:
    def connect(name: str, host: int, hosts: int) -> Group:
        return join(host, hosts, addresses, job, run_id=f"run#{name}")

    with join(rank, 6, addresses, job, run_id="run") as group:
        hierarchy = _open(group, dist.FileStore(store, 6), connect, "threads")
        tensor = _contribution(rank, torch.float32, COUNT)
        _submit(hierarchy, tensor, "mean", "mean").wait(60)
        hierarchy.close()
    return tensor


def _on_cuda(rank: int, world: int, addresses: list[str], job: str, store: str) -> bool:
    os.environ |= {"LOCAL_WORLD_SIZE": str(LOCAL), "LOCAL_RANK": str(rank % LOCAL)}
    torch.cuda.set_device(rank % torch.cuda.device_count())
    with process_group(rank, world, addresses, store, job=job) as group:
        assert group.layout.cuda
        _through_torch(rank, "cuda")
    return True


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_tensors_on_cuda(addresses: list[str], job: str, tmp_path: Path) -> None:
    assert all(run_ranks(WORLD, _on_cuda, addresses, job, str(tmp_path / "store"), fresh=True))
