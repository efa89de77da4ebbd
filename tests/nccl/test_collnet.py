"""What the CollNet half of the NCCL plugin computes over real reducers, called as NCCL calls it."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from reducer.kernels import load
from reducer.wire.codes import DType
from reducer_tools.nccl import structs
from reducer_tools.nccl.tables import NcclError
from tests.support.arrays import expected, sample
from tests.support.block_rounds import BlocksRound
from tests.support.nccl_job import exchange, meet, run, start, values
from tests.support.nccl_tables import CollNet, reg_mr
from tests.support.ranks import RunningRanks, Tell
from tests.support.reducers import Reducers


@pytest.fixture(scope="module")
def five() -> Iterator[list[str]]:
    """The addresses of five reducers, where each communicator is a run of its own."""
    with Reducers(5) as reducers:
        yield reducers.addresses


@pytest.fixture(scope="module")
def addresses(five: list[str]) -> list[str]:
    """The addresses of two reducers."""
    return five[:2]


def _dtype(type_: str) -> Any:
    return np.dtype(getattr(ml_dtypes, type_, type_))


# --- one table after the other ------------------------------------------------------------------


def _whole_life(coll: CollNet, comm: Any, rank: int, world: int, tell: Tell) -> list[Any]:
    assert coll.name == "REDUCER"
    (device, *_) = coll.devices()
    assert (device["name"], device["ptrSupport"], device["maxRecvs"]) == (b"lo", structs.HOST, 1)
    if coll.version >= 9:
        assert 0 < device["maxCollBytes"] <= 1 << 40
    with pytest.raises(NcclError):
        coll.call("getProperties", 99, None)
    assert all(coll.supports(type_, op) for type_ in range(12) for op in range(4))
    assert not coll.supports(12, 0) and not coll.supports(0, 4)
    send = np.arange(300_001, dtype=np.float32) + rank
    receive = np.empty_like(send)
    for _ in range(2):
        mhandle = reg_mr(coll, comm, send.ctypes.data, send.nbytes)
        coll.call("deregMr", comm, mhandle)
    with pytest.raises(NcclError):
        reg_mr(coll, comm, send.ctypes.data, send.nbytes, structs.CUDA)
    request = coll.all_reduce(comm, send, receive, "float32", "sum")
    assert request is not None
    assert coll.wait(request) == send.nbytes
    total = world * np.arange(300_001, dtype=np.float32) + sum(range(world))
    assert receive.tobytes() == total.tobytes()
    return [line for line in coll.lines if line[0] == "INFO"]


@pytest.mark.parametrize("version", structs.VERSIONS)
def test_every_version_of_the_table_works(addresses: list[str], version: int) -> None:
    lines = run(3, addresses, _whole_life, version=version)
    assert any("REDUCER_NET_THREADS=auto" in text for _, text in lines[0])
    assert any("sums over 2 reducers" in text for _, text in lines[0])
    assert all("NET/REDUCER" in text for _, text in lines[0])


def _sums(
    coll: CollNet, comm: Any, rank: int, world: int, tell: Tell, counts: Sequence[int],
    types: Sequence[str], ops: Sequence[str],
) -> str:  # fmt: skip
    """The digest of the results, which rank 0 compares to the oracle."""
    digest = hashlib.sha256()
    for type_ in types:
        for count in counts:
            mine = sample(_dtype(type_), count, (type_, count, rank))
            everyone = range(world if rank == 0 else 0)
            parts = [sample(_dtype(type_), count, (type_, count, r)) for r in everyone]
            for op in ops:
                receive = mine.copy()
                in_place = count % 2 == 1
                request = coll.all_reduce(comm, receive if in_place else mine, receive, type_, op)
                assert request is not None
                coll.wait(request)
                if parts:
                    assert receive.tobytes() == expected(op, parts).tobytes(), (type_, op, count)
                digest.update(receive.tobytes())
    return digest.hexdigest()


def _narrow(coll: CollNet, comm: Any, rank: int, world: int, tell: Tell) -> str:
    """Only sums of float32 in all-reduces are narrowed."""
    count = 70_001
    parts = {r: sample(_dtype("float32"), count, r) for r in range(world)}
    receive = np.empty(count, np.float32)
    coll.wait(coll.all_reduce(comm, parts[rank], receive, "float32", "sum"))
    blocks = BlocksRound(DType.INT8_BLOCKS_TO_BFLOAT16, "", kernels=load())
    assert receive.tobytes() == blocks.expected(parts, world).tobytes()
    coll.wait(coll.all_reduce(comm, parts[rank], receive, "float32", "max"))
    assert receive.tobytes() == expected("max", [*parts.values()]).tobytes()
    return "".join(text for _, text in coll.lines)


def test_a_narrow_wire_is_for_sums_of_float32_and_says_so(addresses: list[str]) -> None:
    for lines in run(3, addresses, _narrow, REDUCER_WIRE_DTYPE="int8"):
        assert "sums of float32 as int8, so their results are not exact" in lines


def test_every_type_and_operation_is_exact_and_alike_in_every_run(addresses: list[str]) -> None:
    work = ((1, 2, 1000, 70_001), structs.TYPES, structs.OPS)
    first = run(3, addresses, _sums, *work)
    again = run(3, addresses, _sums, *work, version=8)
    assert len({*first, *again}) == 1


@pytest.mark.parametrize(("world", "reducers"), [(1, 1), (1, 5), (2, 1), (2, 5), (8, 2)])
def test_any_number_of_ranks_and_reducers(five: list[str], world: int, reducers: int) -> None:
    work = ((1, 3, 524_288), ("float32", "bfloat16"), ("sum",))
    assert len(set(run(world, five[:reducers], _sums, *work))) == 1


def _garbage(coll: CollNet, comm: Any, rank: int, world: int, tell: Tell) -> None:
    send = np.full(65_536, rank + 1, np.float16)
    send[60_000:] = [np.nan, np.inf, -np.inf, 6e-8][rank % 4]
    receive = np.empty_like(send)
    request = coll.all_reduce(comm, send, receive, "float16", "sum")
    assert request is not None
    coll.wait(request)
    assert (receive[:60_000] == sum(range(1, world + 1))).all()


def test_garbage_in_a_tail_harms_nothing_else(addresses: list[str]) -> None:
    run(2, addresses, _garbage)


# --- concurrency --------------------------------------------------------------------------------


def _many(coll: CollNet, comm: Any, rank: int, world: int, tell: Tell) -> int:
    count, guard = 65_536, 64
    memory = [np.full(count + 2 * guard, 77, np.int32) for _ in range(65)]
    sends = [np.full(count, rank + number, np.int32) for number in range(65)]
    requests = [
        coll.all_reduce(comm, send, whole[guard:-guard], "int32", "sum")
        for send, whole in zip(sends[:64], memory[:64], strict=True)
    ]
    assert all(request is not None for request in requests)
    assert coll.all_reduce(comm, sends[64], memory[64][guard:-guard], "int32", "sum") is None
    for number in reversed(range(64)):
        assert coll.wait(requests[number]) == 4 * count
    for number, whole in enumerate(memory[:64]):
        assert (whole[guard:-guard] == world * number + sum(range(world))).all()
        assert (whole[:guard] == 77).all() and (whole[-guard:] == 77).all()
    request = coll.all_reduce(comm, sends[64], memory[64][guard:-guard], "int32", "sum")
    assert request is not None
    coll.wait(request)
    return int(memory[64][guard])


def test_64_requests_are_in_flight_and_tested_in_any_order(addresses: list[str]) -> None:
    assert run(3, addresses, _many) == [3 * 64 + 3] * 3


def _windows(coll: CollNet, comm: Any, rank: int, world: int, tell: Tell) -> None:
    per_rank, step = 3_000, 4_096  # bytes per rank, bytes per window
    row = np.concatenate([sample(np.dtype(np.int32), 750, ("row", r)) for r in range(world)])
    given = [sample(np.dtype(np.float32), 750 * world, ("sum", r)) for r in range(world)]
    total = expected("sum", given)
    gathered, scattered = np.empty_like(row), np.zeros(750, np.float32)
    for begin in range(0, row.nbytes, step):
        end = min(begin + step, row.nbytes)
        mine = slice(max(begin, rank * per_rank), min(end, (rank + 1) * per_rank))
        window = gathered[begin // 4 : end // 4]
        request = coll.all_gather(
            comm, row[mine.start // 4 : mine.stop // 4], window, per_rank, begin
        )
        coll.wait(request)
        at = max(0, mine.start - rank * per_rank) // 4
        request = coll.reduce_scatter(
            comm, given[rank][begin // 4 : end // 4], scattered[at:], per_rank, begin,
            "float32", "sum",
        )  # fmt: skip
        coll.wait(request)
    assert gathered.tobytes() == row.tobytes()
    assert scattered.tobytes() == total[rank * 750 : (rank + 1) * 750].tobytes()


@pytest.mark.parametrize("version", [8, 9, 12])
def test_windows_of_all_gather_and_reduce_scatter(addresses: list[str], version: int) -> None:
    run(3, addresses, _windows, version=version)


def _two_comms(coll: CollNet, comm: Any, rank: int, world: int, tell: Tell) -> list[str]:
    other = meet(coll, rank, tell)
    digests = ["", ""]

    def work(index: int, of: Any) -> None:
        digests[index] = _sums(coll, of, rank, world, tell, (70_001,), ("float32",), ("sum", "max"))

    threads = [threading.Thread(target=work, args=pair) for pair in enumerate((comm, other))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    coll.close(other)
    return digests


def test_two_communicators_of_one_process_at_once(addresses: list[str]) -> None:
    with start(2, addresses, _two_comms) as ranks:
        exchange(ranks, 2)
        digests = values(ranks.collect(60))
    assert "" not in digests[0] and len({digest for pair in digests for digest in pair}) == 1


def _own_sums(coll: CollNet, comm: Any, rank: int, world: int, tell: Tell, job: str) -> None:
    tell("joined")
    tell.hear()  # the other job has joined, too
    for turn in range(20):
        parts = [sample(np.dtype(np.float32), 70_001, (job, turn, r)) for r in range(world)]
        receive = np.empty_like(parts[rank])
        request = coll.all_reduce(comm, parts[rank], receive, "float32", "sum")
        assert request is not None
        coll.wait(request)
        assert receive.tobytes() == expected("sum", parts).tobytes(), (job, turn)


def test_two_jobs_with_the_same_reducers(addresses: list[str]) -> None:
    with ExitStack() as stack:
        jobs = [
            stack.enter_context(start(2, addresses, _own_sums, job, REDUCER_JOB=job))
            for job in ("one", "two")
        ]
        for step in (RunningRanks.receive, RunningRanks.send):
            for job in jobs:
                for rank in range(2):
                    step(job, rank)
        for job in jobs:
            values(job.collect(60))
