"""Stale synchronous parallel: which reads wait, and that the minimum never falls."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from reducer.core.tables.clocks import Clocks
from reducer.wire.codes import MessageKind
from tests.support.simlane import SimLane
from tests.support.table_worker import TableWorker, describe

ONES = np.ones(40, np.float32)


def two_workers(lane: SimLane, bound: int) -> tuple[TableWorker, TableWorker]:
    found = []
    for number in (0, 1):
        worker = TableWorker(lane, number)
        worker.table(describe(mode="ssp", bound=bound, workers=2))
        worker.values(ONES * 0)
        worker.read()
        worker.frames.clear()
        found.append(worker)
    return found[0], found[1]


def may_read(worker: TableWorker, clock: int, bound: int) -> bool:
    """Whether a pull of a worker with this clock is answered at once."""
    worker.pull(0, clock=max(0, clock - bound))
    return bool(worker.take(MessageKind.VALUE))


def test_a_read_waits_for_the_slowest_worker() -> None:
    lane = SimLane()
    fast, slow = two_workers(lane, bound=1)
    for clock in (1, 2):
        fast.push_all(ONES, clock)
        fast.clock(clock)
    assert may_read(fast, 1, 1)
    assert not may_read(fast, 2, 1)
    slow.push_all(ONES, 1)
    slow.clock(1)
    values = fast.take_frames(MessageKind.VALUE)
    assert len(values) == 1 and values[0].header.done == 1
    # What the slow worker pushed before its clock is in.
    assert np.array_equal(np.frombuffer(values[0].payload or b"", "<f4"), -3 * ONES[:16])


def test_a_lost_worker_holds_nobody_up() -> None:
    lane = SimLane()
    fast, slow = two_workers(lane, bound=0)
    fast.clock(1)
    assert not may_read(fast, 1, 0)
    slow.lose()
    lane.tick(0.4)
    assert not fast.take(MessageKind.VALUE)  # it may come back
    lane.tick(0.3)
    assert fast.take(MessageKind.VALUE)
    assert any("worker 1 of job 'job' is lost" in line for line in lane.logs)


def test_a_worker_that_leaves_holds_nobody_up() -> None:
    lane = SimLane()
    fast, slow = two_workers(lane, bound=0)
    fast.clock(1)
    assert not may_read(fast, 1, 0)
    slow.bye()
    assert fast.take(MessageKind.VALUE)


def test_a_silent_worker_is_lost() -> None:
    lane = SimLane()
    fast, _ = two_workers(lane, bound=0)
    fast.clock(1)
    assert not may_read(fast, 1, 0)
    for _ in range(30):
        fast.beat()
        lane.tick(0.2)
    assert fast.take(MessageKind.VALUE)


def test_a_joiner_is_seated_at_the_top() -> None:
    lane = SimLane()
    fast, slow = two_workers(lane, bound=0)
    for clock in range(1, 5):
        fast.clock(clock)
        slow.clock(clock)
    joiner = TableWorker(lane, 2)
    assert joiner.table(fast.description).clock == 4
    assert may_read(fast, 4, 0)


def test_nobody_runs_ahead_of_founders_that_still_start() -> None:
    lane = SimLane()
    first = TableWorker(lane, 0)
    first.table(describe(mode="ssp", bound=1, workers=2))
    first.values(ONES)
    first.clock(1)
    first.clock(2)
    assert may_read(first, 1, 1)
    assert not may_read(first, 2, 1)
    second = TableWorker(lane, 1)
    assert second.table(first.description).clock == 0
    second.clock(1)
    assert first.take(MessageKind.VALUE)


@given(st.integers(0, 2**32))
def test_no_read_breaks_the_rule(seed: int) -> None:
    """Random clocks, joins and leaves: the minimum never falls, and is what it says."""
    rng = random.Random(seed)
    clocks, own, before = Clocks(founders=2), dict[int, int](), 0
    for _ in range(200):
        what, worker = rng.random(), rng.randrange(6)
        if what < 0.1:
            clocks.leave(worker)
            own.pop(worker, None)
        elif what < 0.2 or worker not in own:
            own[worker] = clocks.seat(worker)
        else:
            clocks.advance(worker, own[worker] + 1)
            own[worker] += 1
        assert clocks.least >= before
        assert all(clock >= clocks.least for clock in own.values())
        before = clocks.least
