"""Rounds of quantised blocks: real engine states and real lanes, against the NumPy kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from reducer.wire.checks import ChunkTable
from reducer.wire.codes import Collective, DType, Flag, ReduceOp
from tests.support.block_rounds import DTYPES, F32, BlocksRound
from tests.support.one_worker import joined
from tests.support.simcluster import SimCluster

TABLES: list[ChunkTable] = [((0, 64),), ((0, 4_096),), ((0, 64), (1_000, 1_024))]
SIZES = (0, 1, 257, 3_003)


def sources_of(world: int, size: int, seed: int) -> dict[int, F32]:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((world, size)) * 10.0 ** rng.integers(-3, 3, (world, size))
    return {rank: values[rank].astype(np.float32) for rank in range(world)}


def run(
    cluster: SimCluster, round_: BlocksRound, sources: dict[int, F32],
    residuals: dict[int, F32] | None = None, in_place: bool = False,
) -> tuple[list[F32], list[Any]]:  # fmt: skip
    """One round of all ranks: their results and their operations."""
    world = len(sources)
    scatters = round_.collective == Collective.REDUCE_SCATTER
    targets, operations = [], []
    for rank, source in sources.items():
        given = source.copy()
        count = source.size // world if scatters else source.size
        target = given if in_place else np.full(count, np.nan, np.float32)
        targets.append(target)
        operations.append(
            cluster.submit(
                rank, round_.key, given, target, collective=round_.collective, op=round_.op,
                dtype=round_.dtype, wide=True, count=count, stochastic=round_.stochastic,
                residual=residuals[rank] if residuals else None,
            )
        )  # fmt: skip
    cluster.finish(operations)
    assert [operation.error for operation in operations] == [None] * world
    return targets, operations


@pytest.mark.parametrize("lanes", [(1,), (3,), (1, 2)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_every_dtype_gives_the_bits_of_the_reference(dtype: DType, lanes: tuple[int, ...]) -> None:
    table = TABLES[dtype % 3]
    cluster = SimCluster(3, lanes, table, seed=dtype, credit=64 << 10, digest_every=1)
    cluster.join()
    for number, size in enumerate(SIZES):
        op = (ReduceOp.SUM, ReduceOp.MEAN)[number % 2]
        round_ = BlocksRound(dtype, f"a{size}", op=op, table=table)
        sources = sources_of(3, size, number)
        expected = round_.expected(sources, 3)
        for found in run(cluster, round_, sources, in_place=number % 3 == 1)[0]:
            np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))
        scattered = BlocksRound(dtype, f"s{size}", 0, Collective.REDUCE_SCATTER, op, table)
        sources = sources_of(3, 3 * size, number)
        found = np.concatenate(run(cluster, scattered, sources)[0])
        expected = scattered.expected(sources, 3)
        np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))
    cluster.settle(0.6)
    assert cluster.held == 0
    assert [state.counters()["copy_bytes"] for state in cluster.states] == [0, 0, 0]


@pytest.mark.parametrize("stochastic", [False, True], ids=["nearest", "stochastic"])
@pytest.mark.parametrize("dtype", DTYPES[3:], ids=lambda dtype: dtype.name)
def test_residuals_carry_what_was_not_sent(dtype: DType, stochastic: bool) -> None:
    """The law of error feedback: all that was given = all that was sent + the residual."""
    table, size = TABLES[1], 5_011
    cluster = SimCluster(2, (2, 1), table, seed=dtype, credit=16 << 10)
    cluster.join()
    mine = {rank: np.zeros(size, np.float32) for rank in range(2)}
    reference = {rank: np.zeros(size, np.float32) for rank in range(2)}
    given, got, most = np.zeros(size), np.zeros(size), 0.0
    for number in range(3):
        round_ = BlocksRound(dtype, "k", number, table=table, stochastic=stochastic)
        sources = sources_of(2, size, number)
        expected = round_.expected(sources, 2, reference)
        # In place the sender would copy each chunk; with a residual the submitter does.
        found = run(cluster, round_, sources, mine, in_place=number == 1)[0]
        for rank in range(2):
            np.testing.assert_array_equal(found[rank], expected)
            np.testing.assert_array_equal(mine[rank], reference[rank])
        given += sum(source.astype(float) for source in sources.values())
        got += expected
        most = max(most, float(np.abs(expected).max()))
    lost = np.abs(got + mine[0] + mine[1] - given)
    assert lost.max() <= 3 * most * 2**-9, "only the rounding to bfloat16 loses anything for good"
    assert np.abs(got - given).sum() > lost.sum()


def test_stochastic_rounding_gives_the_same_bits_again() -> None:
    sources = sources_of(2, 9_001, 3)
    round_ = BlocksRound(DType.INT8_BLOCKS, "k", table=TABLES[1], stochastic=True)
    expected = round_.expected(sources, 2)
    for seed in range(2):  # of the order of arrival
        cluster = SimCluster(2, (1, 2), TABLES[1], seed=seed)
        cluster.join()
        for found in run(cluster, round_, sources)[0]:
            np.testing.assert_array_equal(found, expected)
    nearest = BlocksRound(DType.INT8_BLOCKS, "k", table=TABLES[1]).expected(sources, 2)
    assert (nearest != expected).any()


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_a_block_with_a_nan_is_nan_and_its_rank_is_named(dtype: DType) -> None:
    sources = sources_of(3, 1_000, 1)
    sources[1][300] = np.nan
    cluster = SimCluster(3, (2,), TABLES[1])
    cluster.join()
    targets, operations = run(cluster, BlocksRound(dtype, "k", table=TABLES[1]), sources)
    for target, operation in zip(targets, operations, strict=True):
        assert np.flatnonzero(np.isnan(target)).tolist() == list(range(256, 512))
        assert operation.flags == Flag.NAN | Flag.NONFINITE
        assert operation.culprit == (1, 0)


def test_an_older_lane_is_named() -> None:
    worker = joined()
    worker.disconnect()
    worker.tick(0.1)
    worker.back(minor=4)
    values = np.ones(4, np.float32)
    with pytest.raises(Exception, match=r"r0 .*speaks protocol 1\.4; .* needs 1\.5: upgrade"):
        worker.state.submit(
            Collective.ALL_REDUCE, ReduceOp.SUM, DType.E3M0_BLOCKS, True, "k", 0, 4, values, values
        )
    worker.state.submit(
        Collective.ALL_REDUCE, ReduceOp.SUM, DType.BFLOAT16, True, "k", 0, 4, values, values
    )
