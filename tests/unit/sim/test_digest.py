"""Ranks compare digests of results: differences are found, and there are no false alarms."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import engine_parts
import msgpack  # type: ignore[import-untyped]  # ships no stubs
import numpy as np
import pytest

from reducer.core.surface import events
from reducer.wire.codes import Collective, DType, ErrorCode, MessageKind, ReduceOp
from reducer.wire.header import HEADER_SIZE, Header, pack_header, unpack_header
from reducer.wire.keys import key_id
from tests.support.checksum import crc32c
from tests.support.frames import frame
from tests.support.simcluster import SimCluster, StuckError
from tests.support.simlane import SimLane

TABLE = ((0, 1_024),)
COUNT = 700  # float32: three chunks


def lie(lane: SimLane, about: Callable[[Header], bool], ranks: set[int]) -> None:
    """Make the lane send these ranks (in order of sessions) changed results with right CRCs."""
    honest = lane._send

    def send(output: events.Send) -> None:
        header = unpack_header(output.frame[:HEADER_SIZE], crc32c)
        victims = [s for s in output.sessions if s - 1 in ranks]
        if header.kind != MessageKind.RESULT or not header.length or not about(header):
            return honest(output)
        payload = bytearray(output.buffer.view[: output.length])  # type: ignore[union-attr]
        payload[7] ^= 0x10
        forged = pack_header(header.replace(payload_crc=crc32c(payload)), crc32c)
        what = (output.frame, output.buffer, output.length)
        for session in output.sessions:
            if session in victims:
                lane.sessions[session].outbox += forged + payload
            else:
                one = events.Send(output.run, (session,), *what)
                honest(one)
        return None

    lane._send = send  # type: ignore[method-assign]


def turn(cluster: SimCluster, *keys: str) -> None:
    """Run one round of each key; each rank has its own order."""
    operations = []
    for rank in range(len(cluster.states)):
        for key in random.Random(f"{rank} {keys}").sample(keys, len(keys)):
            mine = np.full(COUNT, rank + 1, np.float32)
            operations.append(cluster.submit(rank, key, mine, np.empty_like(mine)))
    cluster.finish(operations)


def comparisons(cluster: SimCluster) -> int:
    """The number of rounds that the lanes have seen, including the client's comparisons."""
    (job,) = cluster.lanes[0, 0].snapshot()["jobs"].values()
    return int(job["rounds"])


def errors(cluster: SimCluster) -> list[tuple[int, str, int, str]]:
    cluster.settle(1.0)
    return [state.error[:4] for state in cluster.states if state.error is not None]


@pytest.mark.parametrize("every", [1, 2, 3])
def test_equal_results_pass_whatever_the_order(every: int) -> None:
    cluster = SimCluster(3, table=TABLE, digest_every=every, seed=every)
    cluster.join()
    for _ in range(6):
        turn(cluster, "a", "b", "c")
    cluster.settle(1.0)
    assert errors(cluster) == []
    assert comparisons(cluster) == 18 + 3 * (6 // every)
    cluster.leave()
    assert cluster.held == 0


class HeldBack(SimCluster):
    """A cluster in which no byte passes between the rank and slot in `held_back`."""

    held_back: tuple[int, int] | None = None

    def _moves(self, rank: int, reducer: int) -> bool:
        return (rank, reducer) != self.held_back


def test_rounds_that_end_out_of_order_are_compared_in_order() -> None:
    cluster = HeldBack(2, (1, 1), TABLE, digest_every=1)
    cluster.join()
    sources = [np.ones(500, np.float32), np.ones(1, np.float32)]  # two chunks, one chunk
    first, second = (cluster.submit(0, "w", source, source.copy()) for source in sources)
    cluster.settle(0.5)
    cluster.held_back = (0, (key_id("w") + 1) % 2)  # the owner of the second chunk
    for source in sources:
        cluster.finish([cluster.submit(1, "w", source, source.copy())])
    cluster.pump(lambda: bool(second.done))
    assert not first.done
    cluster.held_back = None
    cluster.finish([first])
    assert errors(cluster) == []


def test_every_collective_is_compared_as_far_as_ranks_get_the_same() -> None:
    cluster = SimCluster(3, table=TABLE, digest_every=1)
    cluster.join()
    calls: dict[str, dict[str, Any]] = {
        "gather": {"collective": int(Collective.ALL_GATHER), "op": int(ReduceOp.COPY)},
        "scatter": {"collective": int(Collective.REDUCE_SCATTER), "count": COUNT // 3},
        "wide": {"dtype": int(DType.BFLOAT16), "wide": True},
        "empty": {"count": 0},
    }
    for key, how in calls.items():
        count = 0 if key == "empty" else COUNT - COUNT % 3
        size = {"gather": 3 * count, "scatter": COUNT // 3}.get(key, count)
        operations = [
            cluster.submit(rank, key, np.full(count, rank / 3, np.float32),
                           np.empty(size, np.float32), **how)
            for rank in range(3)
        ]  # fmt: skip
        cluster.finish(operations)
    mine = np.arange(COUNT, dtype=np.float32)
    cast = {"collective": int(Collective.BROADCAST), "op": int(ReduceOp.COPY), "root": 1}
    operations = [
        cluster.submit(rank, "cast", mine if rank == 1 else None,
                       None if rank == 1 else np.empty_like(mine), count=COUNT, **cast)
        for rank in range(3)
    ]  # fmt: skip
    cluster.finish(operations)
    assert errors(cluster) == []


@pytest.mark.parametrize(
    ("every", "bad_round", "window"), [(1, 2, "round 2"), (4, 1, "rounds 0 to 3")]
)
def test_a_lane_that_lies_to_one_rank_is_found(every: int, bad_round: int, window: str) -> None:
    cluster = SimCluster(4, table=TABLE, digest_every=every)
    cluster.join()
    lie(cluster.lanes[0, 0], lambda h: (h.round, h.chunk, h.dtype) == (bad_round, 1, 1), {2})
    for _ in range(4):
        turn(cluster, "w")
        if errors(cluster):
            break
    said = errors(cluster)
    assert len(said) == 4 and len(set(said)) == 1
    code, text, rank, reason = said[0]
    assert (code, rank, reason) == (ErrorCode.INTEGRITY, 2, "digest")
    assert text.startswith(
        f"the results of 'w' in {window} differ between the ranks: ranks 0, 1, 3 have one result, "
        "rank 2 has another; "
    )


def test_without_a_majority_all_are_named() -> None:
    cluster = SimCluster(2, table=TABLE, digest_every=1)
    cluster.join()
    lie(cluster.lanes[0, 0], lambda h: h.dtype == DType.FLOAT32, {0})
    turn(cluster, "w")
    (said,) = set(errors(cluster))
    assert "rank 0 has one result, rank 1 has another" in said[1]


def test_moved_bytes_that_differ_are_found() -> None:
    cluster = SimCluster(3, table=TABLE, digest_every=1)
    cluster.join()
    lie(cluster.lanes[0, 0], lambda h: h.dtype == DType.FLOAT32, {1})
    operations = [
        cluster.submit(rank, "g", np.ones(9, np.float32), np.empty(27, np.float32),
                       collective=int(Collective.ALL_GATHER), op=int(ReduceOp.COPY))
        for rank in range(3)
    ]  # fmt: skip
    cluster.finish(operations)
    (said,) = set(errors(cluster))
    assert "ranks 0, 2 have one result, rank 1 has another" in said[1]


def test_memory_that_changes_after_the_receipt_is_found() -> None:
    """In the last round of a window the digest covers the bytes in the caller's array."""
    cluster = SimCluster(2, table=TABLE, digest_every=1)
    cluster.join()
    mine = np.ones(COUNT, np.float32)
    targets = [np.zeros_like(mine) for _ in range(2)]
    operations = [cluster.submit(rank, "w", mine, targets[rank]) for rank in range(2)]
    cluster.cut = 40
    cluster.pump(lambda: targets[1][0] == 2)
    targets[1][0] = 0  # after the CRC check
    cluster.cut = 0
    cluster.finish(operations)
    (said,) = set(errors(cluster))
    assert "rank 0 has one result, rank 1 has another" in said[1]


@pytest.mark.parametrize("every", [0, 1])
def test_rank_0_decides_how_often(every: int) -> None:
    cluster = SimCluster(2, table=TABLE, digest_every=every)
    cluster.states[1] = engine_parts.State(
        reducers=1, job="job", rank=1, world_size=2, chunk_table=list(TABLE), silence=30.0,
        digest_every=1 - every,
    )  # fmt: skip
    cluster.join()
    turn(cluster, "w")
    cluster.settle(1.0)
    assert errors(cluster) == []
    assert comparisons(cluster) == 1 + every


def test_a_reducer_of_an_older_release_is_named() -> None:
    cluster = SimCluster(2, table=TABLE, digest_every=1)
    lane = cluster.lanes[0, 0]
    honest = lane._send

    def send(output: events.Send) -> None:
        header = unpack_header(output.frame[:HEADER_SIZE], crc32c)
        if header.kind == MessageKind.WELCOME:
            welcome = msgpack.unpackb(output.frame[HEADER_SIZE:])
            assert welcome.pop("digest_every") == 1
            changed = frame(header, msgpack.packb(welcome))
            what = (changed, output.buffer, output.length)
            output = events.Send(output.run, output.sessions, *what)
        honest(output)

    lane._send = send  # type: ignore[method-assign]
    with pytest.raises(StuckError):
        cluster.join()
    assert cluster.states[0].error is not None
    assert "does not pass digest_every on: it runs an older release" in cluster.states[0].error[1]
