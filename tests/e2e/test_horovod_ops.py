"""Horovod's operations on tensors over real reducers; the ranks run all cases in one start."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("torch")

import torch  # only where it is installed
from torch.distributed._functional_collectives import AsyncCollectiveTensor

import reducer_client.horovod as hvd
from reducer_client.horovod import arrays
from tests.support.horovod_ranks import initialized
from tests.support.ranks import run_ranks

INTEGERS = (torch.uint8, torch.int8, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
MOVED = (*INTEGERS, *FLOATS, torch.bool, torch.int16, torch.complex64)
DIMS = (1, 2, 3)

Case = Callable[[int, int], None]
CASES: list[Case] = []


def case(function: Case) -> Case:
    CASES.append(function)
    return function


def of(rank: int, shape: Sequence[int], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """The input of a rank: small integers, so that sums are exact in every dtype."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randint(0, 5, tuple(shape), generator=generator).to(dtype)


def stacked(world: int, shape: Sequence[int], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.stack([of(rank, shape, dtype, seed) for rank in range(world)])


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def refused(what: str, *calls: Callable[[], Any]) -> None:
    for call in calls:
        with pytest.raises(hvd.HorovodInternalError, match=what) as raised:
            call()
        assert raised.value.reason in ("mismatch", "duplicate")


@case
def lifecycle(rank: int, world: int) -> None:
    assert hvd.is_initialized()
    assert (hvd.rank(), hvd.size()) == (rank, world)
    assert (hvd.local_rank(), hvd.local_size()) == (rank, world)
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    assert hvd.is_homogeneous()
    assert not hvd.mpi_built() and not hvd.gloo_enabled() and hvd.nccl_built() == 0
    hvd.shutdown()
    assert not hvd.is_initialized()
    with pytest.raises(hvd.HorovodInternalError, match="call init"):
        hvd.rank()
    hvd.init()
    hvd.init()
    assert (hvd.rank(), hvd.size()) == (rank, world)


@case
def allreduce(rank: int, world: int) -> None:
    handles = []
    for dtype, dim in itertools.product((*INTEGERS, *FLOATS), DIMS):
        shape = (7,) * dim
        all_of = stacked(world, shape, dtype).to(torch.float64)
        mean = all_of.mean(0)
        expected = {
            hvd.Sum: all_of.sum(0),
            hvd.Average: mean.trunc() if dtype in INTEGERS else mean,
            hvd.Min: all_of.amin(0),
            hvd.Max: all_of.amax(0),
            hvd.Product: all_of.prod(0),
        }
        for op, value in expected.items():
            if op == hvd.Product and dtype in (torch.int8, torch.uint8):
                continue  # products wrap
            handle = hvd.allreduce_async(of(rank, shape, dtype), op=op)
            handles.append((handle, value.to(dtype)))
    for handle, value in handles:
        same(hvd.synchronize(handle), value)
    found = hvd.allreduce(of(rank, (3,), torch.int64), average=False)
    same(found, stacked(world, (3,), torch.int64).sum(0))
    with pytest.raises(ValueError, match="expected one of them"):
        hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum)
    plain = np.arange(4).astype(ml_dtypes.bfloat16)  # the dtype of TensorFlow's arrays
    total = arrays.allreduce(plain, hvd.Sum)
    assert (total.dtype, total.tolist()) == (plain.dtype, [0, world, 2 * world, 3 * world])
    with pytest.raises(TypeError, match="int16"):
        hvd.allreduce(torch.ones(3, dtype=torch.int16))
    with pytest.raises(NotImplementedError):
        hvd.allreduce(torch.ones(3), op=hvd.Adasum)


@case
def booleans(rank: int, world: int) -> None:
    mine = torch.tensor([True, False, rank == 0])
    for op, expected in ((hvd.Sum, [True, False, True]), (hvd.Product, [True, False, False])):
        assert hvd.allreduce(mine, op=op).tolist() == expected
    with pytest.raises(TypeError, match="bool"):
        hvd.allreduce(mine)
    with pytest.raises(TypeError, match="bool"):
        hvd.allreduce(mine, op=hvd.Sum, prescale_factor=2.0)
    same(hvd.allreduce(torch.ones(2)), torch.ones(2))


@case
def allreduce_in_place(rank: int, world: int) -> None:
    for dtype in (*INTEGERS, *FLOATS):
        expected = stacked(world, (5, 6), dtype).sum(0, dtype=dtype)
        mine = of(rank, (5, 6), dtype)
        result = hvd.allreduce_(mine, op=hvd.Sum)
        assert result is mine
        same(mine, expected)
        turned = of(rank, (5, 6), dtype).t().contiguous().t()  # not contiguous
        hvd.synchronize(hvd.allreduce_async_(turned, op=hvd.Sum))
        same(turned, expected)
    scalar = torch.tensor(float(rank))
    same(hvd.allreduce_(scalar, op=hvd.Sum), torch.tensor(sum(range(world)) * 1.0))
    pairs = torch.tensor([1 + 2j, 3 + 4j])
    negated = pairs.conj().imag  # lazily, by a bit of the tensor, as for conjugates
    assert negated.is_neg()
    hvd.allreduce_(negated, op=hvd.Sum)
    assert (negated / world).tolist() == [-2, -4]
    hvd.broadcast_(conjugated := (pairs + rank).conj(), 1)
    assert conjugated.is_conj() and (conjugated - 1).real.tolist() == [1, 3]
    unwaited = AsyncCollectiveTensor(torch.ones(3))
    hvd.allreduce_(unwaited, op=hvd.Sum)
    assert unwaited.tolist() == [world] * 3
    with pytest.raises(TypeError, match="a ZeroTensor has no memory"):
        hvd.allreduce_(torch._efficientzerotensor(3))
    leaf = torch.ones(3, requires_grad=True)
    hvd.allreduce_(leaf, op=hvd.Sum)
    assert leaf.tolist() == [world] * 3


@case
def scale_factors(rank: int, world: int) -> None:
    for dtype, dim in itertools.product((torch.int32, torch.int64, *FLOATS), DIMS):
        wide = {torch.float16: torch.float32, torch.bfloat16: torch.float32}.get(dtype, dtype)
        wide = torch.float64 if dtype in INTEGERS else wide
        tensor = of(0, (6,) * dim, dtype, seed=dim) * 7 - 11
        factor = torch.tensor(0.3141592653589793, dtype=wide)
        before = hvd.allreduce(tensor, op=hvd.Sum, prescale_factor=0.3141592653589793)
        same(before, ((tensor.to(wide) * factor).to(dtype) * world).to(dtype))
        after = hvd.allreduce(tensor, op=hvd.Sum, postscale_factor=0.3141592653589793)
        same(after, ((tensor * world).to(wide) * factor).to(dtype))
    tensors = [of(rank, (5, n), torch.float32, n) for n in range(1, 9)]
    handles = [  # different factors in one fusion buffer
        hvd.allreduce_async(t, op=hvd.Sum, prescale_factor=0.5 * n, postscale_factor=2.0**n)
        for n, t in enumerate(tensors)
    ]
    for n, handle in enumerate(handles):
        total = stacked(world, (5, n + 1), torch.float32, n + 1).sum(0)
        same(hvd.synchronize(handle), total * 0.5 * n * 2.0**n)
    nan = torch.tensor([float("nan"), float("inf"), -0.0], dtype=torch.bfloat16)
    found = hvd.allreduce(nan, op=hvd.Max, prescale_factor=2.0)
    same(found, nan)


@case
def grouped(rank: int, world: int) -> None:
    shapes = [(3,), (), (2, 0), (17, 2), (4, 3, 2)]
    mine = [of(rank, shape, torch.float32, index) for index, shape in enumerate(shapes)]
    sums = [stacked(world, shape, torch.float32, i).sum(0) for i, shape in enumerate(shapes)]
    for name in (None, "group"):
        for found, expected in zip(
            hvd.grouped_allreduce(mine, op=hvd.Sum, name=name), sums, strict=True
        ):
            same(found, expected)
    for found, expected in zip(hvd.grouped_allreduce(mine), sums, strict=True):
        same(found, expected / world)
    hvd.grouped_allreduce_(mine, op=hvd.Sum)
    for found, expected in zip(mine, sums, strict=True):
        same(found, expected)
    with pytest.raises(ValueError, match="of one dtype"):
        hvd.grouped_allreduce([torch.ones(1), torch.ones(1, dtype=torch.int32)])
    rows = [(rank + 1, 3), (2 * rank, 2)]
    parts = hvd.grouped_allgather([of(rank, shape, torch.bfloat16) for shape in rows])
    same(parts[0], torch.cat([of(r, (r + 1, 3), torch.bfloat16) for r in range(world)]))
    same(parts[1], torch.cat([of(r, (2 * r, 2), torch.bfloat16) for r in range(world)]))
    scattered = hvd.grouped_reducescatter([torch.ones(world, 2), torch.ones(2 * world)], op=hvd.Sum)
    assert [tuple(t.shape) for t in scattered] == [(1, 2), (2,)]
    assert all((t == world).all() for t in scattered)


@case
def fused(rank: int, world: int) -> None:
    polls, handles = [], []
    for number, (dtype, dim) in enumerate(itertools.product((*INTEGERS, *FLOATS), DIMS)):
        handle = hvd.allreduce_async(of(rank, (9,) * dim, dtype, number), op=hvd.Sum)
        polls.append(hvd.poll(handle))
        handles.append((handle, stacked(world, (9,) * dim, dtype, number).sum(0, dtype=dtype)))
        handle = hvd.allgather_async(of(rank, (2, *(3,) * dim), dtype, number))
        whole = stacked(world, (2, *(3,) * dim), dtype, number).flatten(0, 1)
        handles.append((handle, whole))
        handle = hvd.broadcast_async(of(rank, (4,) * dim, dtype, number), number % world)
        handles.append((handle, of(number % world, (4,) * dim, dtype, number)))
    assert not all(polls)
    for handle, expected in handles[::-1]:
        same(hvd.synchronize(handle), expected)
        assert hvd.poll(handle)


@case
def any_order(rank: int, world: int) -> None:
    """Every rank submits in its own order, and waits in another order."""
    numbers = list(range(80))
    for turn in range(3):
        shuffled = random.Random(f"{rank} {turn}")
        shuffled.shuffle(numbers)
        handles = []
        for n in numbers:
            tensor = of(rank, (n + 1,), torch.float32, n)
            handles.append((n, hvd.allreduce_async(tensor, op=hvd.Sum, name=f"order.{n}")))
            if shuffled.random() < 0.1 and world > 1:
                hvd.poll(handles[0][1])
        shuffled.shuffle(handles)
        for n, handle in handles:
            same(hvd.synchronize(handle), stacked(world, (n + 1,), torch.float32, n).sum(0))


@case
def allgather(rank: int, world: int) -> None:
    for dtype, dim in itertools.product(MOVED, DIMS):
        rest = (3,) * (dim - 1)
        handles = []
        for counts in ((4, 4, 4, 4), (17, 0, 81, 12), (0, 0, 0, 0), (1, 8_000, 0, 2)):
            whole = torch.cat([of(r, (counts[r], *rest), dtype) for r in range(world)])
            if dim == 1:
                same(hvd.allgather(of(rank, (counts[rank], *rest), dtype)), whole)
            handles.append((hvd.allgather_async(of(rank, (counts[rank], *rest), dtype)), whole))
        for handle, whole in handles:
            same(hvd.synchronize(handle), whole)
    with pytest.raises(ValueError, match="scalar"):
        hvd.allgather(torch.tensor(1.0))


@case
def broadcast(rank: int, world: int) -> None:
    for dtype, root in itertools.product(MOVED, range(world)):
        mine = of(rank, (3, 4), dtype)
        same(hvd.broadcast(mine, root), of(root, (3, 4), dtype))
        same(mine, of(rank, (3, 4), dtype))
        turned = mine.t().contiguous().t()
        assert hvd.broadcast_(turned, root) is turned
        same(turned, of(root, (3, 4), dtype))
    nans = torch.tensor([0x7F800001 + rank, 0x80000000 - (1 << 32)]).to(torch.int32)
    found = hvd.broadcast(nans.view(torch.float32), world - 1).view(torch.int32)
    same(found, torch.tensor([0x7F800000 + world, -(1 << 31)], dtype=torch.int32))
    with pytest.raises(ValueError, match="root_rank"):
        hvd.broadcast(torch.ones(1), world)


@case
def alltoall(rank: int, world: int) -> None:
    for dtype, dim in itertools.product(MOVED, DIMS):
        rest = (2,) * (dim - 1)

        def sent(r: int, rest: tuple[int, ...] = rest, dtype: torch.dtype = dtype) -> Any:
            return of(r, (world * (r + 1), *rest), dtype).split(r + 1)

        expected = torch.cat([sent(r)[rank] for r in range(world)])
        same(hvd.alltoall(torch.cat(sent(rank))), expected)
        splits = torch.tensor([rank + 1] * world, dtype=torch.int32)
        found, received = hvd.alltoall(torch.cat(sent(rank)), splits)
        same(found, expected)
        assert received.tolist() == [r + 1 for r in range(world)]
    for splits in (
        [1] * world,
        [0] * world,
        torch.ones(world),
        [-1] * world,
        [world, *[0] * world],
    ):
        with pytest.raises(ValueError, match="split"):
            hvd.alltoall(torch.ones(world - 1), splits)
    with pytest.raises(ValueError, match="without splits"):
        hvd.alltoall(torch.ones(world + 1))


@case
def reducescatter(rank: int, world: int) -> None:
    for dtype, rows in itertools.product((*INTEGERS, *FLOATS), (world * 4, world * 2 + 1, 1)):
        expected = stacked(world, (rows, 3), dtype).sum(0, dtype=dtype).tensor_split(world)[rank]
        same(hvd.reducescatter(of(rank, (rows, 3), dtype), op=hvd.Sum), expected)
    mean = hvd.reducescatter(torch.full((world,), float(rank)))
    same(mean, torch.full((1,), sum(range(world)) / world))
    scaled = hvd.reducescatter(
        torch.full((world + 1,), 3, dtype=torch.int32),
        op=hvd.Sum,
        prescale_factor=0.5,
        postscale_factor=1.5,
    )
    assert scaled.tolist() == [int(world * 1 * 1.5)] * (2 if rank == 0 else 1)
    with pytest.raises(ValueError, match="scalar"):
        hvd.reducescatter(torch.tensor(1.0))
    with pytest.raises(NotImplementedError):
        hvd.reducescatter(torch.ones(world), op=hvd.Adasum)


def gradient(function: Callable[[torch.Tensor], torch.Tensor], tensor: torch.Tensor) -> Any:
    """The gradient of the sum of the outputs, each weighted by its place."""
    tensor = tensor.requires_grad_()
    output = function(tensor)
    output.backward(torch.arange(output.numel(), dtype=output.dtype).reshape(output.shape))
    return tensor.grad


@case
def gradients(rank: int, world: int) -> None:
    places = torch.arange(6.0).reshape(3, 2)
    same(gradient(lambda t: hvd.allreduce(t, op=hvd.Sum), torch.ones(3, 2)), places * world)
    same(gradient(hvd.allreduce, torch.ones(3, 2)), places)
    both = gradient(lambda t: sum(hvd.grouped_allreduce([t, 2 * t], op=hvd.Sum)), torch.ones(3, 2))
    same(both, places * world * 3)
    for gather in (hvd.allgather, lambda t: hvd.grouped_allgather([t])[0]):
        found = gradient(gather, torch.ones(rank + 1, 2))
        start = rank * (rank + 1)  # 2 * (1 + ... + rank)
        same(found, torch.arange(start, start + 2.0 * (rank + 1)).reshape(-1, 2))
    found = gradient(lambda t: hvd.broadcast(t, world - 1), torch.ones(3, 2))
    same(found, places if rank == world - 1 else places * 0)
    found = gradient(hvd.alltoall, torch.ones(world))
    same(found, torch.full((world,), float(rank)))  # our row has this place on every rank
    found = gradient(lambda t: hvd.alltoall(t, [1] * world)[0], torch.ones(world))
    same(found, torch.full((world,), float(rank)))
    rows = torch.cat([torch.arange(2.0)] * world)
    same(gradient(hvd.reducescatter, torch.ones(2 * world)), rows)
    found = gradient(lambda t: hvd.reducescatter(t, op=hvd.Sum), torch.ones(2 * world))
    same(found, rows * world)
    found = gradient(
        lambda t: sum(hvd.grouped_reducescatter([t, t], op=hvd.Sum)), torch.ones(2 * world)
    )
    same(found, rows * world * 2)


@case
def mismatches(rank: int, world: int) -> None:
    mixed = torch.ones(3, dtype=torch.int32 if rank % 2 else torch.float32)
    tall, wide = torch.ones(17 + rank, 2), torch.ones(4, 10 * (rank + 1))
    flat = torch.ones(*((6,) if rank == 0 else (2, 3)))
    refused(r"'allreduce\.noname.*shape differs.*\(17, 2\) on rank 0", lambda: hvd.allreduce(tall))
    refused("shape differs", lambda: hvd.allreduce(flat), lambda: hvd.reducescatter(flat))
    refused(
        "dtype differs .*float32 on rank.* 0.*int32 on rank.* 1",
        lambda: hvd.allreduce(mixed),
        lambda: hvd.allgather(mixed),
        lambda: hvd.broadcast(mixed, 0),
        lambda: hvd.alltoall(mixed, [3] + [0] * (world - 1)),
        lambda: hvd.reducescatter(mixed),
    )
    refused(
        "shape differs",
        lambda: hvd.allgather(wide),
        lambda: hvd.broadcast(wide, 0),
        lambda: hvd.alltoall(wide, [4] + [0] * (world - 1)),
        lambda: hvd.reducescatter(wide),
    )
    refused("root differs", lambda: hvd.broadcast(torch.ones(3), rank))
    op = hvd.Sum if rank else hvd.Max
    refused("op differs .* max on rank 0", lambda: hvd.allreduce(torch.ones(3), op=op))
    refused("prescale", lambda: hvd.allreduce(torch.ones(3), prescale_factor=1.0 + rank))
    same(hvd.allreduce(torch.ones(3)), torch.ones(3))


@case
def counters(rank: int, world: int) -> None:
    before = hvd.stats()["bytes_sent"]
    hvd.allreduce(torch.ones(10_000))
    assert hvd.stats()["bytes_sent"] - before >= 40_000


@case
def refused_on_one_rank(rank: int, world: int) -> None:
    """A call that was refused before it was announced takes no number of the unnamed calls."""
    if rank == 0:
        for call in (
            lambda: hvd.allreduce(torch.ones(3, dtype=torch.int16)),
            lambda: hvd.allreduce(torch.ones(3, dtype=torch.bool), op=hvd.Sum, prescale_factor=2.0),
            lambda: hvd.reducescatter(torch.tensor(1.0)),
            lambda: hvd.allgather(torch.tensor(1.0)),
        ):
            with pytest.raises((TypeError, ValueError)):
                call()
    same(hvd.allreduce(torch.ones(3)), torch.ones(3))
    same(hvd.reducescatter(torch.ones(world)), torch.ones(1))
    same(hvd.allgather(torch.ones(1)), torch.ones(world))


@case
def groups_that_fail_in_part(rank: int, world: int) -> None:
    pair = [torch.ones(3 + rank), torch.ones(200_000)]
    refused("shape differs", lambda: hvd.grouped_allreduce_(pair, op=hvd.Sum, name="part"))
    same(pair[1], torch.full((200_000,), float(world)))  # done; nothing arrives later
    refused("shape differs", lambda: hvd.grouped_allreduce_(pair, op=hvd.Sum, name="part"))
    named = [("part.a", pair[0]), ("part.b", pair[1])]
    for _ in range(2):
        refused("shape differs", lambda: hvd.broadcast_parameters(named, 0))


@case
def duplicates(rank: int, world: int) -> None:
    calls = [
        lambda: hvd.allreduce_async(torch.ones(3), name="twice"),
        lambda: hvd.allgather_async(torch.ones(3), name="twice"),
        lambda: hvd.broadcast_async(torch.ones(3), 0, name="twice"),
        lambda: hvd.reducescatter_async(torch.ones(world), name="twice"),
    ]
    handles = []
    if rank == 0:
        handles = [call() for call in calls]
        refused("'[a-z]+.twice' is in use", *calls)
        with pytest.raises(ValueError, match="twice"):
            calls[0]()
    hvd.barrier()
    for handle in handles or [call() for call in calls]:
        hvd.synchronize(handle)
    hvd.barrier()


@case
def barriers(rank: int, world: int) -> None:
    eye = torch.eye(5)
    handles = [
        hvd.broadcast_async(eye, 0),
        hvd.allgather_async(eye),
        hvd.allgather_async(torch.zeros(5, 5)),
        hvd.allreduce_async(eye),
    ]
    hvd.barrier()
    same(hvd.synchronize(handles[-1]), eye)
    hvd.barrier()


def _average_of(who: Sequence[int], rank: int, world: int, dtype: torch.dtype) -> None:
    """Average two fused tensors of these ranks; the other ranks have joined."""
    shapes = ((5, 5), (17,))
    handles = [
        hvd.allreduce_async(of(rank, shape, dtype, n), name=f"joining.{n}")
        for n, shape in enumerate(shapes)
    ]
    for n, (shape, handle) in enumerate(zip(shapes, handles, strict=True)):
        total = torch.stack([of(r, shape, dtype, n) for r in who]).sum(0)
        mean = (total / world).trunc() if dtype == torch.int32 else total / world
        same(hvd.synchronize(handle), mean.to(dtype))


@case
def joining(rank: int, world: int) -> None:
    for first, dtype, cached in itertools.product(
        range(world), (torch.int32, torch.float32), (False, True)
    ):
        if cached:
            _average_of(range(world), rank, world, dtype)
        if rank != first:
            who = f"rank {first} has joined"
            for _ in range(2):
                _average_of([r for r in range(world) if r != first], rank, world, dtype)
            refused(who, lambda: hvd.allgather(torch.ones(2)))
            refused(who, lambda: hvd.broadcast(torch.ones(2), 0, "j"))
            refused(f"{who}.*with max", lambda: hvd.allreduce(torch.ones(2), op=hvd.Max))
        last = hvd.join()
        assert last != first
        assert hvd.allgather(torch.tensor([last])).tolist() == [last] * world


@case
def process_sets_while_a_rank_has_joined(rank: int, world: int) -> None:
    kept = hvd.add_process_set(range(world - 1))
    if rank:
        refused("rank 0 has joined, but add_process_set needs", lambda: hvd.add_process_set([1]))
        refused("but remove_process_set needs", lambda: hvd.remove_process_set(kept))
        hvd.barrier()
    hvd.join()
    later = hvd.add_process_set([0, world - 1] if world > 2 else [1])
    if kept.included():
        same(hvd.allreduce(torch.ones(2), process_set=kept), torch.ones(2))
    if later.included():
        same(hvd.allreduce(torch.ones(2), process_set=later), torch.ones(2))
    assert hvd.remove_process_set(kept) and hvd.remove_process_set(later)


@case
def process_sets(rank: int, world: int) -> None:
    ranks = [r for r in range(world) if r % 2 == rank % 2]
    for _ in range(2):
        sets = [
            hvd.add_process_set(range(0, world, 2)),
            hvd.add_process_set(hvd.ProcessSet(range(1, world, 2))),
        ]
        mine, other = sets[rank % 2], sets[1 - rank % 2]
        assert mine.included() and not other.included()
        assert (mine.size(), mine.rank(), other.rank()) == (len(ranks), ranks.index(rank), None)
        _use_set(mine, ranks, rank)
        with pytest.raises(
            hvd.HorovodInternalError, match=f"but rank {rank} made a call of the set"
        ):
            hvd.allreduce(torch.ones(1), process_set=other)
        with pytest.raises(ValueError, match=r"use process set \d"):
            hvd.add_process_set(range(0, world, 2))
        assert all(hvd.remove_process_set(s) for s in sets)
        assert not hvd.remove_process_set(mine)
        assert mine.size() is None
        with pytest.raises(hvd.HorovodInternalError, match="not usable"):
            hvd.allreduce(torch.ones(1), process_set=mine)
    assert not hvd.remove_process_set(hvd.global_process_set)
    refused("process set differs between ranks", lambda: hvd.add_process_set([1] if rank else [0]))


def _use_set(mine: hvd.ProcessSet, ranks: Sequence[int], rank: int) -> None:
    place, root = ranks.index(rank), ranks[-1]
    total = torch.stack([of(r, (5,), torch.float32) for r in ranks]).sum(0)
    same(hvd.allreduce(of(rank, (5,), torch.float32), op=hvd.Sum, process_set=mine), total)
    found = hvd.allgather(torch.full((rank + 1,), rank), process_set=mine)
    assert found.tolist() == [r for r in ranks for _ in range(r + 1)]
    assert hvd.broadcast(torch.tensor(rank), root, process_set=mine).item() == root
    found = gradient(lambda t: hvd.broadcast(t, root, process_set=mine), torch.ones(2))
    same(found, torch.arange(2.0) * (rank == root))
    found = gradient(lambda t: hvd.allgather(t, process_set=mine), torch.ones(1))
    same(found, torch.tensor([float(place)]))
    found = hvd.alltoall(torch.arange(len(ranks)), process_set=mine)
    assert isinstance(found, torch.Tensor)
    assert found.tolist() == [place] * len(ranks)
    found = hvd.reducescatter(torch.ones(len(ranks) + 1), op=hvd.Sum, process_set=mine)
    assert found.tolist() == [len(ranks)] * (1 + (place == 0))
    hvd.barrier(mine)


def _run_cases(rank: int, world: int, addresses: list[str], job: str) -> int:
    torch.set_num_threads(1)
    threshold = str(1 << 12 if rank else 1 << 20)  # all ranks take rank 0's
    with initialized(rank, world, addresses, job, HOROVOD_FUSION_THRESHOLD=threshold):
        for function in CASES:
            try:
                function(rank, world)
            except BaseException as error:
                error.add_note(f"case {function.__name__}")
                raise
    return len(CASES)


# Four ranks may disagree in more ways than two.
@pytest.mark.parametrize("world", [pytest.param(2, marks=pytest.mark.long), 4])
def test_every_operation(addresses: list[str], job: str, world: int) -> None:
    assert run_ranks(world, _run_cases, addresses, job) == [len(CASES)] * world
