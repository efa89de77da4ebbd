"""Rounds that every rank has passed in an earlier stream are forgotten in turns of the job."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from reducer.core.runs.positions import FORGOTTEN_AT_ONCE, RANKS_AT_ONCE, RECORDS_AT_ONCE
from reducer.core.runs.run import Run
from reducer.core.surface import events
from reducer.wire import messages
from reducer.wire.codes import DType
from reducer.wire.keys import key_id, position
from tests.support.frames import control, heartbeat
from tests.support.laws import counts_what_it_holds
from tests.support.scripted import Scripted, Spec, join_all
from tests.support.simlane import SimLane

MANY = 3 * FORGOTTEN_AT_ONCE
ELEMENTS = 16  # of a chunk


class Passing:
    """Ranks with chunks of 64 bytes; their key is in a stream that a route has moved."""

    def __init__(self, ranks: int = 2) -> None:
        self.lane = SimLane(credit=1 << 22, budget=1 << 40, records=1 << 22)
        self.workers = join_all(self.lane, ranks, table=((0, 64),), worker_silence_ms=3_600_000)
        self.workers[0].session.send(control(messages.Route(1, (1,), (1,), (1,))))
        self.lane.tick()
        (members,) = self.lane.core._roster.runs.values()
        self.run: Run = members.run

    def contribute(
        self,
        worker: Scripted,
        number: int,
        chunk: int = 0,
        count: int = 8,
        dtype: DType = DType.FLOAT32,
    ) -> None:
        size = 4 * min(count, ELEMENTS)
        spec = Spec(number=number, count=count, dtype=dtype)
        worker.contribute(spec, chunk, bytes(size), route=1)

    def report(self, number: int, chunk: int = 0) -> None:
        """Report on every rank that it holds everything before this position."""
        for worker in self.workers:
            entry = (key_id("x"), position(number, chunk))
            worker.session.send(heartbeat(entry, route=1))

    def watch(self, count: Callable[[], int]) -> list[int]:
        """A list to which `count()` is appended after each event."""
        left, feed = [count()], self.lane.feed

        def fed(event: events.Event) -> None:
            feed(event)
            counts_what_it_holds(self.run)
            left.append(count())

        self.lane.feed = fed  # type: ignore[method-assign]
        return left

    def pass_all(self, between: Callable[[], None]) -> None:
        """All ranks pass many rounds; calls `between` after the first turn that forgets some."""
        for number in range(MANY):
            self.contribute(self.workers[0], number)
        feed = self.lane.feed

        def fed(event: events.Event) -> None:
            if self.run.passed:
                self.lane.feed = feed  # type: ignore[method-assign]
                between()
            feed(event)

        self.lane.feed = fed  # type: ignore[method-assign]
        self.report(MANY)

    def rounds(self) -> int:
        return sum(len(key.rounds) for stream in self.run.streams for key in stream.keys)

    def owes(self, rank: int) -> int:
        limits = self.run.accounts.limits
        return limits.unread - self.run.accounts.unread_room(rank)


def in_parts(left: list[int]) -> bool:
    steps = [before - after for before, after in pairwise(left)]
    return left[-1] == 0 and sum(map(bool, steps)) >= 3 and max(steps) <= FORGOTTEN_AT_ONCE


def test_rounds_that_the_ranks_have_passed_elsewhere_are_forgotten_in_turns() -> None:
    """Regression: 96,000 rounds of one key blocked a lane for seconds."""
    passing = Passing()
    for number in range(MANY):
        passing.contribute(passing.workers[0], number)
    assert passing.owes(0)
    left = passing.watch(passing.rounds)
    passing.report(MANY)
    assert in_parts(left)
    assert not passing.owes(0) and not passing.run.held.total and not passing.run.open
    passing.contribute(passing.workers[0], MANY)
    assert passing.rounds() == 1 and passing.run.open.oldest is not None


@pytest.mark.parametrize("rest", [0, 1])
def test_the_chunks_of_one_round_are_forgotten_in_turns(rest: int) -> None:
    """For a round that every rank has passed, and for one that has a chunk left."""
    passing = Passing()
    count = ELEMENTS * (MANY + rest)
    for chunk in range(MANY):
        passing.contribute(passing.workers[0], 0, chunk, count)

    def chunks() -> int:
        return sum(len(r.chunks) for s in passing.run.streams for r in s.rounds)

    left = passing.watch(chunks)
    assert left == [MANY]
    passing.report(*((0, MANY) if rest else (1, 0)))
    assert in_parts(left)
    assert not passing.owes(0) and passing.rounds() == rest == len(passing.run.open)


def test_void_rounds_of_many_ranks_are_forgotten_fewer_at_a_time() -> None:
    """Regression: 256 mismatched rounds of 512 ranks were one step of 51 ms."""
    ranks, rounds = 64, 40
    passing = Passing(ranks)
    for number in range(rounds):
        for rank, worker in enumerate(passing.workers):
            dtype = DType.INT32 if rank else DType.FLOAT32
            passing.contribute(worker, number, dtype=dtype)
    (stream,) = (s for s in passing.run.streams if s.rounds)
    records = next(iter(stream.rounds)).charged
    assert records > 4 * RECORDS_AT_ONCE
    left = passing.watch(passing.rounds)
    passing.report(rounds)
    steps = [before - after for before, after in pairwise(left)]
    assert left[-1] == 0
    assert 1 < max(steps) <= 1 + FORGOTTEN_AT_ONCE // (1 + records // RECORDS_AT_ONCE)


def test_chunks_of_many_ranks_are_forgotten_fewer_at_a_time() -> None:
    """Regression: 256 chunks of 512 ranks were one step of 50 ms."""
    ranks = 8 * RANKS_AT_ONCE
    passing, at_once = Passing(ranks), FORGOTTEN_AT_ONCE // (1 + ranks // RANKS_AT_ONCE)
    for chunk in range(3 * at_once):
        passing.contribute(passing.workers[0], 0, chunk, 3 * at_once * ELEMENTS)

    def chunks() -> int:
        return sum(len(r.chunks) for s in passing.run.streams for r in s.rounds)

    left = passing.watch(chunks)
    passing.report(1)
    steps = [before - after for before, after in pairwise(left)]
    assert left[-1] == 0 and max(steps) == at_once


def test_a_route_ends_the_turns() -> None:
    passing = Passing()
    newer = control(messages.Route(2, (2,), (1,), (1,)))
    passing.pass_all(lambda: passing.workers[0].session.send(newer))
    assert passing.run.route.number == 2 and not passing.run.is_behind
    assert not passing.owes(0) and not passing.run.held.total and not passing.rounds()


def test_rounds_that_wait_to_be_forgotten_excuse_no_results() -> None:
    """Regression: while others took turns, a run could keep four times its limit of results."""
    passing = Passing()

    def go_on() -> None:
        passing.run.contributions._most_unstable = -1
        passing.contribute(passing.workers[0], MANY)

    passing.pass_all(go_on)
    assert "results that are not stable" in passing.workers[0].error().message
