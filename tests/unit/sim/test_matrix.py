"""Real engine states and real lanes in this process: every result equals the oracle's bits.

All combinations of world size, numbers of reducers and lanes, dtype and op are tested. The seed
picks sizes, chunk tables, arrival orders and cuts of the stream for each case. In a short run each
place gets some of the seeds, and all places together get all seeds. The oracle is
tests/support/oracle.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from reducer.kernels import _numpy
from reducer.wire.checks import ChunkTable
from reducer.wire.codes import Collective, DType, ReduceOp
from tests.support import oracle
from tests.support.counts import draws
from tests.support.simcluster import SimCluster

WORLDS = (1, 2, 3, 5, 8)
PLACES = [(1,) * 1, (2,), (1, 1), (2, 2), (1, 1, 1), (2, 2, 2)]
SEEDS = 20
SEEDS_OF_A_PLACE = draws(1, SEEDS)
SIZES = (0, 1, 2, 3, 31, 63, 64, 65, 255, 1_000, 1_025, 2_049, 4_099, 10_007)
# Bytes; about 100 KB to 1 MiB.
LARGE_BYTES = (100_008, 131_088, 196_616, 262_136, 393_240, 1_048_584)
TABLES: list[ChunkTable] = [
    ((0, 4_096),),
    ((0, 64), (256, 1_024), (8_192, 8_192)),
    ((0, 65_536),),
]
CASES = [(dtype, op) for dtype in oracle.NUMPY_DTYPES for op in oracle.ops_of(dtype)]


def all_reduces(
    cluster: SimCluster, cases: list[tuple[DType, ReduceOp, int]], seed: int, order_seed: int
) -> None:
    """Submit every case on every rank, each rank in its own order; check every bit."""
    world = len(cluster.states)
    rng = np.random.default_rng(seed)
    inputs = [[oracle.sample(rng, dtype, count) for _ in range(world)] for dtype, _, count in cases]
    targets = [[np.empty_like(part) for part in parts] for parts in inputs]
    operations: list[Any] = []
    for rank in range(world):
        order = np.random.default_rng([order_seed, rank]).permutation(len(cases))
        for number in order:
            dtype, op, count = cases[number]
            operations.append(
                cluster.submit(
                    rank,
                    f"{dtype.name}.{op.name}.{count}",
                    inputs[number][rank],
                    targets[number][rank],
                    op=int(op),
                    dtype=int(dtype),
                )
            )
    cluster.finish(operations)
    assert all(operation.error is None for operation in operations)
    for (dtype, op, count), parts, results in zip(cases, inputs, targets, strict=True):
        expected = oracle.reduce(op, dtype, parts).tobytes()
        for rank, result in enumerate(results):
            assert result.tobytes() == expected, (dtype.name, op.name, count, rank)


def cases_of(seed: int) -> list[tuple[DType, ReduceOp, int]]:
    """Every dtype and op at one of the small sizes, and four of them at a large and odd one."""
    cases = [
        (dtype, op, SIZES[(number + seed) % len(SIZES)]) for number, (dtype, op) in enumerate(CASES)
    ]
    for number in range(4 * seed, 4 * seed + 4):
        dtype, op = CASES[number % len(CASES)]
        size = LARGE_BYTES[number % len(LARGE_BYTES)]
        cases.append((dtype, op, size // np.dtype(oracle.NUMPY_DTYPES[dtype]).itemsize | 1))
    return cases


def seeds_of(world: int, lanes_by_slot: tuple[int, ...]) -> list[int]:
    first = WORLDS.index(world) * len(PLACES) + PLACES.index(lanes_by_slot)
    return [
        (first + number * SEEDS // SEEDS_OF_A_PLACE) % SEEDS for number in range(SEEDS_OF_A_PLACE)
    ]


def test_the_seeds_give_every_dtype_and_op_all_small_sizes_and_a_large_one() -> None:
    seeds = {seed for world in WORLDS for place in PLACES for seed in seeds_of(world, place)}
    found = {case for seed in seeds for case in cases_of(seed)}
    assert found >= {(dtype, op, size) for dtype, op in CASES for size in SIZES}
    assert {(dtype, op) for dtype, op, size in found if size > max(SIZES)} == set(CASES)


@pytest.mark.parametrize("lanes_by_slot", PLACES, ids=str)
@pytest.mark.parametrize("world", WORLDS)
def test_every_dtype_and_op_in_drawn_arrival_orders(
    world: int, lanes_by_slot: tuple[int, ...]
) -> None:
    """Each order runs every dtype and op at one size.

    Over the 20 seeds every dtype and op meets all small sizes, once or twice, and one large one.
    """
    for seed in seeds_of(world, lanes_by_slot):
        cluster = SimCluster(
            world, lanes_by_slot, TABLES[seed % len(TABLES)], seed, credit=64 << 10
        )
        cluster.join()
        all_reduces(cluster, cases_of(seed), seed, order_seed=seed + 1_000)
        cluster.settle(0.6)
        assert cluster.held == 0, "every result is stable: no buffer may be left"


@pytest.mark.parametrize("cut", [1, 79, 81, 1 << 20])
def test_streams_cut_anywhere_from_the_join_to_the_last_byte(cut: int) -> None:
    """All frames of both ends, from HELLO to results, come in pieces of `cut` bytes."""
    cluster = SimCluster(3, (2, 1), ((0, 64), (256, 1_024)), seed=cut)
    cluster.cut = cut
    cluster.join()
    cases = [(dtype, op, 40) for dtype, op in CASES[::4]]
    all_reduces(cluster, cases, seed=1, order_seed=2)
    cluster.settle(0.6)
    assert cluster.held == 0


@pytest.mark.parametrize("world", WORLDS)
def test_a_reducer_on_the_numpy_kernels_gives_the_same_bits(world: int) -> None:
    cluster = SimCluster(world, (1, 2), TABLES[1], seed=world, kernels=_numpy)
    cluster.join()
    cases = [(dtype, op, SIZES[n % len(SIZES)]) for n, (dtype, op) in enumerate(CASES)]
    all_reduces(cluster, cases, seed=world, order_seed=world)


# 8 CPU seconds; the drawn orders have four large sizes each, up to a mebibyte.
@pytest.mark.long
@pytest.mark.parametrize("dtype", oracle.NUMPY_DTYPES, ids=lambda dtype: dtype.name)
def test_mebibytes_and_an_odd_rest(dtype: DType) -> None:
    """Every op, each with a different world size, place and arrival order."""
    item = np.dtype(oracle.NUMPY_DTYPES[dtype]).itemsize
    count = (5 << 20) // item + 1
    for number, op in enumerate(oracle.ops_of(dtype)):
        turn = int(dtype) + number
        world, place = WORLDS[turn % len(WORLDS)], PLACES[turn % len(PLACES)]
        cluster = SimCluster(world, place, ((0, 131_072),), seed=5 * int(dtype) + number)
        cluster.cut = 1 << 20
        cluster.join()
        all_reduces(cluster, [(dtype, op, count)], seed=number, order_seed=0)


@pytest.mark.parametrize("lanes_by_slot", [(1,), (2, 2), (1, 2, 1)], ids=str)
@pytest.mark.parametrize("world", WORLDS)
def test_forwarding_passes_every_byte(world: int, lanes_by_slot: tuple[int, ...]) -> None:
    """broadcast, all_gather and reduce_scatter; NaN payloads and -0.0 pass untouched."""
    for seed, count in enumerate((0, 1, 7, 1_025, 10_007)):
        cluster = SimCluster(world, lanes_by_slot, TABLES[seed % 3], seed)
        cluster.join()
        rng = np.random.default_rng(seed)
        bits = rng.integers(0, 1 << 32, (world, count), dtype=np.uint32)
        bits.flat[: min(3, bits.size)] = (0x7FC12345, 0x80000000, 0xFFA00001)[: bits.size]
        values = bits.view(np.float32)
        root = seed % world
        operations: list[Any] = []
        received = [np.zeros(count, np.float32) for _ in range(world)]
        gathered = [np.zeros((world, count), np.float32) for _ in range(world)]
        scattered = [np.zeros(count, np.int64) for _ in range(world)]
        wide = rng.integers(-1_000, 1_000, (world, world, count))
        for rank in range(world):
            source = values[root] if rank == root else None
            target = None if rank == root else received[rank]
            operations += [
                cluster.submit(rank, "b", source, target, collective=Collective.BROADCAST,
                               op=ReduceOp.COPY, root=root, count=count),
                cluster.submit(rank, "g", values[rank], gathered[rank],
                               collective=Collective.ALL_GATHER, op=ReduceOp.COPY, count=count),
                cluster.submit(rank, "s", wide[rank], scattered[rank],
                               collective=Collective.REDUCE_SCATTER, op=ReduceOp.SUM,
                               dtype=DType.INT64, count=count),
                cluster.submit(rank, "w", None, None, collective=Collective.BARRIER,
                               op=ReduceOp.NONE, dtype=DType.UINT8, count=0),
            ]  # fmt: skip
        cluster.finish(operations)
        assert all(operation.error is None for operation in operations)
        for rank in range(world):
            if rank != root:
                assert received[rank].tobytes() == values[root].tobytes()
            assert gathered[rank].tobytes() == values.tobytes()
            assert scattered[rank].tobytes() == wide.sum(axis=0)[rank].tobytes()
