"""``init_process_group("reducer")``: every collective does what torch defines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch  # only where it is installed
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from tests.support.process_group import process_group
from tests.support.ranks import run_ranks
from tests.support.torch_names import (
    all_gather_single,
    functional_all_gather,
    reduce_scatter_single,
)


def _of(rank: int, dtype: torch.dtype = torch.float32, count: int = 6) -> torch.Tensor:
    return (torch.arange(count) % 5 + rank + 1).to(dtype)


def _sums(rank: int, world: int) -> None:
    everyone = [_of(r) for r in range(world)]
    for op, expected in (
        (dist.ReduceOp.SUM, sum(everyone)),
        (dist.ReduceOp.AVG, sum(everyone) / world),
        (dist.ReduceOp.MIN, everyone[0]),
        (dist.ReduceOp.MAX, everyone[-1]),
        (dist.ReduceOp.PRODUCT, torch.stack(everyone).prod(0)),
        (dist._make_nccl_premul_sum(0.5), sum(everyone) / 2),
    ):
        tensor = _of(rank)
        dist.all_reduce(tensor, op=op)
        torch.testing.assert_close(tensor, expected, rtol=0, atol=1e-6)
    tensor = _of(rank).reshape(2, 3).t()
    dist.all_reduce(tensor)
    assert torch.equal(tensor, sum(everyone).reshape(2, 3).t())
    tensor = _of(rank)
    dist.all_reduce(tensor)
    assert tensor.untyped_storage().resizable()  # PowerSGD and FSDP change its size


# Dtypes that are summed; small integers are exact in all of them.
SUMMED = (torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.uint32, torch.int64, torch.uint64)
SUMMED += (*INTEGERS, torch.complex64, torch.complex128)
MOVED = (*SUMMED, torch.float32, torch.int16, torch.uint16, torch.bool, torch.float8_e8m0fnu)


def _dtypes(rank: int, world: int) -> None:
    for dtype in SUMMED:
        tensor = _of(0, dtype)
        dist.all_reduce(tensor)
        assert torch.equal(tensor.to(torch.complex64), (_of(0) * world).to(torch.complex64)), dtype
    for dtype in MOVED:
        everyone = [_of(r).remainder(3).to(dtype) for r in range(world)]
        gathered = [torch.zeros(6).to(dtype) for _ in range(world)]
        dist.all_gather(gathered, everyone[rank])
        tensor = everyone[rank].clone()
        dist.broadcast(tensor, src=1)
        for got, expected in zip([*gathered, tensor], [*everyone, everyone[1]], strict=True):
            assert bytes(got.view(torch.uint8)) == bytes(expected.view(torch.uint8)), dtype


def _bools(rank: int, world: int) -> None:
    """As with NCCL, a sum of bools is "any" and a product is "all"; the bytes are 0 or 1."""
    mine = torch.tensor([True, False, rank == 0, rank != 0])
    some, every = [True, False, True, True], [True, False, False, False]
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.BOR):
        tensor = mine.clone()
        dist.all_reduce(tensor, op=op)
        assert tensor.view(torch.uint8).tolist() == some
    for op in (dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.BAND):
        tensor = mine.clone()
        dist.all_reduce(tensor, op=op)
        assert tensor.view(torch.uint8).tolist() == every
    tensor = torch.tensor([True, rank == 0])
    dist.all_reduce(tensor, op=dist.ReduceOp.BXOR)
    assert tensor.tolist() == [world % 2 == 1, True]


def _bits(rank: int, world: int) -> None:
    """One bit set on all ranks and one bit of each rank, in the highest byte of each integer."""
    for dtype in INTEGERS:
        shift = 8 * (dtype.itemsize - 1)
        for op, expected in (
            (dist.ReduceOp.BAND, 0x40),
            (dist.ReduceOp.BOR, 0x40 | (1 << world) - 1),
            (dist.ReduceOp.BXOR, 0x40 * (world % 2) ^ (1 << world) - 1),
        ):
            tensor = torch.tensor([(0x40 | 1 << rank) << shift], dtype=dtype)
            dist.all_reduce(tensor, op=op)
            assert tensor.tolist() == [expected << shift], (op, dtype)
    with pytest.raises(TypeError, match="bor"):
        dist.all_reduce(torch.ones(2), op=dist.ReduceOp.BOR)


def _reduce(rank: int, world: int) -> None:
    tensor = _of(rank)
    dist.reduce(tensor, dst=1, op=dist.ReduceOp.AVG)
    assert torch.equal(
        tensor, sum(_of(r) for r in range(world)) / world if rank == 1 else _of(rank)
    )


def _sparse(rank: int, world: int) -> None:
    """Each rank has a row of its own and a common row; the last rank has none."""
    rows = [] if rank == world - 1 else [rank, world]
    tensor = torch.sparse_coo_tensor(
        torch.tensor([rows], dtype=torch.int64),
        torch.full((len(rows), 3), rank + 1.0),
        (9, 3),
        check_invariants=True,
    )
    expected = torch.zeros(9, 3)
    for r in range(world - 1):
        expected[r] += r + 1
        expected[world] += r + 1
    dist.all_reduce(tensor)
    assert tensor.is_sparse and torch.equal(tensor.to_dense(), expected)


def _default_device(rank: int, world: int) -> None:
    """The client's own tensors are in host memory, whatever the default device."""
    mine, gathered = _of(rank), [torch.zeros(6) for _ in range(world)]
    turned = _of(0).reshape(2, 3).t()
    rows = torch.eye(6)[rank].to_sparse()
    group: Any = dist.group.WORLD  # torch's dispatcher would leave the mode behind
    with torch.device("meta"):
        group.allgather([gathered], [mine]).wait()
        group.broadcast([turned]).wait()
        group.allreduce([turned]).wait()
        group.allreduce([rows]).wait()
    assert all(torch.equal(got, _of(r)) for r, got in enumerate(gathered))
    assert torch.equal(turned, world * _of(0).reshape(2, 3).t())
    assert torch.equal(rows.to_dense(), torch.eye(6)[:world].sum(0))


def _coalesced(rank: int, world: int) -> None:
    """Coalesced tensors of one dtype are one round."""
    tensors = [_of(rank, count=n) for n in (3, 1, 7)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    for tensor in tensors:
        assert torch.equal(tensor, sum(_of(r, count=tensor.numel()) for r in range(world)))
    counts = (2, 5)
    parts = [_of(rank, count=n) for n in counts]
    wholes = [torch.zeros(world * n) for n in counts]
    with dist._coalescing_manager(async_ops=True) as started:
        for whole, part in zip(wholes, parts, strict=True):
            all_gather_single(whole, part)
    started.wait()
    for whole, n in zip(wholes, counts, strict=True):
        assert torch.equal(whole, torch.cat([_of(r, count=n) for r in range(world)]))
    with dist._coalescing_manager():
        for whole, part in zip(wholes, parts, strict=True):
            reduce_scatter_single(part, whole)
    for part, n in zip(parts, counts, strict=True):
        assert torch.equal(part, world * _of(rank, count=n))


def _coalesced_on_a_device(rank: int, world: int) -> None:
    """One work covers calls of any kind, also calls over an inner group."""
    whole, mine, root = torch.zeros(world * 2), _of(rank, count=2), _of(rank)
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as started:
        all_gather_single(whole, mine)
    started.wait()
    assert torch.equal(whole, torch.cat([_of(r, count=2) for r in range(world)]))
    got = torch.zeros(3)
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as started:
        dist.broadcast(root, src=1, async_op=True)
        dist.isend(_of(rank, count=3), (rank + 1) % world)
        dist.irecv(got, (rank - 1) % world)
    started.wait()
    assert torch.equal(root, _of(1)) and torch.equal(got, _of((rank - 1) % world, count=3))
    tensor = _of(rank)
    with dist._coalescing_manager(device=torch.device("cpu")):
        dist.all_reduce(tensor)
    assert torch.equal(tensor, sum(_of(r) for r in range(world)))


def _moves(rank: int, world: int) -> None:
    everyone = [_of(r) for r in range(world)]
    tensor = _of(rank)
    dist.broadcast(tensor, src=world - 1)
    assert torch.equal(tensor, everyone[-1])
    gathered = [torch.zeros(6) for _ in range(world)]
    dist.all_gather(gathered, _of(rank))
    assert all(map(torch.equal, gathered, everyone))
    single = torch.zeros(world, 6)
    all_gather_single(single, _of(rank))
    assert torch.equal(single, torch.stack(everyone))
    part = torch.zeros(3)
    reduce_scatter_single(part, torch.arange(3.0 * world) + rank)
    whole = torch.arange(3.0 * world) * world + sum(range(world))
    assert torch.equal(part, whole[3 * rank : 3 * rank + 3])
    dist.reduce_scatter(part, [_of(rank, count=3) + r for r in range(world)])
    assert torch.equal(part, sum(_of(r, count=3) for r in range(world)) + world * rank)
    for uneven in ([2, 0, 7], [1, 1, 2]):  # as gloo leaves them
        sizes = [uneven[r % 3] for r in range(world)]
        part = torch.zeros(sizes[rank])
        dist.reduce_scatter(part, [_of(rank, count=size) + r for r, size in enumerate(sizes)])
        total = torch.zeros(sizes[rank])
        for r in range(world):
            total += _of(r, count=sizes[rank]) + rank
        assert torch.equal(part, total)


def _delegated(rank: int, world: int) -> None:
    found: list[Any] = [None] * world
    dist.all_gather_object(found, {"rank": rank})
    assert found == [{"rank": r} for r in range(world)]
    listed = [("from", 0)] if rank == 0 else [None]
    dist.broadcast_object_list(listed)
    assert listed == [("from", 0)]
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, [f"to {r}" for r in range(world)] if rank == 0 else None)
    assert mine == [f"to {rank}"]
    if rank < 2:
        tensor = torch.full((3,), float(rank))
        dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0)
        assert torch.equal(tensor, torch.zeros(3))
    out = torch.zeros(world)
    dist.all_to_all_single(out, torch.arange(float(world)) + 10 * rank)
    assert torch.equal(out, torch.arange(world) * 10.0 + rank)


def _asynchronous(rank: int, world: int) -> None:
    tensors = [torch.full((1000,), float(i + rank)) for i in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    sums = [works[-1].get_future().then(lambda done: done.value()[0].sum()).wait()]
    assert all(work.wait() and work.is_completed() and work.is_success() for work in works)
    sums = [tensor[0].item() for tensor in tensors]
    assert sums == [world * i + sum(range(world)) for i in range(20)]
    dist.barrier()
    dist.barrier(async_op=True).wait()


def _groups(rank: int, world: int) -> None:
    default: Any = dist.group.WORLD
    pair = dist.new_group([0, 1], pg_options=replace(default.options, job=None))
    assert rank > 1 or pair.job == default.job
    patient: Any = dist.new_group(timeout=timedelta(seconds=777))
    assert patient.reducer_group.step_timeout == 777
    assert default.reducer_group.step_timeout != 777
    alone = [dist.new_group([r]) for r in range(world)][rank]
    for group, members in ((pair, [0, 1]), (alone, [rank])):
        if rank in members:
            tensor = _of(rank)
            dist.all_reduce(tensor, group=group)
            assert torch.equal(tensor, sum(_of(r) for r in members))


def _narrow(rank: int, world: int) -> None:
    """float32 sums from 1 MiB on send half the bytes; smaller ones and other ops are exact."""
    default: Any = dist.group.WORLD
    group = dist.new_group(pg_options=replace(default.options, job=None, wire_dtype="bfloat16"))
    least = (1 << 20) // 4
    odd = 257.0  # lies between two numbers of bfloat16
    for count in (1, least - 1):
        tensor = torch.full((count,), odd)
        dist.all_reduce(tensor, group=group)
        assert torch.equal(tensor, torch.full((count,), odd * world))
        parts = torch.full((world * (count // world or 1),), odd)
        part = torch.zeros(parts.numel() // world)
        reduce_scatter_single(part, parts, group=group)
        assert torch.equal(part, torch.full_like(part, odd * world))
    for op, expected in ((dist.ReduceOp.MIN, odd), (dist.ReduceOp.MAX, odd + 2 * (world - 1))):
        tensor = torch.full((least,), odd + 2 * rank)
        dist.all_reduce(tensor, op=op, group=group)
        assert torch.equal(tensor, torch.full((least,), expected)), op

    def sent() -> int:
        return group.reducer_group.stats()["bytes_sent"]

    half, total = 2 * least, float(sum(range(1, world + 1)))
    for op, expected in (
        (dist.ReduceOp.SUM, total),
        (dist.ReduceOp.AVG, total / world),
        (dist._make_nccl_premul_sum(0.5), total / 2),
    ):
        before = sent()
        tensor, part = torch.full((least,), rank + 1.0), torch.zeros(least // world)
        reduce_scatter_single(part, tensor, op=op, group=group)
        dist.all_reduce(tensor, op=op, group=group)
        assert 2 * half <= sent() - before < 2.1 * half, op
        assert torch.equal(tensor, torch.full((least,), expected)), op
        assert torch.equal(part, tensor[: part.numel()]), op
    group = dist.new_group(pg_options=replace(default.options, job=None, wire_dtype="e3m0"))
    for op, expected in ((dist.ReduceOp.SUM, total), (dist.ReduceOp.MAX, float(world))):
        before = sent()
        tensor = torch.full((least,), rank + 1.0)
        dist.all_reduce(tensor, op=op, group=group)
        assert torch.equal(tensor, torch.full((least,), expected)), op
        assert (sent() - before < 0.6 * least) == (op == dist.ReduceOp.SUM), op


def _negated(values: torch.Tensor) -> torch.Tensor:
    """A lazily negated view of these values, like the imaginary part of a conjugate."""
    negated: torch.Tensor = torch._neg_view(-values)
    assert negated.is_neg()
    return negated


def _lazy(rank: int, world: int) -> None:
    """Tensors that torch negates when they are read, on some ranks or on all."""
    everyone = [_of(r) for r in range(world)]
    total, stacked = sum(everyone), torch.stack(everyone)
    for lazy_ranks in ([0], [1], range(world)):

        def lazily(values: torch.Tensor, ranks: Any = lazy_ranks) -> torch.Tensor:
            return _negated(values) if rank in ranks else values.clone()

        tensor = lazily(everyone[rank])
        dist.all_reduce(tensor)
        assert torch.equal(tensor, total)
        for root in (0, 1):
            tensor = lazily(everyone[rank])
            dist.reduce(tensor, root)
            assert torch.equal(tensor, total if rank == root else everyone[rank])
            tensor = lazily(everyone[rank])
            dist.broadcast(tensor, root)
            assert torch.equal(tensor, everyone[root])
        parts, whole = [lazily(torch.zeros(6)) for _ in range(world)], lazily(torch.zeros(world, 6))
        dist.all_gather(parts, lazily(everyone[rank]))
        all_gather_single(whole, lazily(everyone[rank]))
        assert torch.equal(torch.stack(parts), stacked) and torch.equal(whole, stacked)
        part = lazily(torch.zeros(6))
        reduce_scatter_single(part, lazily(torch.cat(everyone)))
        assert torch.equal(part, world * everyone[rank])
        _lazy_by_gloo(rank, world, everyone, lazily)


def _lazy_by_gloo(
    rank: int, world: int, everyone: list[torch.Tensor], lazily: Callable[..., torch.Tensor]
) -> None:
    zeros = torch.zeros(6)
    tensor, parts = lazily(zeros), [lazily(zeros) for _ in range(world)]
    dist.scatter(tensor, [lazily(part) for part in everyone] if rank == 1 else None, src=1)
    assert torch.equal(tensor, everyone[rank])
    dist.gather(lazily(everyone[rank]), parts if rank == 1 else None, dst=1)
    assert rank != 1 or all(map(torch.equal, parts, everyone))
    exchanged = lazily(torch.zeros(world))
    dist.all_to_all_single(exchanged, lazily(torch.arange(world) + 10.0 * rank))
    assert torch.equal(exchanged, torch.arange(world) * 10.0 + rank)
    got, before = lazily(zeros), (rank - 1) % world
    received = dist.irecv(got, before)
    dist.send(lazily(everyone[rank]), (rank + 1) % world)
    received.wait()
    assert torch.equal(got, everyone[before])
    if rank < 2:
        dist.send(lazily(everyone[0]), 1) if rank == 0 else None
        assert rank == 0 or (dist.recv(got) == 0 and torch.equal(got, everyone[0]))


def _conjugated(rank: int, world: int) -> None:
    """Conjugated tensors. Torch itself refuses to sum them in place and to broadcast them."""
    mine = torch.complex(_of(rank), _of(rank)).conj()
    total = sum(torch.complex(_of(r), -_of(r)) for r in range(world))
    tensor, part = (
        mine.clone().conj_physical().conj(),
        torch.zeros(6 // world, dtype=torch.complex64),
    )
    dist.reduce(tensor, 0)
    assert tensor.is_conj() and torch.equal(tensor, total if rank == 0 else mine)
    reduce_scatter_single(part, mine[: part.numel() * world])
    assert torch.equal(part, total[rank * part.numel() : (rank + 1) * part.numel()])


def _unwaited(rank: int, world: int) -> None:
    """Results of functional collectives, used before anybody has waited for them."""

    def sums() -> torch.Tensor:
        found = functional.all_reduce(_of(rank), "sum", dist.group.WORLD)
        assert type(found) is functional.AsyncCollectiveTensor
        return found

    total = sum(_of(r) for r in range(world))
    tensor, gathered, part = sums(), [torch.zeros(6) for _ in range(world)], torch.zeros(3)
    dist.all_reduce(tensor)
    assert torch.equal(tensor, world * total)
    dist.all_gather(gathered, sums())
    assert all(torch.equal(of_rank, total) for of_rank in gathered)
    tensor = sums()
    dist.broadcast(tensor, 1)
    assert torch.equal(tensor, total)
    whole = functional_all_gather(_of(rank, count=3), 0, dist.group.WORLD)
    reduce_scatter_single(part, whole)
    assert torch.equal(part, world * _of(rank, count=3))
    got = sums()
    dist.gather(sums(), gathered if rank == 0 else None)
    dist.scatter(got, gathered if rank == 0 else None)
    assert torch.equal(got, total)
    strided = torch.zeros(3, 2).t()
    dist.scatter(strided, [part.view(2, 3) for part in gathered] if rank == 0 else None)
    assert torch.equal(strided, total.view(2, 3))


def _without_memory(rank: int, world: int) -> None:
    """A ZeroTensor is refused on its rank before anything is sent, so ranks stay in step."""
    empty = torch._efficientzerotensor(6)
    calls: list[Callable[[], Any]] = [
        lambda: dist.all_reduce(empty),
        lambda: dist.reduce(empty, 0),
        lambda: dist.broadcast(empty, 0),
        lambda: dist.all_gather([_of(r) for r in range(world)], empty),
        lambda: reduce_scatter_single(torch.zeros(6 // world), empty[: 6 // world * world]),
        lambda: dist.gather(empty, [_of(r) for r in range(world)]),
        lambda: dist.send(empty, 1),
        lambda: dist.recv(empty, 1),
    ]
    for call in calls if rank == 0 else ():
        with pytest.raises(TypeError, match=r"a ZeroTensor has no memory .* clone\(\)"):
            call()
    _moves(rank, world)


def _collectives(rank: int, world: int, addresses: list[str], job: str, store: str) -> bool:
    if world == 2:
        dist.set_debug_level(dist.DebugLevel.DETAIL)
    with process_group(rank, world, addresses, store, job=job):
        assert dist.get_backend() == "reducer"
        for check in (
            _sums,
            _dtypes,
            _bools,
            _bits,
            _reduce,
            _sparse,
            _default_device,
            _coalesced,
            _coalesced_on_a_device,
            _moves,
            _delegated,
            _asynchronous,
            _groups,
            _narrow,
            _lazy,
            _conjugated,
            _unwaited,
            _without_memory,
        ):
            check(rank, world)
    return True


@pytest.mark.parametrize("world", [2, 4])
def test_every_collective(world: int, addresses: list[str], job: str, tmp_path: Path) -> None:
    assert all(run_ranks(world, _collectives, addresses, job, str(tmp_path / "store")))
