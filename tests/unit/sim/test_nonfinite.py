"""NaN and Inf are found in the sum, and blamed on the same rank in any order of arrival."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reducer.kernels import KernelSet, _native, _numpy
from reducer.wire.codes import Collective, DType, Flag, ReduceOp
from tests.support import oracle
from tests.support.simcluster import SimCluster

CHUNK = 1_024  # bytes
TABLE = ((0, CHUNK),)
ONE = {DType.BFLOAT16: 0x3F80, DType.FLOAT8_E4M3FN: 0x38, DType.FLOAT8_E5M2: 0x3C}
NAN = {DType.BFLOAT16: 0xFFC1, DType.FLOAT8_E4M3FN: 0xFF, DType.FLOAT8_E5M2: 0x7D}
INFINITY = {DType.BFLOAT16: 0xFF80, DType.FLOAT8_E5M2: 0xFC}


def values(dtype: DType, count: int, bad: dict[int, float]) -> np.ndarray:
    """Ones, except the elements in `bad`."""
    array = np.full(count, ONE.get(dtype, 1), oracle.NUMPY_DTYPES[dtype])
    for at, value in bad.items():
        special = NAN if np.isnan(value) else INFINITY
        array[at] = special.get(dtype, value)
    return array


def reduce(
    cluster: SimCluster, key: str, inputs: list[np.ndarray], order: list[int], **how: Any
) -> list[Any]:
    """Submit the operations of all ranks in `order`, and move bytes after each."""
    operations: dict[int, Any] = {}
    for rank in order:
        target = np.empty_like(inputs[rank])
        operations[rank] = cluster.submit(rank, key, inputs[rank], target, **how)
        cluster.settle(0.05)
    cluster.finish(list(operations.values()))
    return [operations[rank] for rank in range(len(inputs))]


def said(operations: list[Any]) -> set[tuple[int, tuple[int, int] | None]]:
    return {(op.flags, op.culprit) for op in operations if op.error is None}


@settings(max_examples=60, deadline=None)
@given(
    world=st.integers(1, 4),
    slots=st.sampled_from([(1,), (2,), (1, 1)]),
    dtype=st.sampled_from(oracle.FLOATS),
    op=st.sampled_from(oracle.OPS),
    data=st.data(),
)
def test_the_lowest_rank_is_named_in_every_order(
    world: int, slots: tuple[int, ...], dtype: DType, op: ReduceOp, data: st.DataObject
) -> None:
    item = np.dtype(oracle.NUMPY_DTYPES[dtype]).itemsize
    count = 3 * CHUNK // item + 5
    place = st.tuples(st.integers(0, world - 1), st.integers(0, count - 1))
    specials = [np.nan] if dtype == DType.FLOAT8_E4M3FN else [np.nan, -np.inf]
    bad = data.draw(st.lists(st.tuples(place, st.sampled_from(specials)), max_size=4))
    order = data.draw(st.permutations(range(world)))
    cluster = SimCluster(world, slots, TABLE, seed=data.draw(st.integers(0, 99)))
    cluster.join()
    inputs = [
        values(dtype, count, {at: value for (who, at), value in bad if who == rank})
        for rank in range(world)
    ]
    counts = op not in (ReduceOp.MIN, ReduceOp.MAX)
    guilty = [(rank, at) for (rank, at), value in dict(bad).items() if counts or np.isnan(value)]
    operations = reduce(cluster, "w", inputs, order, op=int(op), dtype=int(dtype))
    ((flags, culprit),) = said(operations)
    rank, at = min(guilty, default=(-1, 0))
    assert culprit == ((rank, at * item // CHUNK) if guilty else None)
    assert bool(flags & Flag.NONFINITE) == bool(guilty)


@pytest.mark.parametrize("kernels", [_native, _numpy], ids=["native", "numpy"])
@pytest.mark.parametrize("dtype", oracle.FLOATS)
def test_two_ranks_in_all_orders_of_arrival(kernels: KernelSet, dtype: DType) -> None:
    cluster = SimCluster(4, table=TABLE, kernels=kernels)
    cluster.join()
    inputs = [values(dtype, 9, {rank: np.nan} if rank in (1, 3) else {}) for rank in range(4)]
    for number, order in enumerate(itertools.permutations(range(4))):
        operations = reduce(cluster, f"k{number}", inputs, list(order), dtype=int(dtype))
        assert said(operations) == {(Flag.NAN | Flag.NONFINITE, (1, 0))}
    (job,) = cluster.lanes[0, 0].snapshot()["jobs"].values()
    assert job["nonfinite"] == ((1, 24),)


def test_what_is_folded_as_it_comes_names_the_lowest_rank_too() -> None:
    """float16 is folded out of order, from four contributions on."""
    cluster = SimCluster(6, table=TABLE)
    cluster.join()
    inputs = [
        values(DType.FLOAT16, 9, {rank: np.inf} if rank in (3, 5) else {}) for rank in range(6)
    ]
    for order in ([5, 4, 3, 2, 1, 0], [0, 5, 1, 3, 4, 2], [3, 2, 1, 0, 5, 4]):
        operations = reduce(cluster, "w", inputs, order, dtype=int(DType.FLOAT16))
        assert said(operations) == {(Flag.NONFINITE, (3, 0))}


def test_every_rank_hears_of_every_part_of_a_reduce_scatter() -> None:
    cluster = SimCluster(3, table=TABLE)
    cluster.join()
    inputs = [values(DType.FLOAT32, 9, {8: np.nan} if rank == 1 else {}) for rank in range(3)]
    operations = [
        cluster.submit(rank, "s", inputs[rank], np.empty(3, np.float32), count=3,
                       collective=int(Collective.REDUCE_SCATTER))
        for rank in range(3)
    ]  # fmt: skip
    cluster.finish(operations)
    assert said(operations) == {(Flag.NAN | Flag.NONFINITE, (1, 2))}


def test_what_is_only_moved_is_not_looked_at() -> None:
    cluster = SimCluster(2, table=TABLE)
    cluster.join()
    mine = values(DType.FLOAT32, 4, {0: np.nan})
    operations = [
        cluster.submit(rank, "g", mine, np.empty(8, np.float32),
                       collective=int(Collective.ALL_GATHER), op=int(ReduceOp.COPY))
        for rank in range(2)
    ]  # fmt: skip
    cluster.finish(operations)
    assert said(operations) == {(0, None)}


def test_a_sum_of_finite_values_that_is_not_finite_is_nobodys_fault() -> None:
    cluster = SimCluster(3, table=TABLE)
    cluster.join()
    for dtype, largest in ((DType.FLOAT16, 60_000), (DType.FLOAT32, 3e38)):
        inputs = [np.full(700, largest, oracle.NUMPY_DTYPES[dtype]) for _ in range(3)]
        operations = reduce(cluster, dtype.name, inputs, [2, 0, 1], dtype=int(dtype))
        assert said(operations) == {(Flag.NONFINITE, None)}
        inputs[2][699] = np.inf
        operations = reduce(cluster, dtype.name, inputs, [2, 0, 1], dtype=int(dtype))
        assert said(operations) == {(Flag.NONFINITE, (2, 699 * inputs[0].itemsize // CHUNK))}
    assert [state.counters()["nonfinite_rounds"] for state in cluster.states] == [4, 4, 4]


def test_what_does_not_fit_the_type_that_travels_is_that_ranks_fault() -> None:
    cluster = SimCluster(2, table=TABLE)
    cluster.join()
    inputs = [np.array([1e5 * rank, 1], np.float32) for rank in range(2)]
    operations = reduce(cluster, "w", inputs, [0, 1], dtype=int(DType.FLOAT16), wide=True)
    assert said(operations) == {(Flag.NONFINITE, (1, 0))}
