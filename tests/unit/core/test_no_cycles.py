"""Ended objects of the core are freed by reference counts, so lanes need no collection."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from reducer.wire import messages
from reducer.wire.codes import ErrorCode
from reducer.wire.keys import position
from reducer.wire.table_messages import TableCall
from tests.support.frames import control
from tests.support.scripted import Scripted, Spec, join_all
from tests.support.simlane import SimLane
from tests.support.table_worker import TableWorker

TIMES = 20


@pytest.fixture
def saved() -> Iterator[list[object]]:
    """A list that keeps the objects which a garbage collection finds."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    yield gc.garbage
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


def rounds(lane: SimLane) -> None:
    workers = join_all(lane, 3)
    for number in range(3):
        for worker in workers:
            worker.contribute(Spec(number=number), data=bytes(32))
            worker.report("x", position(number, 0))
    leave(workers)


def refused(lane: SimLane) -> None:
    workers = join_all(lane, 2)
    for worker in workers:
        worker.contribute(Spec(count=8 - worker.rank), data=bytes(32 - 4 * worker.rank))
    for worker in workers:
        worker.abandon(Spec())
    leave(workers)


def reconnect(lane: SimLane) -> None:
    workers = join_all(lane, 2)
    workers[1].contribute(Spec(), data=bytes(32))
    workers[1].session.disconnect()
    workers[1] = Scripted(lane, 1, 2, run_id="run", rejoin=True)
    for worker in workers:
        worker.contribute(Spec(), data=bytes(32))
    leave(workers)


def ends_with_open_rounds(lane: SimLane) -> None:
    workers = join_all(lane, 2)
    for number in range(4):
        workers[0].contribute(Spec(key=f"{number % 2}", number=number), data=bytes(32))
    leave(workers[1:])


def ends_in_an_error(lane: SimLane) -> None:
    workers = join_all(lane, 2)
    for fill in (0, 1):
        workers[0].contribute(Spec(), data=bytes([fill] * 32))


def ends_by_an_error_of_a_rank(lane: SimLane) -> None:
    workers = join_all(lane, 2)
    workers[0].contribute(Spec(), data=bytes(32))
    workers[1].session.send(control(messages.Error(int(ErrorCode.PEER_LOST), "gone", 1, "lost")))


def a_stream_moves(lane: SimLane) -> None:
    workers = join_all(lane, 2, slot=1, reducers=2)
    workers[0].session.send(control(messages.Route(1, (1, 1), (0, 1), (1, 1))))
    for key in "abcd":
        workers[0].contribute(Spec(key=key), data=bytes(32), route=1)
    workers[0].session.send(control(messages.Route(2, (2, 2), (1, 1), (1, 1))))
    leave(workers)


def never_complete(lane: SimLane) -> None:
    Scripted(lane, 1, 2)


def leave(workers: list[Scripted]) -> None:
    for worker in workers:
        worker.bye()


@pytest.mark.parametrize(
    "end",
    [
        rounds, refused, reconnect, ends_with_open_rounds, ends_in_an_error,
        ends_by_an_error_of_a_rank, a_stream_moves, never_complete,
    ],
)  # fmt: skip
def test_nothing_is_left_to_the_collector(
    end: Callable[[SimLane], None], saved: list[object]
) -> None:
    lane = SimLane()
    for _ in range(TIMES):
        end(lane)
        for session in list(lane.sessions.values()):
            session.disconnect()
        lane.sessions.clear()
    lane.tick(6.0)  # a deserted run
    assert lane.snapshot()["jobs"] == {}
    gc.collect()
    # Only the sessions of a SimLane refer to themselves; another test covers the lane process.
    left = [type(o).__name__ for o in saved if type(o).__module__.startswith("reducer.core")]
    assert not left


def probed(lane: SimLane) -> None:
    TableWorker(lane, -1)


def left_by_its_worker(lane: SimLane) -> None:
    worker = TableWorker(lane, 0)
    worker.table()
    worker.push_all(np.ones(40, np.float32), 1)
    worker.call(TableCall("drop", name="net"))
    worker.bye()


def replaced(lane: SimLane) -> None:
    """The lane was a primary, whose backup says that another lane is the primary now."""
    TableWorker(lane, 0, term=1, partitions=1, backup="far:1", backup_reducer=bytes([1] * 16))
    (dial,) = lane.dials
    lane.dials = []
    link = lane.link(dial)
    link.send(control(messages.Error(int(ErrorCode.EVICTED), "the test")))
    link.disconnect()


def given_up(lane: SimLane) -> None:
    """The lane was a primary whose backup was given up."""
    TableWorker(lane, 0, term=1, partitions=1, backup="far:1", backup_reducer=bytes([1] * 16))
    TableWorker(lane, 0, term=2, partitions=1)
    lane.dials = []


def filled_anew(lane: SimLane) -> None:
    """The lane was a backup of one primary, and becomes the spare of another."""
    for term, primary in ((1, 1), (2, 2)):
        call = TableCall(
            "follow", job="job", run_id=str(lane.now), partitions=1, term=term,
            reducer=bytes(16), incarnation=bytes([primary] * 16), filling=True, number=term,
        )  # fmt: skip
        lane.connect().send(control(call, key=1))


@pytest.mark.parametrize("end", [probed, left_by_its_worker, replaced, given_up, filled_anew])
def test_tables_leave_nothing_to_the_collector(
    end: Callable[[SimLane], None], saved: list[object]
) -> None:
    lane = SimLane()
    for _ in range(TIMES):
        end(lane)
        for session in list(lane.sessions.values()):
            session.disconnect()
        lane.sessions.clear()
        lane.tick(1.0)
    gc.collect()
    left = [type(o).__name__ for o in saved if type(o).__module__.startswith("reducer.core")]
    assert not left
