"""NCCL's own calls on real GPUs: all-reduces go through the reducers, all else over our net."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from reducer_tools.nccl.versions import from_code, takes_functions
from tests.support import gpu_job, nccl_log
from tests.support.arrays import Array, expected, sample
from tests.support.gpu_job import Job, Member, introduce
from tests.support.libnccl import TYPES, Nccl
from tests.support.reducers import Reducers

pytestmark = pytest.mark.gpu

COUNTS = (1, 2_049, 1 << 20)
OPS = ("sum", "mean", "max")


def _parts(type_: str, count: int, world: int) -> list[Array]:
    dtype = np.dtype(getattr(ml_dtypes, type_, type_))
    # NCCL's mean of negative integers rounds as its version likes.
    return [abs(sample(dtype, count, (type_, count, rank))) for rank in range(world)]


def _expected(op: str, parts: list[Array]) -> Array:
    """As NCCL does it: a mean of floats is the sum of scaled parts, that of integers is divided."""
    if op != "mean":
        return expected(op, parts)
    dtype, world = parts[0].dtype, len(parts)
    if dtype.kind == "i":
        return expected("sum", parts) // world
    return expected("sum", [part * dtype.type(1 / world) for part in parts])


def _sums(member: Member, types: tuple[str, ...], ops: tuple[str, ...]) -> None:
    for type_ in types:
        for count in COUNTS:
            parts = _parts(type_, count, member.world)
            for op in ops:
                got = member.all_reduce(parts[member.rank], op, in_place=count % 2 == 1)
                wanted = _expected(op, parts)
                assert got.tobytes() == wanted.tobytes(), (type_, op, count, got, wanted)


def test_all_reduces_of_two_ranks_are_exact(
    library: Path, reducers: Reducers, tmp_path: Path
) -> None:
    job = Job(reducers.addresses, tmp_path, library)
    gpu_job.run(2, reducers, job, _sums, tuple(TYPES), OPS).assert_through_reducers()


def _large(member: Member, nbytes: int) -> None:
    """Small integers, of which float32 has every sum."""
    values = (np.arange(nbytes // 4, dtype=np.int64) % 4096).astype(np.float32)
    got = member.all_reduce(values + np.float32(member.rank), "sum")
    assert (got == values * member.world + np.float32(sum(range(member.world)))).all()


@pytest.mark.parametrize("nbytes", [4, 32 << 20, 256 << 20])
def test_the_smallest_and_the_largest(
    nbytes: int, library: Path, reducers: Reducers, tmp_path: Path
) -> None:
    job = Job(reducers.addresses, tmp_path, library)
    gpu_job.run(2, reducers, job, _large, nbytes).assert_through_reducers()


def _all_else(member: Member) -> None:
    count, (rank, world) = 70_001, (member.rank, member.world)
    given = [np.arange(count * world, dtype=np.int32) * (r + 1) for r in range(world)]
    device, comm = member.device, member.comm
    stream, whole, part = device.stream, given[rank], given[rank][:count]
    send, receive = device.put(whole), device.put(np.zeros_like(whole))

    def received(like: Array) -> Array:
        member.finish(comm)
        return device.read(receive, like)

    comm.broadcast(send, receive, whole.size, "int32", 1, stream)
    assert (received(whole) == given[1]).all()
    comm.all_gather(send, receive, count, "int32", stream)
    assert (received(whole) == np.concatenate([g[:count] for g in given])).all()
    comm.reduce_scatter(send, receive, count, "int32", "sum", stream)
    mine = slice(rank * count, (rank + 1) * count)
    assert (received(part) == np.sum([g[mine] for g in given], axis=0)).all()
    ahead, behind = (rank + 1) % world, (rank - 1) % world
    comm.exchange(send, ahead, receive, behind, whole.size, "int32", stream)
    assert (received(whole) == given[behind]).all()
    device.free({send, receive})
    assert (member.all_reduce(part, "sum") == sum(g[:count] for g in given)).all()


def test_all_other_collectives_run_over_our_net(
    library: Path, reducers: Reducers, tmp_path: Path
) -> None:
    job = Job(reducers.addresses, tmp_path, library)
    ended = gpu_job.run(2, reducers, job, _all_else)
    ended.assert_through_reducers()
    for log in ended.logs:
        assert nccl_log.nets(log) == {"REDUCER"}, log


@pytest.mark.parametrize("by_function", [False, True])
def test_both_generations_of_nccl(
    by_function: bool, library: Path, reducers: Reducers, tmp_path: Path
) -> None:
    """NCCL_ALGO is one name before 2.24, and a list by function from then on."""
    found = [
        path
        for path in gpu_job.libraries()
        if takes_functions(from_code(Nccl(path).version)) == by_function
    ]
    if not found:
        pytest.skip(
            f"no libnccl {'from 2.24 on' if by_function else 'before 2.24'}: make test-nccl"
        )
    job = Job(reducers.addresses, tmp_path, found[0])
    ended = gpu_job.run(2, reducers, job, _sums, ("float32", "bfloat16"), ("sum",))
    ended.assert_through_reducers()


def _two_communicators(member: Member) -> None:
    other = member.meet()
    parts = _parts("float32", 300_000, member.world)
    for _ in range(3):
        for comm, op in ((member.comm, "sum"), (other, "max")):
            got = member.all_reduce(parts[member.rank], op, comm)
            assert got.tobytes() == expected(op, parts).tobytes(), op


@pytest.mark.parametrize("world", [3, 4])
def test_several_communicators_of_more_ranks(
    world: int, library: Path, reducers: Reducers, tmp_path: Path
) -> None:
    job = Job(reducers.addresses, tmp_path, library)
    with gpu_job.start(world, job, _two_communicators) as ranks:
        introduce(ranks, world)
        ended = gpu_job.end(ranks, world, reducers, job)
    ended.assert_through_reducers()
