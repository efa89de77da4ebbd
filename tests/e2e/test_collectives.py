"""Collectives between real processes over real reducers, against an independent oracle."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import reducer_client
from reducer.core.limits.budget import PART_OF_FREE
from reducer_client import Group, NumericError
from tests.support.arrays import BFLOAT16, DTYPES, Array, expected, ops_of, sample
from tests.support.cluster import Daemon
from tests.support.counts import draws
from tests.support.ranks import join, run_ranks
from tests.support.weighed import Weighed

SIZES = (0, 1, 7, 1000, 70_001)
SIZES_OF_A_ROW = draws(1, len(SIZES))
LARGE_SIZES = (300_007, 1_310_719)[: draws(1, 2)]
TINY_CHUNKS = ((0, 1024), (4096, 4096))

WORLDS, REDUCERS, LANES = (1, 2, 3, 5, 8), (1, 2, 3), (1, 2)
# (world size, reducers, lanes): every pair of two of them; the full matrix is in one process, in
# tests/unit/sim/test_matrix.py.
MATRIX = [
    (world, reducers, LANES[(row + column) % 2])
    for row, world in enumerate(WORLDS)
    for column, reducers in enumerate(REDUCERS)
]
# The rows that also move large arrays, and the rows that are repeated with tiny chunks.
LARGE = [(1, 1, 1), (2, 2, 1), (5, 3, 2)]
TINY = [(2, 1, 2), (3, 3, 1)]


def test_the_matrix_has_every_pair() -> None:
    values = (WORLDS, REDUCERS, LANES)
    for first, second in itertools.combinations(range(3), 2):
        covered = {(row[first], row[second]) for row in MATRIX}
        assert covered == set(itertools.product(values[first], values[second]))
    assert {*LARGE, *TINY} <= set(MATRIX)


def _sizes_of(row: int, dtype: int) -> list[int]:
    """Some of the sizes; all rows together give every size to every dtype."""
    return [SIZES[(row + dtype + number) % len(SIZES)] for number in range(SIZES_OF_A_ROW)]


def test_every_dtype_meets_every_size() -> None:
    for dtype in range(len(DTYPES)):
        met = [size for row in range(len(MATRIX)) for size in _sizes_of(row, dtype)]
        assert min(met.count(size) for size in SIZES) >= 3


def _check_all(
    rank: int, world: int, addresses: list[str], row: int, large: bool = False, table: Any = None
) -> str:
    """Reduce every dtype with every op; returns a digest. Rank 0 compares with the oracle."""
    digest = hashlib.sha256()
    with join(rank, world, addresses, "matrix", chunk_table=table) as group:
        for number, dtype in enumerate(DTYPES):
            _check_all_reduces(group, dtype, ops_of(dtype), _sizes_of(row, number), digest)
        for dtype in (DTYPES[0], DTYPES[3]) if large else ():
            _check_all_reduces(group, dtype, ("mean",), LARGE_SIZES, digest)
        _check_moves(group)
    return digest.hexdigest()


def _check_all_reduces(
    group: Group, dtype: np.dtype[Any], ops: Sequence[Any], sizes: Sequence[int], digest: Any
) -> None:
    def part(size: int, rank: int) -> Array:
        return sample(dtype, size, (dtype.name, size, rank))

    mine = [part(size, group.rank) for size in sizes]
    everyone = range(group.world_size if group.rank == 0 else 0)
    parts = [[part(size, rank) for rank in everyone] for size in sizes]
    for op in ops:
        works = [group.all_reduce(array, op=op) for array in mine]
        for work, of_all, size in zip(works, parts, sizes, strict=True):
            result = work.wait(60)
            if of_all:
                assert result.tobytes() == expected(op, of_all).tobytes(), (dtype, op, size)
            digest.update(result.tobytes())


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


@pytest.mark.parametrize("lanes", [1, pytest.param(2, marks=pytest.mark.long)])
def test_results_equal_the_oracle_bit_for_bit(lanes: int) -> None:
    """A row with fewer reducers uses the first ones: the others would be processes to start."""
    with reducer_client.local_reducers(max(REDUCERS), lanes=lanes) as started:
        for number, row in enumerate(MATRIX):
            if row[2] != lanes:
                continue
            addresses = started[: row[1]]
            digests = run_ranks(row[0], _check_all, addresses, number, row in LARGE)
            assert len(set(digests)) == 1, row
            if row in TINY:
                tiny = run_ranks(row[0], _check_all, addresses, number, False, TINY_CHUNKS)
                assert tiny == digests, row


def _special_values(rank: int, world: int, addresses: list[str], job: str) -> None:
    nan = np.array([0x7FC00001, 0xFFF12345, 0x80000000, 0x7F800001], np.uint32).view(np.float32)
    with join(rank, world, addresses, job) as group:
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
        _bits(group)


TRUTH = np.array([[False, False, True, True], [False, True, False, True]])
OF_BOOL: dict[Any, Any] = {
    **dict.fromkeys(("sum", "max", "bor"), np.logical_or),
    **dict.fromkeys(("prod", "min", "band"), np.logical_and),
    "bxor": np.logical_xor,
}


def _bits(group: Group) -> None:
    """Every op on every pair of bools; bitwise ops also with reduce_scatter."""
    for op, of_bool in OF_BOOL.items():
        result = group.all_reduce(TRUTH[group.rank], op=op).wait(30)
        assert result.dtype == np.bool_ and np.array_equal(result, of_bool(*TRUTH)), op
        (many,) = group.all_reduce_many([TRUTH[group.rank]], op=op).wait(30)
        assert many.dtype == np.bool_ and np.array_equal(many, of_bool(*TRUTH)), op
        part = group.reduce_scatter(TRUTH[group.rank], op=op).wait(30)
        mine = slice(2 * group.rank, 2 * group.rank + 2)
        assert part.dtype == np.bool_ and np.array_equal(part, of_bool(*TRUTH)[mine]), op
    in_place = TRUTH[group.rank].copy()
    assert group.all_reduce(in_place, op="sum", out=in_place).wait(30) is in_place
    masks = np.array([[0b1100, -1], [0b1010, 7]])
    for bitwise, total in (("band", [8, 7]), ("bor", [14, -1]), ("bxor", [6, -8])):
        result = group.reduce_scatter(masks[group.rank], op=bitwise).wait(30)  # type: ignore[arg-type]
        assert result.tolist() == [total[group.rank]]


def test_special_values(addresses: list[str], job: str) -> None:
    run_ranks(2, _special_values, addresses, job)


def _overflow_is_an_error(rank: int, world: int, addresses: list[str], job: str) -> str:
    with join(rank, world, addresses, job, on_overflow="error") as group:
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
    with join(rank, world, addresses, job) as group:
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
    with join(rank, world, addresses, job) as group:
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
    with join(rank, world, addresses, job) as group:
        results = group.all_reduce_many(parts[rank], op="mean", fusion_threshold=20_000).wait(60)
    for index, result in enumerate(results):
        oracle = expected("mean", [part[index] for part in parts])
        assert result.tobytes() == oracle.tobytes()


def test_fusion_gives_the_same_bits_as_single_arrays(addresses: list[str], job: str) -> None:
    run_ranks(3, _fuse, addresses, job)


BIG = draws(1 << 26, 1 << 30)  # bytes


def _blocks() -> Iterator[tuple[slice, Array]]:
    """Blocks of a big float32 array whose chunks all differ and whose sums are exact."""
    step = 1 << 22
    for start in range(0, BIG // 4, step):
        yield (
            slice(start, start + step),
            (np.arange(start, start + step) % 4_999_999).astype(np.float32),
        )


def _one_big_array(rank: int, world: int, addresses: list[str]) -> None:
    array = np.empty(BIG // 4, np.float32)
    for part, block in _blocks():
        array[part] = block * (rank + 1)
    with join(rank, world, addresses, "big") as group:
        group.all_reduce(array, out=array).wait(240)
    for part, block in _blocks():
        assert np.array_equal(array[part], block * sum(range(1, world + 1))), part


@pytest.mark.timeout(300)
def test_an_array_through_a_reducer_with_a_quarter_of_its_memory() -> None:
    """The credits use up their part of the budget; the lane's buffers never exceed it."""
    with Daemon("--memory", str(BIG // 4), "--credit", str(BIG)) as daemon, Weighed(daemon) as held:
        run_ranks(2, _one_big_array, [daemon.address], timeout=250)
    assert 0 < held.most <= BIG / 4 / PART_OF_FREE
