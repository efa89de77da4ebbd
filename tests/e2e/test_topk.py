"""Top-k with error feedback over real reducers; four processes run all cases in one start."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import nullcontext
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
from reducer_client import Group, PeerLostError
from reducer_client.torch import TopKState
from reducer_client.torch.hook.sparsification import largest
from tests.support.ranks import Tell, join, start_ranks, values
from tests.support.reducers import Reducers
from tests.support.torch_ranks import digest, gloo_and_group

WORLD = 4
RATIO = 0.05
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "small buckets": {"bucket_cap_mb": 0.002},
    "gradient_as_bucket_view": {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.002},
    "static_graph": {"static_graph": True},
    "find_unused_parameters": {"find_unused_parameters": True},
    "no_sync": {},
}


class Net(nn.Module):
    """A net with a branch that one rank's forward pass may leave out."""

    def __init__(self, dtypes: tuple[torch.dtype, ...] = (torch.float32,) * 3) -> None:
        super().__init__()
        self.first = nn.Linear(20, 30, dtype=dtypes[0])
        self.branch = nn.Linear(30, 30, dtype=dtypes[1])
        self.last = nn.Linear(30, 3, dtype=dtypes[2])

    def forward(self, x: torch.Tensor, skip: bool = False) -> torch.Tensor:
        hidden = torch.tanh(self.first(x.to(self.first.weight.dtype)))
        if not skip:
            hidden = torch.tanh(self.branch(hidden.to(self.branch.weight.dtype)))
        output: torch.Tensor = self.last(hidden.to(self.last.weight.dtype))
        return output.square().sum()


def _inputs(rank: int, step: int) -> torch.Tensor:
    return torch.randn(8, 20, generator=torch.Generator().manual_seed(100 * step + rank))


def _make(net: nn.Module, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(net, **options)


def _net(*dtypes: torch.dtype) -> Net:
    torch.manual_seed(3)
    return Net(dtypes) if dtypes else Net()


def _nothing_is_lost(
    group: Group,
    net: Net,
    tolerance: float,
    *,
    skip: bool = False,
    accumulate: bool = False,
    **options: Any,
) -> str:
    """Received plus kept gradients equal the ranks' own gradients, for each parameter."""
    model = _make(net, **options)
    state = reducer_torch.attach_topk(model, group, ratio=RATIO)
    put_in = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    got = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    for step in range(8):
        arguments = (_inputs(group.rank, step), skip and group.rank == 1)
        with model.no_sync() if accumulate and step % 2 == 0 else nullcontext():
            model(*arguments).backward()
        mine = torch.autograd.grad(net(*arguments), list(net.parameters()), allow_unused=True)
        for (name, p), gradient in zip(net.named_parameters(), mine, strict=True):
            put_in[name] += 0 if gradient is None else gradient
            if not accumulate or step % 2:
                assert p.grad is not None
                got[name] += p.grad
                p.grad = None
    kept = state.state_dict()["residuals"]
    assert set(kept) == set(put_in)
    entries = sum(p.numel() for p in net.parameters())
    assert sum(int(k.count_nonzero()) for k in kept.values()) > entries / 4  # most entries are kept
    for name, total in put_in.items():
        sent = total.double() - kept[name].view_as(total)
        dist.all_reduce(sent)
        torch.testing.assert_close(
            sent, WORLD * got[name].double(), rtol=tolerance, atol=tolerance * 100
        )
    return digest(nn.ParameterList(got.values()))


class Vector(nn.Module):
    """A module whose gradient is its input."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight * x).sum()


def _gradient(model: DistributedDataParallel, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    model.zero_grad()
    model(torch.from_numpy(x)).backward()
    weight: torch.Tensor = model.module.weight  # type: ignore[assignment]
    assert weight.grad is not None
    return weight.grad.numpy().copy()


def _expected(
    kept: np.ndarray[Any, Any], gradients: np.ndarray[Any, Any], count: int, dtype: type
) -> np.ndarray[Any, Any]:
    """The mean of the ranks' largest entries; updates ``kept``, which has one row a rank."""
    mean = np.zeros(gradients.shape[1], np.float32)
    for row, gradient in zip(kept, gradients, strict=True):
        row += gradient
        chosen = np.argsort(-np.abs(row))[:count]
        sent = np.clip(row[chosen], np.finfo(dtype).min, np.finfo(dtype).max).astype(dtype)
        row[chosen] -= sent.astype(np.float32)
        mean[chosen] += sent.astype(np.float32)
    return mean / np.float32(WORLD)


def _bit_for_bit(
    group: Group, value_dtype: Any, size: int, ratio: float = 0.01, scale: float = 1.0
) -> None:
    model = _make(Vector(size))
    state = reducer_torch.attach_topk(model, group, ratio=ratio, value_dtype=value_dtype)
    kept = np.zeros((WORLD, size), np.float32)
    for step in range(5):
        random = np.random.default_rng(step)
        gradients = (random.normal(size=(WORLD, size)) * scale).astype(np.float32)
        got = _gradient(model, gradients[group.rank])
        expected = _expected(kept, gradients, round(size * ratio), np.dtype(value_dtype).type)
        assert got.tobytes() == expected.tobytes(), (value_dtype, size, step)
        mine = state.state_dict()["residuals"]["weight"].numpy()
        assert mine.tobytes() == kept[group.rank].tobytes(), (value_dtype, size, step)


def _bad_gradients_reach_all(group: Group) -> None:
    model = _make(Vector(1000))
    state = reducer_torch.attach_topk(model, group)
    x = np.random.default_rng(group.rank).normal(size=1000).astype(np.float32)
    _gradient(model, x)
    before = state.state_dict()["residuals"]["weight"].clone()
    for bad in (np.nan, np.inf, -np.inf):
        worse = x.copy()
        worse[7 if group.rank == 2 else slice(0)] = bad
        got = _gradient(model, worse)
        assert not np.isfinite(got[7]) and np.isfinite(np.delete(got, 7)).all(), bad
        assert torch.equal(state.state_dict()["residuals"]["weight"], before), bad
    everything = _gradient(model, np.full(1000, np.nan if group.rank == 2 else 1, np.float32))
    assert np.isnan(everything).sum() == 10
    assert np.isfinite(_gradient(model, x)).all()


def _one_entry_always_travels(group: Group) -> None:
    model = _make(Vector(1))
    reducer_torch.attach_topk(model, group, ratio=1e-6)
    assert _gradient(model, np.array([group.rank], np.float32)) == [1.5]


def _sparse_gradients_are_refused(group: Group) -> None:
    for attach in (reducer_torch.attach, reducer_torch.attach_topk):
        model = _make(nn.Embedding(10, 3, sparse=True))
        attach(model, group)
        with pytest.raises(TypeError, match=r"sparse gradients of shape \(10, 3\): expected dense"):
            model(torch.tensor([1])).sum().backward()


def _bytes_are_counted(group: Group) -> dict[str, tuple[int, int]]:
    """(bytes sent and received, bytes by the state's counter) for whole gradients and for top-k."""
    bytes_moved = {}
    attaches: dict[str, Callable[..., Any]] = {
        "whole": reducer_torch.attach,
        "top 1 %": reducer_torch.attach_topk,
    }
    for name, attach in attaches.items():
        model = _make(Vector(300_000))
        state = attach(model, group)
        before = _moved(group)
        for _ in range(3):
            _gradient(model, np.arange(300_000, dtype=np.float32))
        bytes_moved[name] = (_moved(group) - before, state.bytes_on_wire)
        assert state.bytes_reduced == 3 * 1_200_000
    return bytes_moved


def _moved(group: Group) -> int:
    stats = group.stats()
    return int(stats["bytes_sent"] + stats["bytes_received"])


def _steps(model: DistributedDataParallel, rank: int, steps: range) -> Iterator[int]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for step in steps:
        optimizer.zero_grad()
        model(_inputs(rank, step)).backward()
        optimizer.step()
        yield step


def _train(model: DistributedDataParallel, rank: int, steps: range) -> str:
    assert list(_steps(model, rank, steps)) == list(steps)
    return digest(model)


def _resumed(group: Group) -> None:
    """Training resumes exactly from a checkpoint of model and state, not from the model alone."""
    model = _make(_net())
    state = reducer_torch.attach_topk(model, group, ratio=RATIO, start_iter=2)
    _train(model, group.rank, range(5))
    file = io.BytesIO()
    torch.save({"model": model.module.state_dict(), "top-k": state.state_dict()}, file)
    uninterrupted = _train(model, group.rank, range(5, 9))
    file.seek(0)
    saved = torch.load(file)  # with torch's default, weights_only=True
    assert saved["top-k"]["iteration"] == 5
    empty = {"iteration": 5, "residuals": {}}
    for state_dict, is_same in ((saved["top-k"], True), (empty, False)):
        again = _make(_net())
        again.module.load_state_dict(saved["model"])
        new = reducer_torch.attach_topk(again, group, ratio=RATIO, start_iter=2)
        new.load_state_dict(state_dict)
        assert (_train(again, group.rank, range(5, 9)) == uninterrupted) is is_same
    with pytest.raises(ValueError, match=r"residuals of 'last.bias': 3 elements, expected no such"):
        TopKState(_make(Vector(5)), group).load_state_dict(saved["top-k"])


def _whole_at_first(group: Group, **options: Any) -> None:
    """`start_iter` counts iterations, not buckets."""
    whole, topk = _make(_net(), **options), _make(_net(), **options)
    reducer_torch.attach(whole, group)
    reducer_torch.attach_topk(topk, group, ratio=RATIO, start_iter=2)
    ends = [[digest(model) for _ in _steps(model, group.rank, range(4))] for model in (whole, topk)]
    same = [mine == theirs for mine, theirs in zip(*ends, strict=True)]
    assert same == [True, True, False, False]


def _every_case(
    rank: int, world: int, addresses: list[str], fragile: list[str], store: str, tell: Tell
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with gloo_and_group(rank, world, addresses, "topk", store) as group:
        for name, options in OPTIONS.items():
            cases = {"skip": "unused" in name, "accumulate": name == "no_sync"}
            found[name] = _nothing_is_lost(group, _net(), 1e-5, **cases, **options)
        wide = _net(torch.float64, torch.float64, torch.float32)
        found["float64"] = _nothing_is_lost(group, wide, 1e-5)
        narrow = _net(torch.bfloat16, torch.float16, torch.float32)
        found["16 bits"] = _nothing_is_lost(group, narrow, 0.02)
        _bit_for_bit(group, "float32", 1000, ratio=0.5)  # ranks choose common entries
        _bit_for_bit(group, "float32", 200_000)  # large enough for a search by threshold
        _bit_for_bit(group, "float16", 1000, scale=3e4)  # some values beyond float16's range
        _bad_gradients_reach_all(group)
        _one_entry_always_travels(group)
        _sparse_gradients_are_refused(group)
        _resumed(group)
        _whole_at_first(group)
        _whole_at_first(group, bucket_cap_mb=0.002)
        found["bytes"] = _bytes_are_counted(group)
        found["undisturbed"] = _disturbed(group, lambda: None)
        with join(rank, world, fragile, "fragile") as other:
            found["disturbed"] = _disturbed(other, lambda: tell("amid") or tell.hear())
            _lose_a_peer(other)
    return found


def _disturbed(group: Group, disturb: Callable[[], object]) -> str:
    model = _make(_net(), bucket_cap_mb=0.002)
    reducer_torch.attach_topk(model, group, ratio=RATIO)
    for step in _steps(model, group.rank, range(8)):
        if step == 3:
            disturb()
    return digest(model)


def _lose_a_peer(group: Group) -> None:
    model = _make(_net())
    state = reducer_torch.attach_topk(model, group)
    if group.rank == 3:
        group.abort()
        return
    with pytest.raises(RuntimeError, match="PeerLostError"):
        model(_inputs(0, 0)).backward()
    assert isinstance(state.last_error, PeerLostError)
    assert state.last_error.rank == 3


@pytest.mark.timeout(240)
def test_every_case_on_four_ranks(addresses: list[str], tmp_path: Path) -> None:
    with (
        Reducers(2) as fragile,
        start_ranks(
            WORLD,
            _every_case,
            addresses,
            fragile.addresses,
            str(tmp_path / "store"),
            talk=True,
        ) as ranks,
    ):
        for rank in range(WORLD):
            ranks.wait(rank, 180)
        if all(ranks.receive(rank) == "amid" for rank in range(WORLD)):
            fragile.kill(1)
        for rank in range(WORLD):
            ranks.send(rank)
        found = values(ranks.collect(60))
    _check(found)


def _check(found: list[dict[str, Any]]) -> None:
    first = found[0]
    for other in found[1:]:
        assert {**other, "bytes": first["bytes"]} == first
    assert first["disturbed"] == first["undisturbed"]
    for result in found:
        for moved, said in result["bytes"].values():
            assert said <= moved <= said * 1.03
        whole, topk = (moved for moved, _ in result["bytes"].values())
        assert whole > 20 * topk, result["bytes"]  # a rank receives the pairs of three others


@pytest.mark.parametrize("size", [1, 1000, 1 << 16, 300_001])
@pytest.mark.parametrize("kind", ["normal", "zeros", "ties", "rising", "few", "nan"])
def test_the_largest_entries_are_found(size: int, kind: str) -> None:
    random = torch.Generator().manual_seed(size)
    vector = torch.randn(size, generator=random)
    if kind == "zeros":
        vector.zero_()
    elif kind == "ties":
        vector = vector.round()
    elif kind == "rising":
        vector = torch.arange(size, dtype=torch.float32)
    elif kind == "few":  # a sample finds hardly any nonzero entry
        vector = torch.zeros(size)
        vector[: 1 + size // 50] = 1.0
    elif kind == "nan":
        vector[size // 2] = torch.nan
        vector[0] = -torch.inf
    count = max(1, size // 100)
    chosen = largest(vector, count)
    assert len(set(chosen.tolist())) == count
    found = np.sort(np.abs(vector.numpy())[chosen.numpy()])
    np.testing.assert_array_equal(found, np.sort(np.abs(vector.numpy()))[size - count :])
