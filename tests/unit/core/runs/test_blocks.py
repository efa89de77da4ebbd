"""Rounds of quantised blocks on one lane: a contribution and its result may differ in size."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest

from reducer.kernels import load
from reducer.wire import messages
from reducer.wire.codes import Collective, DType, Flag, MessageKind, ReduceOp
from reducer.wire.keys import position
from reducer.wire.sizes import result_bytes
from tests.support.scripted import Scripted, Spec, join_all
from tests.support.simlane import SimLane

KERNELS = load()
COUNT = 700  # two blocks and a part of one
DTYPES = [
    DType.INT8_BLOCKS,
    DType.FLOAT8_E4M3FN_BLOCKS,
    DType.E3M0_BLOCKS,
    DType.INT8_BLOCKS_TO_BFLOAT16,
    DType.FLOAT8_E4M3FN_BLOCKS_TO_BFLOAT16,
    DType.E3M0_BLOCKS_TO_BFLOAT16,
]


def spec(dtype: DType, number: int = 0, count: int = COUNT) -> Spec:
    return Spec(dtype=dtype, op=ReduceOp.MEAN, count=count, number=number)


def part(worker: Scripted, of: Spec, chunk: int = 0, scale: float = 1.0) -> bytes:
    """The worker's contribution to a chunk."""
    rng = np.random.default_rng((worker.rank, of.number, chunk))
    plan = worker.plan(of)
    values = (rng.normal(size=plan.elements(chunk)) * scale).astype(np.float32)
    out = bytearray(plan.sends(chunk, worker.rank, 0))
    KERNELS.quantise(of.dtype, values.size, values, out)
    return bytes(out)


def reduced(of: Spec, parts: Sequence[bytes], elements: int = COUNT) -> bytes:
    """The result of one chunk, from one call of the kernel."""
    out = bytearray(result_bytes(of.dtype, elements))
    KERNELS.finish(of.op, of.dtype, elements, len(parts), None, parts, out)
    return bytes(out)


def contribute(worker: Scripted, of: Spec, data: bytes, chunk: int = 0, **fields: int) -> None:
    worker.contribute(of, chunk, data, **{"flags": int(Flag.WIDE), **fields})


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name.lower())
def test_blocks_are_summed_in_rank_order_whatever_the_arrival(dtype: DType) -> None:
    of = spec(dtype)
    for order in itertools.permutations(range(3)):
        lane = SimLane()
        workers = join_all(lane, 3)
        parts = [part(worker, of, scale=10.0**worker.rank) for worker in workers]
        for rank in order:
            contribute(workers[rank], of, parts[rank])
        assert {worker.results()[0] for worker in workers} == {reduced(of, parts)}
        assert len(lane.held) == 1  # only the result, until it is stable
        for worker in workers:
            worker.report("x", position(1, 0))
        assert not lane.held


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name.lower())
@pytest.mark.parametrize("world", [9, 17])
def test_parts_that_are_folded_early_give_the_same_bits(dtype: DType, world: int) -> None:
    """An accumulator of float32 is as large as four parts of int8, or eight of e3m0."""
    of = spec(dtype)
    lane = SimLane()
    workers = join_all(lane, world)
    parts = [part(worker, of, scale=10.0 ** (worker.rank % 4)) for worker in workers]
    for rank in random.Random(world).sample(range(world), world):
        contribute(workers[rank], of, parts[rank])
    assert {worker.results()[0] for worker in workers} == {reduced(of, parts)}
    assert len(lane.held) == 1


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name.lower())
def test_a_second_copy_is_answered_with_the_result(dtype: DType) -> None:
    of = spec(dtype, count=9_000)
    lane = SimLane()
    workers = join_all(lane, 2)
    plan = workers[0].plan(of)
    assert plan.chunks > 1
    for chunk in range(plan.chunks):
        parts = [part(worker, of, chunk) for worker in workers]
        for worker, data in zip(workers, parts, strict=True):
            contribute(worker, of, data, chunk)
        expected = reduced(of, parts, plan.elements(chunk))
        assert [worker.results() for worker in workers] == [[expected]] * 2
        contribute(workers[1], of, parts[1], chunk)
        assert workers[1].results() == [expected]


@pytest.mark.parametrize(
    ("fields", "change", "text"),
    [
        ({"flags": 0}, {}, "expected 0x1, since blocks hold float32"),
        ({"flags": int(Flag.WIDE | Flag.NAN)}, {}, "expected 0x1, since blocks hold float32"),
        ({}, {"op": ReduceOp.MAX}, "int8_blocks is for op sum and mean, got max"),
        (
            {},
            {"op": ReduceOp.COPY, "collective": Collective.BROADCAST},
            "int8_blocks is for op sum and mean, got copy",
        ),
        ({}, {"count": COUNT + 1}, "sent 712 bytes for chunk 0"),
    ],
)
def test_what_blocks_cannot_be_is_refused(
    fields: dict[str, int], change: dict[str, int], text: str
) -> None:
    lane = SimLane()
    workers = join_all(lane, 2)
    of = Spec(**{"dtype": DType.INT8_BLOCKS, "count": COUNT, **change})  # type: ignore[arg-type]
    contribute(workers[1], of, part(workers[1], spec(DType.INT8_BLOCKS)), **fields)
    assert text in workers[1].error().message
    assert not lane.held


def test_ranks_with_other_wires_are_told_both() -> None:
    lane = SimLane()
    workers = join_all(lane, 2)
    for worker, dtype in zip(workers, DTYPES[2:4], strict=True):
        worker.announce("x")
        contribute(worker, spec(dtype), part(worker, spec(dtype)))
    for worker in workers:
        (refused,) = worker.read(MessageKind.REFUSED)
        text = messages.decode(messages.Refused, refused.payload or b"").message
        assert "e3m0_blocks x 700 (wire type of a float32 tensor)" in text
        assert "int8_blocks_to_bfloat16 x 700 (wire type of a float32 tensor)" in text
    assert not lane.held
