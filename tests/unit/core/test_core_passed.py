"""What every rank has passed in an earlier stream is forgotten in turns of the job."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from reducer.core import events
from reducer.core.job import Job
from reducer.core.passed import FORGOTTEN_AT_ONCE, RANKS_AT_ONCE, RECORDS_AT_ONCE
from reducer.wire import messages
from reducer.wire.codes import DType
from reducer.wire.keys import key_id, position
from tests.support.frames import control, heartbeat
from tests.support.laws import counts_what_it_holds
from tests.support.scripted import Scripted, Spec, join_all
from tests.support.simlane import SimLane

MANY = 3 * FORGOTTEN_AT_ONCE
ELEMENTS = 16  # of a chunk


class Run:
    """Ranks with chunks of 64 bytes; a route has made the stream of their key."""

    def __init__(self, ranks: int = 2) -> None:
        self.lane = SimLane(credit=1 << 22, budget=1 << 40, records=1 << 22)
        self.workers = join_all(self.lane, ranks, table=((0, 64),), worker_silence_ms=3_600_000)
        self.workers[0].session.send(control(messages.Route(1, (1,), (1,), (1,))))
        self.lane.tick()
        (run,) = self.lane.core._roster.runs.values()
        self.job: Job = run.job

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
        """Every rank has what is before, and the run has turns for what that means."""
        for worker in self.workers:
            entry = (key_id("x"), position(number, chunk))
            worker.session.send(heartbeat(entry, route=1))

    def watch(self, count: Callable[[], int]) -> list[int]:
        """What there is after each event from now on."""
        left, feed = [count()], self.lane.feed

        def fed(event: events.Event) -> None:
            feed(event)
            counts_what_it_holds(self.job)
            left.append(count())

        self.lane.feed = fed  # type: ignore[method-assign]
        return left

    def pass_all(self, between: Callable[[], None]) -> None:
        """Many rounds that all ranks pass; `between` the first turn for that and the next."""
        for number in range(MANY):
            self.contribute(self.workers[0], number)
        feed = self.lane.feed

        def fed(event: events.Event) -> None:
            if self.job._passed:
                self.lane.feed = feed  # type: ignore[method-assign]
                between()
            feed(event)

        self.lane.feed = fed  # type: ignore[method-assign]
        self.report(MANY)

    def rounds(self) -> int:
        return sum(len(key.rounds) for stream in self.job.streams for key in stream.keys)

    def owes(self, rank: int) -> int:
        window = self.job.ledger.window
        return window.unread - self.job.ledger.unread_room(rank)


def in_parts(left: list[int]) -> bool:
    steps = [before - after for before, after in pairwise(left)]
    return left[-1] == 0 and sum(map(bool, steps)) >= 3 and max(steps) <= FORGOTTEN_AT_ONCE


def test_rounds_that_the_ranks_have_passed_elsewhere_are_forgotten_in_turns() -> None:
    """96,000 of one key stood a lane still for seconds."""
    run = Run()
    for number in range(MANY):
        run.contribute(run.workers[0], number)
    assert run.owes(0)
    left = run.watch(run.rounds)
    run.report(MANY)
    assert in_parts(left)
    assert not run.owes(0) and not run.job.held.total and not run.job.open
    run.contribute(run.workers[0], MANY)
    assert run.rounds() == 1 and run.job.open.oldest is not None


@pytest.mark.parametrize("rest", [0, 1])
def test_the_chunks_of_one_round_are_forgotten_in_turns(rest: int) -> None:
    """Of one that every rank has passed, and of one that has a chunk left."""
    run = Run()
    count = ELEMENTS * (MANY + rest)
    for chunk in range(MANY):
        run.contribute(run.workers[0], 0, chunk, count)

    def chunks() -> int:
        return sum(len(r.chunks) for s in run.job.streams for r in s.rounds)

    left = run.watch(chunks)
    assert left == [MANY]
    run.report(*((0, MANY) if rest else (1, 0)))
    assert in_parts(left)
    assert not run.owes(0) and run.rounds() == rest == len(run.job.open)


def test_void_rounds_of_many_ranks_are_forgotten_fewer_at_a_time() -> None:
    """256 rounds that 512 ranks had not called alike were one step of 51 ms."""
    ranks, rounds = 64, 40
    run = Run(ranks)
    for number in range(rounds):
        for rank, worker in enumerate(run.workers):
            dtype = DType.INT32 if rank else DType.FLOAT32
            run.contribute(worker, number, dtype=dtype)
    (stream,) = (s for s in run.job.streams if s.rounds)
    records = next(iter(stream.rounds)).charged
    assert records > 4 * RECORDS_AT_ONCE
    left = run.watch(run.rounds)
    run.report(rounds)
    steps = [before - after for before, after in pairwise(left)]
    assert left[-1] == 0
    assert 1 < max(steps) <= 1 + FORGOTTEN_AT_ONCE // (1 + records // RECORDS_AT_ONCE)


def test_chunks_of_many_ranks_are_forgotten_fewer_at_a_time() -> None:
    """256 chunks of 512 ranks were one step of 50 ms."""
    ranks = 8 * RANKS_AT_ONCE
    run, at_once = Run(ranks), FORGOTTEN_AT_ONCE // (1 + ranks // RANKS_AT_ONCE)
    for chunk in range(3 * at_once):
        run.contribute(run.workers[0], 0, chunk, 3 * at_once * ELEMENTS)

    def chunks() -> int:
        return sum(len(r.chunks) for s in run.job.streams for r in s.rounds)

    left = run.watch(chunks)
    run.report(1)
    steps = [before - after for before, after in pairwise(left)]
    assert left[-1] == 0 and max(steps) == at_once


def test_a_route_ends_the_turns() -> None:
    run = Run()
    newer = control(messages.Route(2, (2,), (1,), (1,)))
    run.pass_all(lambda: run.workers[0].session.send(newer))
    assert run.job.route.number == 2 and not run.job.is_behind
    assert not run.owes(0) and not run.job.held.total and not run.rounds()


def test_rounds_that_wait_to_be_forgotten_excuse_no_results() -> None:
    """A run could keep four times the results that it may while others took its turns."""
    run = Run()

    def go_on() -> None:
        run.job._most_unstable = -1
        run.contribute(run.workers[0], MANY)

    run.pass_all(go_on)
    assert "results that are not stable" in run.workers[0].error().message
