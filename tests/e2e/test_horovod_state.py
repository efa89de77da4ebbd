"""Horovod's helpers for training: broadcast of state, compression, batch norm, forks."""

from __future__ import annotations

import copy
import os

import pytest

pytest.importorskip("torch")

import torch  # only where it is installed
from torch import nn

import reducer_client.horovod as hvd
from tests.support.horovod import be_horovod
from tests.support.ranks import run_ranks


def _every_case(rank: int, world: int, addresses: list[str], job: str) -> None:
    be_horovod(rank, world, addresses, job)
    hvd.init()
    for case in (
        _a_process_that_is_forked,
        _compressors,
        _sync_batch_norm,
        _parameters_from_one_rank,
        _objects,
        _optimizer_state,
    ):
        case(rank, world)
    hvd.shutdown()


def test_what_two_ranks_share(addresses: list[str], job: str) -> None:
    run_ranks(2, _every_case, addresses, job)


def _compressors(rank: int, world: int) -> None:
    for name, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
        compression = getattr(hvd.Compression, name)
        for wide in (torch.float32, torch.float64):
            sent, context = compression.compress(torch.ones(5, dtype=wide))
            back = compression.decompress(sent, context)
            assert (sent.dtype, back.dtype) == (dtype, wide) and bool((back == 1).all())
        for other in (torch.uint8, torch.int64):
            sent, context = compression.compress(torch.ones(5, dtype=other))
            assert sent.dtype == other
            assert compression.decompress(sent, context).dtype == other
    for name in ("int8", "float8_e4m3fn", "e3m0"):
        compression = getattr(hvd.Compression, name)
        for dtype in (torch.float32, torch.float16, torch.int64):
            tensors = [torch.full((300,), 4 * rank + 1, dtype=dtype) for _ in range(2)]
            for op, expected in ((hvd.Sum, 6), (hvd.Max, 5)):  # powers of two are exact
                found = hvd.allreduce(tensors[0], op=op, compression=compression)
                assert found.dtype == dtype
                assert (found - expected).abs().max() <= (0 if name == "e3m0" else 0.05)
                grouped = hvd.grouped_allreduce(tensors, op=op, compression=compression)
                assert all(torch.equal(each, found) for each in grouped)
        part = hvd.reducescatter(torch.eye(64), op=hvd.Sum, compression=compression)
        torch.testing.assert_close(part, 2 * torch.eye(64)[32 * rank : 32 * (rank + 1)])


def _sync_batch_norm(rank: int, world: int) -> None:
    torch.manual_seed(3)
    whole = torch.randn(5, 4, 6, dtype=torch.float64) * 3 + 2
    start, end = ((0, 2), (2, 5))[rank]  # unequal batches
    for momentum in (0.1, None):
        ours, alone = hvd.SyncBatchNorm(4, momentum=momentum), nn.BatchNorm1d(4, momentum=momentum)
        mine, all_of_it = whole[start:end].clone().requires_grad_(), whole.clone().requires_grad_()
        weights = torch.arange(whole.numel(), dtype=torch.float64).view_as(whole)
        for _ in range(2):
            ((got := ours.double()(mine)) * weights[start:end]).sum().backward()
            ((expected := alone.double()(all_of_it)) * weights).sum().backward()
        torch.testing.assert_close(got, expected[start:end])
        assert mine.grad is not None and all_of_it.grad is not None
        torch.testing.assert_close(mine.grad, all_of_it.grad[start:end])
        torch.testing.assert_close(ours.state_dict(), alone.state_dict())
        torch.testing.assert_close(ours.eval()(mine), alone.eval()(all_of_it)[start:end])
    with pytest.raises(ValueError, match=r"expected .N, C"):
        ours(torch.ones(4))


def _parameters_from_one_rank(rank: int, world: int) -> None:
    for pick in (
        lambda model: model.state_dict(),
        lambda model: model.named_parameters(),
        lambda model: list(model.parameters()),
    ):
        model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(rank + 1)
        hvd.broadcast_parameters(pick(model), root_rank=1)
        assert all(bool((parameter == 2).all()) for parameter in model.parameters())
    with pytest.raises(TypeError, match="'b': expected a tensor, got int"):
        hvd.broadcast_parameters({"a": torch.ones(1), "b": 3}, root_rank=0)


def _objects(rank: int, world: int) -> None:
    mine = {"rank": rank, "padding": "x" * 1000 * rank}
    assert hvd.broadcast_object(mine, root_rank=1)["rank"] == 1
    assert hvd.broadcast_object(None if rank else [1], root_rank=0, name="mine") == [1]
    everybodys = hvd.allgather_object(mine)
    assert [len(found["padding"]) for found in everybodys] == [0, 1000]
    assert everybodys[rank] == mine


def _optimizer_state(rank: int, world: int) -> None:
    """Broadcast the state of each torch optimizer from a rank that has stepped, or has not."""
    kinds = [kind for kind in torch.optim.Optimizer.__subclasses__() if _is_of_torch(kind)]
    assert len(kinds) >= 14
    for kind in sorted(kinds, key=lambda kind: kind.__name__):
        for root in range(world):
            torch.manual_seed(rank)
            sparse = kind is torch.optim.SparseAdam
            model = nn.Embedding(6, 4, sparse=True) if sparse else nn.Linear(6, 4, bias=False)
            optimizer = kind(list(model.parameters()), lr=0.1 + rank)
            if rank == 0:
                _step(model, optimizer, sparse)
            before = copy.deepcopy(optimizer.state_dict())
            hvd.broadcast_optimizer_state(optimizer, root_rank=root)
            after = optimizer.state_dict()
            roots = hvd.broadcast_object(before, root_rank=root)
            assert str(after["param_groups"]) == str(roots["param_groups"]), kind
            assert after["state"].keys() == roots["state"].keys(), kind
            torch.testing.assert_close(after["state"], roots["state"], rtol=0, atol=0)
            _step(model, optimizer, sparse)  # the received state fits the optimizer
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters() if rank else [model.weight], lr=0.1)
    optimizer.state[model.weight]["momentum_buffer"] = before = torch.ones(1, 1)
    with pytest.raises(ValueError, match=r"rank 1: .*root has 1 parameter groups with 1 parameter"):
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.state[model.weight]["momentum_buffer"] is before


def _is_of_torch(kind: type) -> bool:
    return kind.__module__.startswith("torch.optim") and not kind.__name__.startswith("_")


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, sparse: bool) -> None:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.tensor([1, 2]) if sparse else torch.ones(2, 6)).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)


def _a_process_that_is_forked(rank: int, world: int) -> None:
    """A forked child knows its parent's rank, and cannot take part in calls."""
    there, here = os.pipe()
    if (child := os.fork()) == 0:
        known = hvd.is_initialized() and (hvd.rank(), hvd.size(), hvd.local_size())
        try:
            hvd.barrier()
        except hvd.HorovodInternalError as error:
            os.write(here, f"{known} {error.reason}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(here)
    assert os.read(there, 99).decode() == f"{(rank, world, world)} forked"
    os.close(there)
