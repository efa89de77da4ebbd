"""DistributedDataParallel over real reducers: four processes, ten steps, the same bits."""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch  # only where it is installed
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import reducer_client.torch as reducer_torch
from reducer_client import Group, NumericError, PeerLostError
from reducer_client.config import keep_gloo_on_loopback
from tests.support.counts import draws
from tests.support.ranks import Tell, join, run_ranks, start_ranks

WORLD = 4
STEPS = draws(10, 20)

OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "small buckets": {"bucket_cap_mb": 0.01},
    "gradient_as_bucket_view": {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.01},
    "static_graph": {"static_graph": True},
    "find_unused_parameters": {"find_unused_parameters": True},
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


@contextmanager
def _process_group(rank: int, world: int, store: str) -> Iterator[None]:
    torch.set_num_threads(1)
    keep_gloo_on_loopback()
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _data(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 + rank)
    return (
        torch.randn(STEPS * 8, 20, generator=generator),
        torch.randint(3, (STEPS * 8,), generator=generator),
    )


def _digest(module: nn.Module) -> str:
    values = (v.detach().contiguous().view(torch.uint8).numpy() for v in module.parameters())
    return hashlib.sha256(b"".join(value.tobytes() for value in values)).hexdigest()


def _train(
    model: DistributedDataParallel, rank: int, *, skip: bool = False, accumulate: bool = False
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    inputs, targets = _data(rank)
    for step in range(STEPS):
        part = slice(step * 8, step * 8 + 8)
        held = accumulate and step % 2 == 0
        with model.no_sync() if held else nullcontext():
            output = model(inputs[part], skip and step % 3 == 0)
            nn.functional.cross_entropy(output, targets[part]).backward()
        if not held:
            optimizer.step()
            optimizer.zero_grad()


def _make(group: Group | None, **options: Any) -> DistributedDataParallel:
    torch.manual_seed(11)
    model = DistributedDataParallel(Net(), **options)
    if group is not None:
        reducer_torch.attach(model, group)
    return model


def _every_option(
    rank: int, world: int, addresses: list[str], job: str, store: str
) -> dict[str, str]:
    digests = {}
    with _process_group(rank, world, store), join(rank, world, addresses, job) as group:
        for name, options in OPTIONS.items():
            model = _make(None, **options)
            state = reducer_torch.attach(model, group)
            _train(model, rank, skip=name == "find_unused_parameters")
            gradients = sum(p.numel() * p.element_size() for p in model.parameters())
            assert state.bytes_reduced == STEPS * gradients, name
            digests[name] = _digest(model)
        model = _make(group)
        _train(model, rank, accumulate=True)
        digests["no_sync"] = _digest(model)
        over_gloo = _make(None)
        _train(over_gloo, rank)
        ours = _make(group)
        _train(ours, rank)
        digests["again"] = _digest(ours)
        for mine, gloos in zip(ours.parameters(), over_gloo.parameters(), strict=True):
            torch.testing.assert_close(mine, gloos, rtol=1e-3, atol=1e-5)
    return digests


def _two_runs(
    rank: int, world: int, function: Callable[..., Any], addresses: list[str], job: str, store: str
) -> list[Any]:
    """Two runs in the same processes: starting processes takes longer than training."""
    return [function(rank, world, addresses, f"{job}-{n}", f"{store}-{n}") for n in range(2)]


@pytest.mark.timeout(240)
def test_every_option_of_ddp_gives_the_same_bits_on_all_ranks_and_in_two_runs(
    addresses: list[str], job: str, tmp_path: Path
) -> None:
    arguments = (_every_option, addresses, job, str(tmp_path / "store"))
    runs = run_ranks(WORLD, _two_runs, *arguments, timeout=220)
    first = runs[0][0]
    assert all(digests == first for rank in runs for digests in rank)
    # The layout of the buckets changes the rounds, not the sums.
    same = ("default", "small buckets", "gradient_as_bucket_view", "static_graph", "again")
    assert len({first[name] for name in same}) == 1
    assert first["no_sync"] != first["default"]


def _mixed(rank: int, world: int, addresses: list[str], job: str, store: str) -> list[str]:
    with _process_group(rank, world, store), join(rank, world, addresses, job) as group:
        torch.manual_seed(5)
        dtypes = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
        net = nn.ModuleList(nn.Linear(7, 7, dtype=dtype) for dtype in dtypes)
        narrow = nn.Linear(50, 50)
        model = DistributedDataParallel(_Sum(net))
        other = DistributedDataParallel(narrow, bucket_cap_mb=0.001)
        states = [
            reducer_torch.attach(model, group),
            reducer_torch.attach(other, group, wire_dtype="bfloat16"),
        ]
        assert [state.prefix for state in states] == ["ddp0", "ddp1"]
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(step * 10 + rank)
            loss = model(torch.randn(4, 7, generator=generator))
            loss = loss + other(torch.randn(4, 50, generator=generator)).square().sum()
            loss.backward()
            with torch.no_grad():
                for p in (*model.parameters(), *other.parameters()):
                    assert p.grad is not None
                    p -= 0.001 * p.grad
                    p.grad = None
        assert all(state.last_error is None and state.bytes_reduced for state in states)
        return [_digest(model), _digest(other)]


class _Sum(nn.Module):
    def __init__(self, layers: nn.ModuleList) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs = [layer(x.to(layer.weight.dtype)).float() for layer in self.layers]
        return torch.stack(outputs).square().sum()


def test_two_modules_and_mixed_dtypes(addresses: list[str], job: str, tmp_path: Path) -> None:
    arguments = (_mixed, addresses, job, str(tmp_path / "store"))
    runs = run_ranks(WORLD, _two_runs, *arguments, timeout=160)
    assert all(result == runs[0][0] for rank in runs for result in rank)


def _forked_loaders(rank: int, world: int, addresses: list[str], job: str, store: str) -> str:
    with _process_group(rank, world, store), join(rank, world, addresses, job) as group:
        model = _make(group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        loader = DataLoader(
            TensorDataset(*_data(rank)),
            batch_size=8,
            num_workers=2,
            multiprocessing_context="fork",
        )
        steps = 0
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            steps += 1
        assert steps == STEPS
        return _digest(model)


def test_forked_data_loaders_leave_the_group_alone(addresses: list[str], tmp_path: Path) -> None:
    digests = run_ranks(WORLD, _forked_loaders, addresses, "loaders", str(tmp_path / "store"))
    assert len(set(digests)) == 1


def _lose_a_peer(
    rank: int, world: int, addresses: list[str], job: str, store: str, tell: Tell
) -> tuple[str, Any]:
    with _process_group(rank, world, store), join(rank, world, addresses, job) as group:
        model = _make(group)
        state = reducer_torch.ReductionState(group)
        net = DistributedDataParallel(nn.Linear(3, 3))
        net.register_comm_hook(state, reducer_torch.all_reduce_hook)
        net(torch.ones(2, 3)).sum().backward()
        loss = net(torch.ones(2, 3)).sum()
        tell("stepped")
        if rank == 1:
            tell.hear()
        with pytest.raises(PeerLostError) as caught, reducer_torch.raising():
            loss.backward()
        assert caught.value is state.last_error
        del model
        return str(caught.value.__cause__), state.last_error


def test_a_lost_peer_reaches_backward_and_the_state(addresses: list[str], tmp_path: Path) -> None:
    arguments = (addresses, "lost", str(tmp_path / "store"))
    with start_ranks(2, _lose_a_peer, *arguments, talk=True) as ranks:
        for rank in range(2):
            assert ranks.receive(rank, 60) == "stepped"
        ranks.kill(1)
        outcome = ranks.collect_one(0, 30)
    assert outcome.error is None, outcome
    text, error = outcome.value
    assert isinstance(error, PeerLostError)
    assert error.rank == 1
    assert str(error) in text


def _bad_gradients(
    rank: int, world: int, addresses: list[str], job: str, store: str
) -> tuple[str, Any]:
    group = join(rank, world, addresses, job, on_nonfinite="error")
    with _process_group(rank, world, store), group:
        model = DistributedDataParallel(nn.Linear(3, 3))
        state = reducer_torch.attach(model, group)
        loss = model(torch.full((2, 3), float("nan" if rank == 1 else "1"))).sum()
        with pytest.raises(RuntimeError, match="NumericError") as caught:
            loss.backward()
        assert str(state.last_error) in str(caught.value)
        group.barrier()  # the group still works
        return str(state.last_error), state.last_error


def test_a_bad_gradient_is_blamed_on_every_rank(addresses: list[str], tmp_path: Path) -> None:
    said = run_ranks(2, _bad_gradients, addresses, "bad", str(tmp_path / "store"))
    assert said[0][0] == said[1][0]
    assert said[0][0].startswith("rank 1 contributed NaN or Inf to 'ddp0/bucket0' in round 0")
    assert all(isinstance(error, NumericError) and error.rank == 1 for _, error in said)


def test_a_state_can_be_saved_with_a_checkpoint(solo: Group) -> None:
    state = reducer_torch.ReductionState(solo, wire_dtype="float16", prefix="mine")
    buffer = io.BytesIO()
    torch.save({"state": state}, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)["state"]
    assert (loaded.wire_dtype, loaded.prefix, loaded.group) == ("float16", "mine", None)
    with pytest.raises(RuntimeError, match=r"set state\.group"):
        loaded.submit(torch.ones(3), 0, lambda work: None)
    assert pickle.loads(pickle.dumps(state)).prefix == "mine"


def test_attach_wants_a_ddp_module(solo: Group) -> None:
    with pytest.raises(TypeError, match="expected a DistributedDataParallel module, got Linear"):
        reducer_torch.attach(nn.Linear(1, 1), solo)  # type: ignore[arg-type]


def _on_cuda(rank: int, world: int, addresses: list[str], job: str, store: str) -> str:
    with _process_group(rank, world, store), join(rank, world, addresses, job) as group:
        torch.manual_seed(11)
        device = torch.device("cuda", rank % torch.cuda.device_count())
        model = DistributedDataParallel(Net().to(device))
        reducer_torch.attach(model, group)
        inputs, targets = (tensor.to(device) for tensor in _data(rank))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(STEPS):
            part = slice(step * 8, step * 8 + 8)
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            nn.functional.cross_entropy(model(inputs[part]), targets[part]).backward()
            optimizer.step()
        return _digest(model.cpu())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_gradients_travel_through_pinned_buffers(addresses: list[str], tmp_path: Path) -> None:
    digests = run_ranks(2, _on_cuda, addresses, "cuda", str(tmp_path / "store"), fresh=True)
    assert len(set(digests)) == 1
