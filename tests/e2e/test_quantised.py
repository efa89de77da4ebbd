"""Quantised wires between real processes over real reducers, against the kernels in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from reducer.kernels import load
from reducer.wire.codes import Collective, DType, ReduceOp
from reducer_client import Group, Quantized
from reducer_client.quantized import BLOCKS_NAMES
from tests.support.block_rounds import F32, BlocksRound
from tests.support.cluster import Daemon
from tests.support.ranks import Tell, join, run_ranks, start_ranks
from tests.support.reducers import Reducers

TABLE = ((0, 2_048), (20_000, 8_192))
SIZES = (1, 255, 5_001)
WIRES = [Quantized(name, down) for name in BLOCKS_NAMES for down in ("bfloat16", "same")]
WORLD = 3


def values(rank: int, size: int, turn: int = 0) -> F32:
    rng = np.random.default_rng((rank, size, turn))
    return rng.standard_normal(size, dtype=np.float32)


def everyone(size: int, turn: int = 0) -> dict[int, F32]:
    return {rank: values(rank, size, turn) for rank in range(WORLD)}


def same(found: Any, expected: F32) -> None:
    assert found.tobytes() == expected.tobytes()


def _collectives(rank: int, world: int, address: str, job: str) -> None:
    with join(rank, world, address, job, chunk_table=TABLE) as group:
        for wire in WIRES:
            for op, size in (("sum", SIZES[0]), ("mean", SIZES[1]), ("sum", SIZES[2])):
                key = f"{wire}.{size}"
                work = group.all_reduce(values(rank, size), op, key, wire_dtype=wire)  # type: ignore[arg-type]
                blocks = BlocksRound(wire.code, key, op=ReduceOp[op.upper()], table=TABLE)
                same(work.wait(30), blocks.expected(everyone(size), world))
            rows = values(rank, 3 * 1_001).reshape(-1, 7)
            part = group.reduce_scatter(rows, "mean", f"{wire}.rs", wire_dtype=wire).wait(30)
            blocks = BlocksRound(
                wire.code, f"{wire}.rs", 0, Collective.REDUCE_SCATTER, ReduceOp.MEAN, TABLE
            )
            whole = blocks.expected(everyone(3 * 1_001), world)
            same(part, whole.reshape(3, -1)[rank])
            assert part.shape == (143, 7)
        _with_feedback(group)


def _with_feedback(group: Group) -> None:
    """Three rounds with residuals, at random and in place, alone and fused."""
    wire = Quantized("e3m0", rounding="stochastic")
    shapes = [(5, 60), (30_011,), (1,)]
    size = sum(int(np.prod(shape)) for shape in shapes)
    mine, fused = np.zeros(size, np.float32), [np.zeros(shape, np.float32) for shape in shapes]
    alone_of = {rank: np.zeros(size, np.float32) for rank in range(WORLD)}
    fused_of = {rank: np.zeros(size, np.float32) for rank in range(WORLD)}
    for turn in range(3):
        given = values(group.rank, size, turn)
        result = given.copy()
        group.all_reduce(result, "mean", "k", result, wire, residual=mine).wait(30)
        expected = _round("k", turn).expected(everyone(size, turn), WORLD, alone_of)
        same(result, expected)
        same(mine, alone_of[group.rank])
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
        arrays = [part.reshape(s) for part, s in zip(np.split(given, ends), shapes, strict=True)]
        work = group.all_reduce_many(arrays, "mean", 1 << 20, "m", wire, residuals=fused)
        expected = _round("m", turn).expected(everyone(size, turn), WORLD, fused_of)
        same(np.concatenate([part.ravel() for part in work.wait(30)]), expected)
        same(np.concatenate([part.ravel() for part in fused]), fused_of[group.rank])


def _round(key: str, turn: int) -> BlocksRound:
    return BlocksRound(
        DType.E3M0_BLOCKS_TO_BFLOAT16, key, turn, op=ReduceOp.MEAN, table=TABLE, stochastic=True,
        kernels=load(),
    )  # fmt: skip


@pytest.mark.parametrize("lanes", [1, 3])
def test_every_wire_gives_the_bits_of_the_reference(lanes: int, job: str) -> None:
    with Daemon("--lanes", str(lanes)) as daemon:
        run_ranks(WORLD, _collectives, daemon.address, job)


def _nonfinite(rank: int, world: int, addresses: list[str], job: str) -> None:
    with join(rank, world, addresses, job, transport="tcp") as group:
        array = np.ones(1_000, np.float32)
        array[300] = np.nan if rank == 1 else 1
        for wire in WIRES:
            residual = np.zeros_like(array)
            work = group.all_reduce(array, wire_dtype=wire, residual=residual)
            result = work.wait(30)
            assert np.flatnonzero(np.isnan(result)).tolist() == list(range(256, 512))
            assert work.nan and work.nonfinite and work.nonfinite_rank == 1
            assert np.isfinite(residual).all()


def test_a_nan_spoils_its_block_and_its_rank_is_named(addresses: list[str], job: str) -> None:
    run_ranks(2, _nonfinite, addresses, job)


COUNT = 300_007


def _train(rank: int, world: int, addresses: list[str], job: str, tell: Tell) -> None:
    """Rounds with error feedback until rank 0 hears "stop"; every rank checks every bit."""
    wire = Quantized("int8", "same", "stochastic")
    residual = np.zeros(COUNT, np.float32)
    of_all = {each: np.zeros(COUNT, np.float32) for each in range(world)}
    with join(rank, world, addresses, job) as group:
        table, turn, go_on = group.settings.chunk_table, 0, True
        while go_on:
            result = group.all_reduce(
                values(rank, COUNT, turn), key="k", wire_dtype=wire, residual=residual
            ).wait(60)
            blocks = BlocksRound(wire.code, "k", turn, table=table, stochastic=True, kernels=load())
            same(result, blocks.expected(everyone(COUNT, turn), world, of_all))
            same(residual, of_all[rank])
            turn += 1
            stop = np.zeros(1, np.int32)
            if rank == 0:
                tell(turn)
                stop[0] = tell.hear() == "stop"
            go_on = not group.broadcast(stop, root=0, key="stop").wait(60)[0]


def test_a_killed_reducer_changes_no_bit_and_no_residual(job: str) -> None:
    with Reducers(2) as reducers:
        ranks = start_ranks(WORLD, _train, reducers.addresses, job, talk=True)
        with ranks:
            for turn in range(8):
                assert ranks.receive(0, 60) == turn + 1
                if turn == 2:  # the next round is on its way then
                    ranks.send(0, "on")
                    reducers.kill(1)
                else:
                    ranks.send(0, "stop" if turn == 7 else "on")
            for outcome in ranks.collect(60):
                assert outcome.error is None and outcome.reported, outcome


def test_refusals_say_what_is_expected(solo: Group) -> None:
    array = np.ones(10, np.float32)
    for wire in ("int8", Quantized("e3m0")):
        with pytest.raises(TypeError, match=r"expected float32, the only dtype"):
            solo.all_reduce(array.astype(np.float64), wire_dtype=wire)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"with op='max': expected op sum or mean, or wire_dty"):
            solo.reduce_scatter(array, "max", wire_dtype=wire)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"down='float32': expected one of bfloat16, same"):
        Quantized("int8", "float32")  # type: ignore[arg-type]
    for residual, text in (
        (np.zeros(9, np.float32), r"expected shape \(10,\), got \(9,\)"),
        (np.zeros(10), "expected a NumPy array of float32, got float64"),
        ([0.0] * 10, "expected a NumPy array of float32, got list"),
        (np.zeros(20, np.float32)[::2], "expected a writable, C-contiguous, aligned array"),
        (array, "expected its own memory"),
    ):
        with pytest.raises((TypeError, ValueError), match=text):
            solo.all_reduce(array, wire_dtype="int8", residual=residual)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected a wire_dtype that is quantised"):
        solo.all_reduce(array, wire_dtype="bfloat16", residual=np.zeros_like(array))
    with pytest.raises(ValueError, match="residuals: expected one for each array, 1"):
        solo.all_reduce_many([array], wire_dtype="int8", residuals=[])
    # Integers that are int8 are sent as they are.
    assert solo.all_reduce(np.arange(3, dtype=np.int8), wire_dtype="int8").wait()[2] == 2
