"""A job starts without reducers that do not answer, and takes them in when they come."""

from __future__ import annotations

import pytest

from reducer.wire import messages
from reducer.wire.codes import ErrorCode
from tests.support.frames import control, heartbeat
from tests.support.one_worker import Worker, decoded, route, submit


def answer(worker: Worker, reducer: int, **welcome: int) -> None:
    worker.connect()
    worker.welcome(reducer, **welcome)
    worker.connect()


def without(worker: Worker, *reducers: int) -> None:
    for reducer in reducers:
        worker.state.unreachable(reducer, 0, "connection refused", worker.now)


def test_rank_0_waits_five_seconds_and_begins_without_the_silent_reducer() -> None:
    worker = Worker(reducers=3)
    worker.tick(0.0)
    answer(worker, 0)
    answer(worker, 1)
    without(worker, 2)
    worker.pass_time(4.9, 0, 1)
    assert not worker.state.joined
    worker.pass_time(0.2, 0, 1)
    assert worker.state.joined
    for reducer in (0, 1):
        (new,) = decoded(worker.sent(reducer), messages.Route)
        assert (new.route, new.live) == (1, (1, 1, 0))
    (report,) = worker.state.take_reports()
    assert "reducer r2 is out: the job starts without it, since connection refused" in report
    submit(worker, 4)
    assert worker.contributions(0) and worker.contributions(1)


def test_a_worker_says_which_reducers_it_waits_for() -> None:
    worker = Worker(reducers=2)
    worker.tick(0.0)
    without(worker, 0)
    worker.pass_time(2.9)
    assert not worker.state.take_reports()
    worker.pass_time(0.2)
    (report,) = worker.state.take_reports()
    assert report == "job 'job' waits for reducer r0 (connection refused); 7 s left"
    worker.pass_time(6.5)
    assert not worker.state.take_reports(), "the next report comes after 10 s"


def test_of_the_ranks_that_have_come_one_says_which_are_missing() -> None:
    for rank, absent, tells in ((0, (2,), True), (1, (2,), False), (1, (0,), True)):
        worker = Worker(rank=rank, world_size=3)
        worker.tick(0.0)
        worker.connect()
        worker.pending(*absent)
        worker.pass_time(3.1)
        text = f"job 'job' waits for rank {absent[0]} of 3; 7 s left"
        assert worker.state.take_reports() == [text] * tells


def test_a_late_reducer_comes_in() -> None:
    worker = Worker(reducers=2)
    worker.tick(0.0)
    answer(worker, 0)
    without(worker, 1)
    worker.pass_time(5.1, 0)
    assert worker.state.joined
    worker.connect()
    (hello,) = decoded(worker.sent(1), messages.Hello)
    assert hello.rejoin and hello.run_id == "run"
    worker.welcome(1, lanes=2)
    worker.connect()
    worker.welcome(1, 1, lanes=2)
    worker.pass_time(0.9, 0, 1)
    worker.get(heartbeat(), 1, 1)
    worker.pass_time(0.3, 0, 1)
    routes = decoded(worker.sent(0), messages.Route)
    assert (routes[-1].live, routes[-1].lanes_by_slot) == ((1, 1), (1, 2))


def test_a_lane_that_waits_for_ranks_does_not_keep_the_job() -> None:
    """Another rank cannot reach it. Its lane gets a new hello, of a run that has formed."""
    worker = Worker(reducers=2)
    worker.tick(0.0)
    answer(worker, 0)
    worker.pending(1, reducer=1)
    worker.pass_time(5.1, 0)
    assert worker.state.joined
    assert worker.state.to_drop() == [(1, 0)]
    worker.disconnect(1)
    worker.connect()
    assert decoded(worker.sent(1), messages.Hello)[-1].rejoin


def test_reducers_have_a_second_after_the_first_one_that_answers() -> None:
    """The first address is silent, so the others are tried only after five seconds."""
    worker = Worker(reducers=3)
    worker.tick(0.0)
    without(worker, 0)
    worker.pass_time(5.1)
    answer(worker, 1)
    worker.pass_time(0.9, 1)
    assert not worker.state.joined
    answer(worker, 2)
    worker.pass_time(0.2, 1, 2)
    assert worker.state.joined
    routes = decoded(worker.sent(1), messages.Route)
    assert routes[-1].live == (0, 1, 1)


def test_the_other_ranks_follow_rank_0() -> None:
    worker = Worker(reducers=2, rank=1)
    worker.tick(0.0)
    answer(worker, 0)
    without(worker, 1)
    worker.pass_time(6.0, 0)
    assert not worker.state.joined
    worker.get(route(1, (0, 1), (1, 0)))
    assert worker.state.joined
    submit(worker, 2)
    assert len(worker.contributions(0)) == 2


def test_a_rank_that_comes_after_the_route_finds_it_in_the_welcome() -> None:
    worker = Worker(reducers=2, rank=1)
    worker.connect()
    worker.welcome(0, route=1, since=(0, 1), live=(1, 0), lanes_by_slot=(1, 1))
    assert worker.state.joined


def test_a_silent_first_address_makes_way_for_the_next() -> None:
    worker = Worker(reducers=3, rank=1)
    worker.tick(0.0)
    assert worker.decoders.keys() == {(0, 0)}
    without(worker, 0)
    worker.pass_time(4.9)
    assert not [lane for lane in worker.state.wanted() if lane != (0, 0)]
    worker.pass_time(0.2)
    assert (1, 0) in worker.connect()
    worker.pending(0, reducer=1)
    assert (2, 0) in worker.connect()


def test_slots_of_late_reducers_are_corrected() -> None:
    """Rank 1 lists the reducers in another order, so it cannot know the slots of absent ones."""
    worker = Worker(reducers=3, rank=1)
    worker.connect()
    worker.welcome(0, slot=2, route=1, since=(1, 1, 0), live=(0, 0, 1), lanes_by_slot=(1, 1, 1))
    assert worker.state.joined
    worker.connect()
    worker.welcome(1, slot=1, route=1, since=(1, 1, 0), live=(0, 0, 1), lanes_by_slot=(1, 1, 1))
    worker.get(route(2, (1, 2, 0), (0, 1, 1)))
    assert worker.state.error is None
    submit(worker, 6)
    assert worker.contributions(0) and worker.contributions(1)


def test_a_late_reducer_cannot_take_the_slot_of_a_live_one() -> None:
    worker = Worker(reducers=3, rank=1)
    worker.connect()
    moved = {"route": 1, "since": (0, 1, 1), "live": (1, 0, 0), "lanes_by_slot": (1, 1, 1)}
    worker.welcome(0, **moved)
    worker.connect()
    worker.welcome(1, slot=0, **moved)
    assert worker.state.error is None
    assert worker.state.to_drop() == [(1, 0)]
    submit(worker, 3)
    assert len(worker.contributions(0)) == 2  # within the credit; none to the liar


def test_a_hosted_reducer_that_never_answers_is_blamed_on_its_rank() -> None:
    worker = Worker(rank=1, hosted=[[0]])
    worker.tick(0.0)
    without(worker, 0)
    worker.pass_time(10.1)
    assert (
        "at r0 (connection refused) within 10 s: is rank 0, which starts it, running?"
        in (worker.state.error[1])
    )


def test_fewer_than_min_reducers_do_not_start() -> None:
    worker = Worker(reducers=3, min_reducers=2)
    worker.tick(0.0)
    answer(worker, 0)
    without(worker, 1, 2)
    worker.pass_time(9.9, 0)
    assert not worker.state.joined and worker.state.error is None
    worker.pass_time(0.2, 0)
    code, text, *_ = worker.state.error
    assert code == ErrorCode.UNAVAILABLE
    assert "no reducer answered at r1 (connection refused), r2 (connection refused)" in text


@pytest.mark.parametrize("least", [0, 4])
def test_min_reducers_is_at_most_their_number(least: int) -> None:
    if least == 0:
        Worker(reducers=3, min_reducers=least)
        return
    with pytest.raises(ValueError, match="min_reducers must be at most 3"):
        Worker(reducers=3, min_reducers=least)


def test_a_route_of_another_number_of_slots_does_not_begin_a_run() -> None:
    worker = Worker(reducers=2, rank=1)
    worker.tick(0.0)
    answer(worker, 0)
    worker.get(control(messages.Route(1, (0, 1, 0), (1, 0, 1), (1, 1, 1))))
    assert not worker.state.joined
