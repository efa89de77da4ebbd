"""Collectives between real processes over real reducers, against an independent oracle."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

import reducer_client
from reducer_client import Group, NumericError
from tests.support.arrays import BFLOAT16, DTYPES, OPS, Array, expected, sample
from tests.support.ranks import run_ranks

SIZES = (0, 1, 7, 1000, 70_001)
TINY_CHUNKS = ((0, 1024), (4096, 4096))

# (world size, reducers, lanes): every world size, and every pair of the other two.
MATRIX = [(1, 1, 2), (2, 1, 1), (2, 2, 2), (3, 3, 1), (3, 1, 2), (5, 3, 2), (8, 2, 1)]


def _join(rank: int, world_size: int, addresses: list[str], job: str, **options: Any) -> Group:
    return reducer_client.connect(
        addresses, job=job, rank=rank, world_size=world_size, connect_timeout=60, **options
    )


def _check_all(rank: int, world: int, addresses: list[str], table: Any = None) -> str:
    """Every dtype, op and size against the oracle; the digest of all results."""
    digest = hashlib.sha256()
    with _join(rank, world, addresses, "matrix", chunk_table=table) as group:
        for dtype in DTYPES:
            for op in OPS:
                parts = [
                    [sample(dtype, size, (dtype.name, size, r)) for r in range(world)]
                    for size in SIZES
                ]
                works = [group.all_reduce(p[rank], op=op) for p in parts]  # type: ignore[arg-type]
                for work, part in zip(works, parts, strict=True):
                    result = work.wait(60)
                    assert result.tobytes() == expected(op, part).tobytes(), (
                        dtype,
                        op,
                        part[0].size,
                    )
                    digest.update(result.tobytes())
        for dtype in (DTYPES[0], DTYPES[3]):
            large = [sample(dtype, 1_310_719, (dtype.name, r)) for r in range(world)]
            result = group.all_reduce(large[rank], op="mean").wait(60)
            assert result.tobytes() == expected("mean", large).tobytes(), dtype
            digest.update(result.tobytes())
        _check_moves(group)
    return digest.hexdigest()


def _check_moves(group: Group) -> None:
    world, rank = group.world_size, group.rank
    for dtype in DTYPES[:4]:
        for rows in (0, 1, 300):
            parts = [sample(dtype, (world * rows, 3), (dtype.name, rows, r)) for r in range(world)]
            gathered = group.all_gather(parts[rank]).wait(60)
            assert gathered.tobytes() == np.stack(parts).tobytes()
            for root in {0, world - 1}:
                sent = group.broadcast(parts[rank], root=root).wait(60)
                assert sent.tobytes() == parts[root].tobytes()
            mine = group.reduce_scatter(parts[rank]).wait(60)
            whole = expected("sum", parts)
            assert mine.tobytes() == whole[rank * rows : (rank + 1) * rows].tobytes()
    group.barrier()


@pytest.mark.parametrize(("world", "reducers", "lanes"), MATRIX)
def test_results_equal_the_oracle_bit_for_bit(world: int, reducers: int, lanes: int) -> None:
    with reducer_client.local_reducers(reducers, lanes=lanes) as addresses:
        digests = run_ranks(world, _check_all, addresses)
        again = run_ranks(world, _check_all, addresses, TINY_CHUNKS) if world == 2 else digests
    assert len(set(digests)) == 1
    assert again == digests


def _special_values(rank: int, world: int, addresses: list[str], job: str) -> None:
    nan = np.array([0x7FC00001, 0xFFF12345, 0x80000000, 0x7F800001], np.uint32).view(np.float32)
    with _join(rank, world, addresses, job) as group:
        mine = nan if rank == 1 else np.zeros(4, np.float32)
        assert group.broadcast(mine, root=1).wait(30).tobytes() == nan.tobytes()
        assert group.all_gather(mine).wait(30)[1].tobytes() == nan.tobytes()

        zeros = np.array([0.0, -0.0, np.nan, 1.0], np.float32)
        other = np.array([-0.0, 0.0, 1.0, np.nan], np.float32)
        canonical = 0x7FC00000
        low = group.all_reduce((zeros, other)[rank % 2], op="min").wait(30).view(np.uint32)
        high = group.all_reduce((zeros, other)[rank % 2], op="max").wait(30).view(np.uint32)
        assert low.tolist() == [0x80000000, 0x80000000, canonical, canonical]
        assert high.tolist() == [0, 0, canonical, canonical]

        negative = group.all_reduce(np.array([-0.0], np.float64)).wait(30)
        assert np.signbit(negative[0])

        work = group.all_reduce(np.array([100, 1], np.int8))
        assert work.wait(30).tolist() == [np.int8(world * 100 - 256), world]
        assert work.overflow and not work.nan
        assert group.all_reduce(np.array([np.nan])).wait(30).view(np.uint64) == 0x7FF8 << 48

        means = group.all_reduce(np.array([-rank, rank, -7], np.int32), op="mean").wait(30)
        assert means.tolist() == [0, 0, -7]


def test_special_values(addresses: list[str], job: str) -> None:
    run_ranks(2, _special_values, addresses, job)


def _overflow_is_an_error(rank: int, world: int, addresses: list[str], job: str) -> str:
    with _join(rank, world, addresses, job, on_overflow="error") as group:
        work = group.all_reduce(np.full(3, 2**62, np.int64), key="big")
        with pytest.raises(NumericError) as caught:
            work.wait(30)
        assert group.all_reduce(np.ones(3, np.int64)).wait(30).tolist() == [world] * 3
    return str(caught.value)


def test_an_overflow_can_be_an_error(addresses: list[str], job: str) -> None:
    first, second = run_ranks(2, _overflow_is_an_error, addresses, job)
    assert first == second
    assert "'big', round 0" in first


def _count_bytes(rank: int, world: int, addresses: list[str], job: str) -> dict[str, Any]:
    mebibyte = 1 << 20
    counted = {}
    with _join(rank, world, addresses, job) as group:
        group.barrier()

        def measure(name: str, start: Any) -> None:
            before = group.stats()
            start().wait(60)
            after = group.stats()
            counted[name] = tuple(
                (after[what] - before[what]) / mebibyte for what in ("bytes_sent", "bytes_received")
            )

        measure("all_reduce", lambda: group.all_reduce(np.zeros(mebibyte, np.uint8)))
        measure("all_gather", lambda: group.all_gather(np.zeros(mebibyte, np.uint8)))
        measure("reduce_scatter", lambda: group.reduce_scatter(np.zeros((world, mebibyte), "u1")))
        measure("broadcast", lambda: group.broadcast(np.zeros(mebibyte, np.uint8), root=1))
    return counted


def test_only_the_bytes_that_must_travel_do(addresses: list[str], job: str) -> None:
    for rank, counted in enumerate(run_ranks(4, _count_bytes, addresses, job)):
        is_root = float(rank == 1)
        assert counted["all_reduce"] == pytest.approx((1, 1), abs=0.1)
        assert counted["all_gather"] == pytest.approx((1, 3), abs=0.1)
        assert counted["reduce_scatter"] == pytest.approx((4, 1), abs=0.1)
        assert counted["broadcast"] == pytest.approx((is_root, 1 - is_root), abs=0.1)


def _wire(rank: int, world: int, addresses: list[str], job: str) -> None:
    parts = [sample(np.dtype(np.float32), 3001, r) for r in range(world)]
    with _join(rank, world, addresses, job) as group:
        for wire, narrow in (("bfloat16", BFLOAT16), ("float16", np.dtype(np.float16))):
            result = group.all_reduce(parts[rank], op="mean", wire_dtype=wire).wait(30)  # type: ignore[arg-type]
            oracle = expected("mean", [p.astype(narrow) for p in parts]).astype(np.float32)
            assert result.tobytes() == oracle.tobytes()


def test_a_16_bit_wire_equals_the_sum_in_that_dtype(addresses: list[str], job: str) -> None:
    run_ranks(3, _wire, addresses, job)


def _fuse(rank: int, world: int, addresses: list[str], job: str) -> None:
    shapes = [(int(n),) for n in np.random.default_rng(3).integers(0, 5000, 40)]
    parts: list[list[Array]] = [
        [sample(DTYPES[i % 5], shape, (i, r)) for i, shape in enumerate(shapes)]
        for r in range(world)
    ]
    with _join(rank, world, addresses, job) as group:
        results = group.all_reduce_many(parts[rank], op="mean", fusion_threshold=20_000).wait(60)
    for index, result in enumerate(results):
        oracle = expected("mean", [part[index] for part in parts])
        assert result.tobytes() == oracle.tobytes()


def test_fusion_gives_the_same_bits_as_single_arrays(addresses: list[str], job: str) -> None:
    run_ranks(3, _fuse, addresses, job)


def _one_gibibyte(rank: int, world: int, addresses: list[str]) -> None:
    array = np.full(1 << 28, rank + 1, np.float32)
    with _join(rank, world, addresses, "gibibyte") as group:
        group.all_reduce(array, out=array).wait(240)
    assert array.min() == array.max() == sum(range(1, world + 1))


@pytest.mark.timeout(300)
def test_one_gibibyte_through_a_reducer_of_256_mebibytes() -> None:
    with reducer_client.local_reducers(1, memory="256MiB") as addresses:
        run_ranks(2, _one_gibibyte, addresses, timeout=250)
