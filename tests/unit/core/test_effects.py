"""If an output fails, its run ends on every rank; no sum lacks a part (law 10)."""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import Any

import numpy as np
import pytest

from reducer.core.rounds.round import Step
from reducer.core.surface import events
from reducer.wire import messages
from reducer.wire.codes import DType, ErrorCode, MessageKind
from reducer.wire.header import Buffer
from reducer.wire.keys import key_id, position
from tests.support.checksum import crc32c
from tests.support.frames import control, heartbeat
from tests.support.scripted import TABLE, Scripted, Spec, join_all
from tests.support.simcluster import SimCluster, StuckError
from tests.support.simlane import InjectedError, SimLane

WORLD = 6  # four parts of bfloat16 are folded into a separate accumulator
CHUNKS = 3
ROUNDS = 2
COUNT = CHUNKS * TABLE[0][1] // 2  # elements of 16 bits
ONE = 0x3F80  # 1.0 in bfloat16; the next exponent doubles it
TOTAL = 0x427C  # 63.0 = 1 + 2 + 4 + 8 + 16 + 32
KINDS = ("Close", "Finish", "Fold", "Free", "Log", "Send", "Traced", "memory")


def part(rank: int) -> bytes:
    return np.full(COUNT, ONE + (rank << 7), np.uint16).tobytes()


class Nth:
    """Raises at the nth call of a kind, or at every nth; `seen` counts the calls."""

    def __init__(self, kind: str = "", n: int = 0, every: bool = False) -> None:
        self.kind, self.n, self.every = kind, n, every
        self.seen: Counter[str] = Counter()
        self.raised = 0

    def __call__(self, what: events.Output | int) -> None:
        kind = "memory" if isinstance(what, int) else type(what).__name__
        self.seen[kind] += 1
        calls = self.seen[kind]
        if kind == self.kind and (calls % self.n == 0 if self.every else calls == self.n):
            self.raised += 1
            raise InjectedError(f"{kind} {calls}")


def work(workers: list[Scripted]) -> list[list[bytes]]:
    """Rounds of several chunks, one of them in descending rank order; the results by rank."""
    results: list[list[bytes]] = [[] for _ in workers]
    for number in range(ROUNDS):
        spec = Spec(number=number, dtype=DType.BFLOAT16, count=COUNT)
        for chunk in range(CHUNKS):
            for worker in reversed(workers) if chunk == 1 else workers:
                data = part(worker.rank)[: TABLE[0][1]]
                worker.contribute(spec, chunk, data)
        for worker, got in zip(workers, results, strict=True):
            got += worker.results()
        for worker in workers[:-1] if number == ROUNDS - 1 else workers:
            worker.report("x", position(number + 1, 0))
    return results


def play(inject: Nth) -> SimLane:
    """Play a whole job beside another one, and check every promise."""
    lane = SimLane(traced=True)
    beside = join_all(lane, 1, job="beside")[0]
    workers = join_all(lane, WORLD)
    lane.inject = inject
    results = work(workers)
    stop(workers[0])
    lane.inject = lambda what: None
    check_outcome(workers, results)
    beside.contribute(Spec(), data=bytes(32))
    assert beside.results() == [bytes(32)]
    assert len(lane.core._roster.runs) == 1
    for worker in (*workers, beside):
        worker.session.disconnect()
    lane.tick(10.0)
    assert not lane.held and not lane.core._roster.runs
    return lane


def stop(worker: Scripted) -> None:
    """End the run for all ranks, with parked buffers and results that are not stable."""
    for data in (bytes(32), b"\x01" * 32):
        worker.contribute(Spec(key="y"), data=data)


def check_outcome(workers: list[Scripted], results: list[list[bytes]]) -> None:
    """Assert that all ranks got the right sums, or that the run ended for all."""
    right = np.full(TABLE[0][1] // 2, TOTAL, np.uint16).tobytes()
    assert {result for got in results for result in got} <= {right}
    for worker in workers:
        assert worker.session.closed is not None, f"rank {worker.rank} would wait for ever"
    if not all(len(got) == ROUNDS * CHUNKS for got in results):
        for worker in workers:
            assert worker.error().code == ErrorCode.INTERNAL


def calls() -> Counter[str]:
    inject = Nth()
    play(inject)
    return inject.seen


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_fails_once_a_round_is_right_or_ends_for_every_rank(kind: str) -> None:
    total = calls()[kind]
    assert total
    for n in range(1, total + 1):
        inject = Nth(kind, n)
        lane = play(inject)
        assert inject.raised == 1
        assert any(f"{kind} {n}" in text for text in lane.logs)


@pytest.mark.parametrize("kind", ["Finish", "Fold", "Free", "Log", "Traced", "memory"])
def test_whatever_fails_again_and_again_a_round_is_right_or_ends(kind: str) -> None:
    for n in range(1, calls()[kind] + 1):
        inject = Nth(kind, n, every=True)
        play(inject)
        assert inject.raised


def test_the_ranks_are_told_what_has_failed() -> None:
    lane = SimLane()
    workers = join_all(lane, WORLD)
    lane.inject = Nth("memory", WORLD - 1)  # four parts, then the accumulator
    work(workers)
    for worker in workers:
        error = worker.error()
        assert error.code == ErrorCode.INTERNAL and "memory 5" in error.message
    assert lane.snapshot()["errors"]["internal"] == 1


def test_a_bug_while_results_are_freed_keeps_no_buffer() -> None:
    failing: list[bool] = []

    def crc(data: Buffer) -> int:
        if failing:
            failing.clear()
            raise MemoryError("injected")
        return crc32c(data)

    lane = SimLane(crc32c=crc, credit=4_096)
    workers = join_all(lane, 2)
    for worker in workers:
        worker.contribute(Spec(count=1_024), data=bytes(4_096))
        worker.report("x", 0)
    workers[0].report("x", position(1, 0))
    failing.append(True)
    workers[1].report("x", position(1, 0))
    for worker in workers:
        assert worker.error().code == ErrorCode.INTERNAL
    assert not lane.held and not lane.core._roster.runs


@pytest.mark.parametrize("calls", [1, 2, 4, 5])
def test_a_bug_in_a_tick_ends_one_run(calls: int) -> None:
    """`calls` is the failing CRC: HEARTBEAT and ABSENT have two each, another run has the third."""
    left: list[int] = []

    def crc(data: Buffer) -> int:
        if left and left.pop() == 1:
            raise MemoryError("injected")
        return crc32c(data)

    lane = SimLane(crc32c=crc)
    workers = join_all(lane, 3)
    beside = join_all(lane, 1, job="beside")[0]
    for worker in workers:
        worker.contribute(Spec(key="y"), data=bytes(32))
        worker.contribute(Spec(), data=bytes(32))
        worker.report("x", position(1, 0))
    workers[2].session.disconnect()
    lane.now += 0.5
    left += range(1, calls + 1)
    lane.feed(events.Tick())
    assert not left
    for worker in workers[:2]:
        assert worker.error().code == ErrorCode.INTERNAL
    assert beside.read(MessageKind.HEARTBEAT) and len(lane.core._roster.runs) == 1
    assert not lane.held


@pytest.mark.parametrize("changed", [True, False])
def test_a_bug_in_a_tick_ends_a_run_that_forms(changed: bool) -> None:
    """The tick sends PENDING if ranks have come or gone since the last one, else HEARTBEAT."""
    failing: list[bool] = []

    def crc(data: Buffer) -> int:
        if failing:
            failing.clear()
            raise MemoryError("injected")
        return crc32c(data)

    lane = SimLane(crc32c=crc)
    waiting = [Scripted(lane, rank, 3) for rank in range(2)]
    if not changed:
        lane.tick(lane.settings.heartbeat)
    lane.now += lane.settings.heartbeat
    failing.append(True)
    lane.feed(events.Tick())
    for worker in waiting:
        assert worker.error().code == ErrorCode.INTERNAL
    assert not lane.core._roster.forming and not failing
    assert lane.snapshot()["errors"]["internal"] == len(waiting)


def test_what_a_chunk_has_given_up_is_not_dropped_with_its_run() -> None:
    """Regression: a bug between the two steps gave one buffer to two chunks: wrong sums."""
    lane = SimLane()
    workers = join_all(lane, 3)
    for worker in workers[:2]:
        worker.contribute(Spec(), data=bytes(32))
    (members,) = lane.core._roster.runs.values()
    (chunk,) = (c for s in members.run.streams for r in s.rounds for c in r.chunks.values())
    chunk.contribute(2, 0, lane.take(32), lane.now)
    chunk.step(Step.LAST_KERNEL)
    parts = list(chunk.parts.values())
    assert chunk.complete(parts[2], 0) == parts[:2]
    freed: list[Any] = []
    chunk.drop(freed)
    assert freed == parts[2:]


class FailingOnce(dict[Any, Any]):
    """A dict that has no memory for the next item."""

    fails = True

    def __setitem__(self, key: Any, value: Any) -> None:
        if self.fails:
            self.fails = False
            raise InjectedError("no memory")
        super().__setitem__(key, value)


def test_a_connection_that_could_not_be_counted_keeps_no_room() -> None:
    """Regression: the end of the connection raised, and its run's memory stayed reserved."""
    lane = SimLane()
    workers = join_all(lane, 2)
    connections = lane.core._roster.connections
    workers[1].session.disconnect()
    connections._of = FailingOnce(connections._of)
    back = Scripted(lane, 1, 2, run_id="run", rejoin=True)
    assert not connections._of.fails and back.error().code == ErrorCode.INTERNAL
    back.session.disconnect()
    again = Scripted(lane, 1, 2, run_id="run", rejoin=True)
    for worker in (workers[0], again):
        worker.session.disconnect()
    lane.tick(10.0)
    assert lane.snapshot()["reserved_bytes"] == 0 and not connections._of


@pytest.mark.parametrize("what", ["sessions", "incarnations"])
def test_a_rank_that_could_not_be_admitted_is_not_here(what: str) -> None:
    """Regression: the rank stayed in the forming run, which its next process could not join."""
    lane = SimLane()
    first = Scripted(lane, 0, 3)
    (forming,) = lane.core._roster.forming.values()
    setattr(forming, what, FailingOnce(getattr(forming, what)))
    second = Scripted(lane, 1, 3)
    assert second.error().code == ErrorCode.INTERNAL
    for worker in (first, second):
        worker.session.disconnect()
    assert not lane.core._roster.forming
    again = join_all(lane, 2)
    assert all(worker.read(MessageKind.WELCOME) for worker in again)


def test_too_many_keys_in_a_heartbeat_keep_no_buffer() -> None:
    lane = SimLane(max_keys=1)
    workers = join_all(lane, 2, slot=1, reducers=2)
    workers[0].session.send(control(messages.Route(1, (1, 0), (0, 1), (1, 1))))
    key = next(f"k{n}" for n in range(100) if key_id(f"k{n}") % 2 == 0)
    for worker in workers:
        worker.contribute(Spec(key=key), data=bytes(32), route=1)
    done = (key_id(key), position(1, 0))
    for worker in workers:
        worker.session.send(heartbeat(done, (key_id("one more"), 1), route=1))
        assert worker.error().code == ErrorCode.QUOTA
    assert not lane.held


def test_a_frame_of_no_run_that_fails_ends_the_session_that_misses_it() -> None:
    lane = SimLane()
    lane.inject = Nth("Send", 1)  # PENDING
    first = Scripted(lane, 0, 2)
    assert first.session.closed is not None
    first.session.disconnect()
    workers = join_all(lane, 2)
    for worker in workers:
        worker.contribute(Spec(), data=bytes(32))
        assert worker.session.closed is None


@pytest.mark.parametrize(
    ("kind", "every"),
    [
        *((kind, False) for kind in ("Finish", "Fold", "Free", "Send", "memory")),
        *((kind, True) for kind in ("Finish", "Fold", "Free", "memory")),
    ],
)
@pytest.mark.parametrize("seed", [7, 19])
def test_real_workers_come_back_with_the_right_sum_or_an_error(
    kind: str, every: bool, seed: int
) -> None:
    """The engine retransmits unacknowledged contributions, so one failure costs no sum."""
    for n in count(1):
        cluster = SimCluster(WORLD, table=TABLE, seed=seed)
        cluster.join()
        inject = cluster.lanes[0, 0].inject = Nth(kind, n, every)
        arrays = [np.frombuffer(part(rank), np.uint16).copy() for rank in range(WORLD)]
        operations = [
            cluster.submit(rank, "x", array, array, dtype=int(DType.BFLOAT16))
            for rank, array in enumerate(arrays)
        ]
        try:
            cluster.finish(operations)
        except StuckError:
            pytest.fail(f"{kind} {n}: stuck\n{cluster.report()}")
        for operation, array in zip(operations, arrays, strict=True):
            assert operation.error is not None or (array == TOTAL).all()
        if not every:
            assert all(operation.error is None for operation in operations)
        if not inject.raised:  # there is no call n
            break
    assert n > 1, f"{kind} was never called"
