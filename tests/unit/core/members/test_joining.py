"""Runs: which workers are admitted or refused, and what each worker is told (law 8)."""

from __future__ import annotations

from typing import Any

import pytest

from reducer.core.limits.budget import SHARES_BESIDE_RANKS, share_of
from reducer.core.rounds.chunk_owners import Owners, Route
from reducer.core.surface import events
from reducer.core.ticks import MOST_REFUSED
from reducer.wire import messages
from reducer.wire.codes import DType, ErrorCode, MessageKind
from reducer.wire.header import HEADER_SIZE, Header
from reducer.wire.keys import key_id
from tests.support.frames import control, frame, heartbeat
from tests.support.scripted import TABLE, Scripted, Spec, join_all
from tests.support.simlane import SimLane


def pending(worker: Scripted) -> list[tuple[int, ...]]:
    frames = worker.read(MessageKind.PENDING)
    return [messages.decode(messages.Pending, f.payload or b"").absent for f in frames]


def welcome(worker: Scripted) -> messages.Welcome:
    (found,) = worker.read(MessageKind.WELCOME)
    return messages.decode(messages.Welcome, found.payload or b"")


def test_ranks_wait_for_each_other_and_get_the_rules_of_rank_0() -> None:
    lane = SimLane()
    late = Scripted(lane, 2, 3)
    assert pending(late) == [(0, 1)]
    zero = Scripted(lane, 0, 3, slot=1, reducers=2, run_id="night-7")
    assert not zero.read(MessageKind.WELCOME)
    with_two = Scripted(lane, 1, 3, reducers=2)
    assert with_two.error().code == ErrorCode.JOIN  # the first rank named one reducer
    assert "rank 0 of job 'job' says number of reducers 2, rank 2 says 1" in zero.error().message


def test_of_many_absent_ranks_the_first_are_named_and_all_are_counted() -> None:
    lane = SimLane(budget=1 << 30)
    worker = Scripted(lane, 5, 8_192)
    (frame,) = worker.read(MessageKind.PENDING)
    told = messages.decode(messages.Pending, frame.payload or b"")
    assert told.absent == (*range(5), *range(6, 65))
    assert told.absent_count == 8_191
    (forming,) = lane.report()["forming"]
    assert (forming["joined"], forming["absent"][:6]) == (1, [0, 1, 2, 3, 4, 6])
    assert len(forming["absent"]) < 100


def test_every_rank_gets_the_weights_of_rank_0_and_owners_follow_them() -> None:
    lane = SimLane()
    workers = join_all(lane, 2, reducers=2, weights=(3, 1))
    assert [welcome(worker).weights for worker in workers] == [(3, 1), (3, 1)]
    key = key_id("x")
    owners = Owners(Route.first((1, 1)), (3, 1))
    spec = Spec(count=8 * TABLE[0][1] // 4)
    mine = [chunk for chunk in range(8) if owners.owner(key, chunk) == (0, 0)]
    assert len(mine) == 6
    (foreign, _) = (chunk for chunk in range(8) if chunk not in mine)
    for worker in workers:
        for chunk in mine:
            worker.contribute(spec, chunk, bytes(TABLE[0][1]))
    assert len(workers[0].results()) == 6
    workers[0].contribute(spec, foreign, bytes(TABLE[0][1]))
    assert "does not own" in workers[0].error().message


def test_weights_that_do_not_fit_the_reducers_are_refused() -> None:
    lane = SimLane()
    zero = Scripted(lane, 0, 1, reducers=3, weights=(3, 1))
    assert "gives 2 weights; expected 3, one for each reducer" in zero.error().message


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_worker_that_knows_no_weights_is_named(order: tuple[int, int]) -> None:
    """It would send chunks to lanes that do not own them."""
    lane = SimLane()
    options = {0: {"weights": (3, 1)}, 1: {"minor": 1}}
    workers = [Scripted(lane, rank, 2, reducers=2, **options[rank]) for rank in order]
    error = workers[1].error()
    assert error.code == ErrorCode.JOIN
    assert error.message.startswith(
        "the reducers of job 'job' have weights, which protocol 1.1 of rank 1 does not have: "
        "expected 1.2 or newer"
    )


@pytest.mark.parametrize("kind", [MessageKind.HEARTBEAT, MessageKind.STATS])
def test_the_first_frame_is_a_hello(kind: MessageKind) -> None:
    """Frames before the HELLO belong to no job, so no share could count them."""
    lane = SimLane()
    session = lane.connect()
    session.send(frame(Header(kind=kind)))
    assert session.closed == f"session {session.number} sent frames before the welcome"


def test_a_complete_run_is_welcomed_with_one_run_id() -> None:
    lane = SimLane(credit=1 << 20)
    workers = [Scripted(lane, rank, 3) for rank in (2, 0, 1)]
    for worker in workers:
        told = welcome(worker)
        assert told.run_id == "run"
        assert told.chunk_table == TABLE
        assert (told.credit, told.grant) == (1 << 20, 2 * 4_096)
        assert told.world_size == 3
        assert told.heartbeat_ms == 1_000 * lane.settings.heartbeat


def test_pending_names_the_absent_again_when_they_change() -> None:
    lane = SimLane()
    first = Scripted(lane, 0, 3)
    assert pending(first) == [(1, 2)]
    second = Scripted(lane, 1, 3)
    lane.tick(0.3)
    assert pending(first) == [(2,)]
    second.session.disconnect()
    lane.tick(0.3)
    assert pending(first) == [(1, 2)]
    Scripted(lane, 1, 3)
    Scripted(lane, 2, 3)
    assert welcome(first).run_id == "run"


@pytest.mark.parametrize(
    ("hello", "text"),
    [
        ({"rank": 0, "world_size": 4}, "says world size 4, rank 0 says 3"),
        ({"rank": 0, "incarnation": b"s" * 16}, "has joined already, from another process"),
        ({"rank": 5}, "outside its world size 3"),
        ({"rank": 1, "run_id": "other"}, "run 'run' is forming"),
    ],
)
def test_a_hello_that_does_not_fit_is_refused_and_harms_nobody(
    hello: dict[str, Any], text: str
) -> None:
    lane = SimLane()
    join = Scripted(lane, 0, 3)
    stranger = Scripted(
        lane, hello.pop("rank"), hello.pop("world_size", 3), **{"chunk_table": TABLE, **hello}
    )
    error = stranger.error()
    assert error.code == ErrorCode.JOIN
    assert text in error.message
    assert stranger.session.closed
    Scripted(lane, 1, 3)
    Scripted(lane, 2, 3)
    assert welcome(join).run_id == "run"


@pytest.mark.parametrize("given", ["", "night"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_started_again_while_its_run_forms_takes_its_place(
    rank: int, given: str
) -> None:
    """As a pod that restarts at start-up. Rank 0 makes a new run id unless one was given."""
    lane = SimLane()
    first = Scripted(lane, rank, 3, run_id=given or ("first" if rank == 0 else ""))
    other = Scripted(lane, 2, 3, run_id=given)
    first.session.disconnect()
    last = Scripted(lane, 1 - rank, 3, run_id=given or ("run" if rank == 1 else ""))
    assert not last.read(MessageKind.WELCOME)  # a rank that has gone does not count
    new = b"n" * 16
    again = Scripted(lane, rank, 3, incarnation=new, run_id=given or ("run" if rank == 0 else ""))
    assert {welcome(worker).run_id for worker in (again, other, last)} == {given or "run"}
    # The new process is the member now, the old one is not.
    back = Scripted(lane, rank, 3, incarnation=new, run_id=given or "run", rejoin=True)
    assert welcome(back).run_id == (given or "run")
    old = Scripted(lane, rank, 3, run_id=given or "run", rejoin=True)
    assert "cannot join it from a new process" in old.error().message


def test_a_rank_of_a_forming_run_that_is_still_there_is_not_replaced() -> None:
    lane = SimLane()
    first = Scripted(lane, 0, 2)
    again = Scripted(lane, 0, 2, incarnation=b"n" * 16, run_id="run-2")
    assert "has joined already, from another process" in again.error().message
    again.session.disconnect()
    Scripted(lane, 1, 2)
    assert welcome(first).run_id == "run"


def test_rank_0_may_not_change_the_run_id_that_another_rank_was_given() -> None:
    lane = SimLane()
    Scripted(lane, 0, 3, run_id="night").session.disconnect()
    other = Scripted(lane, 1, 3, run_id="night")
    wrong = Scripted(lane, 0, 3, incarnation=b"n" * 16, run_id="random")
    assert "asks for run 'random', but run 'night' is forming" in wrong.error().message
    wrong.session.disconnect()
    Scripted(lane, 2, 3)
    Scripted(lane, 0, 3, incarnation=b"m" * 16, run_id="night")
    assert welcome(other).run_id == "night"


def test_a_rank_0_that_is_refused_leaves_no_run_id_behind() -> None:
    lane = SimLane()
    other = Scripted(lane, 1, 2)
    bad = Scripted(lane, 0, 2, run_id="bad", chunk_table=())
    assert "rank 0 must name a run id and a chunk table" in bad.error().message
    Scripted(lane, 0, 2, incarnation=b"n" * 16)
    assert welcome(other).run_id == "run"


@pytest.mark.parametrize("last_words", ["bye", "error"])
def test_a_rank_that_leaves_while_its_run_forms_is_no_member(last_words: str) -> None:
    """Its connection may still be open."""
    lane = SimLane()
    gone = Scripted(lane, 0, 2)
    if last_words == "bye":
        gone.bye()
    else:
        gone.session.send(control(messages.Error(int(ErrorCode.JOIN), "enough")))
    assert gone.session.closed
    last = Scripted(lane, 1, 2)
    assert not last.read(MessageKind.WELCOME)
    again = Scripted(lane, 0, 2, incarnation=b"n" * 16)
    gone.session.disconnect()
    assert welcome(again) == welcome(last)


def test_a_join_error_of_one_rank_ends_the_run_for_the_others() -> None:
    """As of a rank that two lanes have told two run ids; tests/unit/engine has its part."""
    lane = SimLane()
    workers = join_all(lane, 3)
    text = "run id 'b', expected 'a' of reducer r0 (lane 0): start all ranks again"
    workers[1].session.send(control(messages.Error(int(ErrorCode.JOIN), text)))
    for worker in (workers[0], workers[2]):
        error = worker.error()
        assert error.code == ErrorCode.JOIN and text in error.message


def test_a_complete_run_admits_its_own_members_alone() -> None:
    lane = SimLane()
    workers = join_all(lane, 2)
    stranger = Scripted(lane, 1, 2, run_id="run", incarnation=b"s" * 16)
    assert "has all its ranks" in stranger.error().message
    again = Scripted(lane, 1, 2, run_id="run")
    assert welcome(again).run_id == "run"
    assert workers[1].session.closed
    workers[1].session.disconnect()
    lane.tick(1.0)
    workers[0].contribute(Spec(), data=bytes(32))
    again.contribute(Spec(), data=bytes(32))
    assert workers[0].results() == again.results() == [bytes(32)]


def test_a_rank_without_run_id_forms_the_next_run_beside_a_complete_one() -> None:
    lane = SimLane()
    old = join_all(lane, 2)
    new = [
        Scripted(lane, rank, 2, run_id="next" if rank == 0 else "", incarnation=b"n" * 16)
        for rank in (1, 0)
    ]
    assert {welcome(worker).run_id for worker in new} == {"next"}
    for worker in new:
        worker.contribute(Spec(), data=b"\x00\x00\x80\x3f" * 8)
    for worker in old:
        worker.contribute(Spec(), data=b"\x00\x00\x00\x40" * 8)
    assert new[0].results() == [b"\x00\x00\x00\x40" * 8]
    assert old[0].results() == [b"\x00\x00\x80\x40" * 8]


def test_a_rank_whose_welcome_was_lost_is_let_in_though_it_knows_no_run_id() -> None:
    """Regression: the rank waited for a new run until its timeout, the others for the rank."""
    lane = SimLane()
    workers = join_all(lane, 3)
    workers[1].session.disconnect()
    back = Scripted(lane, 1, 3)
    assert welcome(back).run_id == "run"
    for worker in (workers[0], back, workers[2]):
        worker.contribute(Spec(), data=b"\x00\x00\x80\x3f" * 8)
    assert back.results() == [b"\x00\x00\x40\x40" * 8]


def test_a_run_id_in_use_is_refused_for_a_new_run() -> None:
    lane = SimLane()
    join_all(lane, 2)
    Scripted(lane, 1, 2, incarnation=b"n" * 16)
    again = Scripted(lane, 0, 2, incarnation=b"m" * 16)
    assert again.error().code == ErrorCode.JOIN


def test_the_memory_of_a_job_is_reserved_at_join_and_given_back() -> None:
    lane = SimLane(budget=4 << 20, credit=1 << 30)
    join_all(lane, 2)
    reserved = lane.snapshot()["reserved_bytes"]
    assert (1 << 20) - 4 * 4_096 < reserved <= 1 << 20  # a quarter: room for later runs
    for worker in join_all(lane, 100, job="second"):
        error = worker.error()
        assert error.code == ErrorCode.QUOTA
        assert "raise --memory" in error.message
    for session in list(lane.sessions.values()):
        session.disconnect()
    lane.tick(5.1)
    assert lane.snapshot()["reserved_bytes"] == 0
    join_all(lane, 2, job="second")
    assert lane.snapshot()["reserved_bytes"] > 0


def test_a_small_budget_shrinks_the_credit_to_one_chunk() -> None:
    lane = SimLane(budget=(2 + SHARES_BESIDE_RANKS) * share_of(2 * 4_096))
    told = welcome(join_all(lane, 2)[0])
    assert (told.credit, told.grant) == (4_096, 4_096)


def test_of_a_crowd_that_says_nothing_some_are_refused_at_each_tick() -> None:
    """Regression: 250 that had proven a key were refused and logged in one tick: 17 ms."""
    lane = SimLane()
    crowd = [lane.connect() for _ in range(2 * MOST_REFUSED + 1)]
    lane.tick(1.95)
    refused = []
    for _ in range(3):
        lane.tick(0.051)
        refused.append(sum(one.closed is not None for one in crowd))
    assert refused == [MOST_REFUSED, 2 * MOST_REFUSED, len(crowd)]


def test_no_hello_no_room() -> None:
    lane = SimLane()
    silent = lane.connect()
    lane.tick(1.9)
    assert silent.closed is None
    lane.tick(0.2)
    assert silent.closed is not None
    assert "HELLO" in silent.closed


def test_frames_before_the_welcome_are_refused() -> None:
    lane = SimLane()
    eager = Scripted(lane, 0, 2)
    eager.contribute(Spec(), data=bytes(32))
    assert eager.error().code == ErrorCode.PROTOCOL
    assert not lane.held
    stranger = Scripted(lane, 1, 2, job="b")
    stranger.announce("x")
    assert stranger.error().code == ErrorCode.PROTOCOL


def test_before_the_welcome_a_long_frame_is_refused_for_its_header() -> None:
    """The payload would take memory that no run has reserved."""
    lane = SimLane()
    long = heartbeat(*[(key, 1) for key in range(4_096)])
    new = lane.connect()
    new.send(long[:HEADER_SIZE])
    assert new.closed is not None
    waits = Scripted(lane, 1, 2)
    waits.session.send(long[:HEADER_SIZE])
    error = waits.error()
    assert error.code == ErrorCode.PROTOCOL
    assert "HEARTBEAT of 65,536 bytes before the welcome, the limit is 4,096" in error.message
    member = join_all(lane, 1, job="other")[0]
    member.session.send(long)
    assert member.session.closed is None


def test_draining_goes_on_until_nothing_is_open_and_takes_no_new_run() -> None:
    lane = SimLane()
    workers = join_all(lane, 2)
    waiting = Scripted(lane, 0, 2, job="forming")
    workers[0].contribute(Spec(), data=bytes(32))
    lane.feed(events.Drain("SIGTERM"))
    assert workers[0].read(MessageKind.GOAWAY)
    assert waiting.error().code == ErrorCode.UNAVAILABLE
    assert Scripted(lane, 0, 1, job="new").error().code == ErrorCode.UNAVAILABLE
    workers[1].contribute(Spec(), data=bytes(32))
    for worker in workers:  # without another reducer the run goes on here
        worker.contribute(Spec(number=1), data=bytes(32))
    assert workers[0].results() == [bytes(32)] * 2
    assert not lane.core.drained(lane.now)
    workers[0].contribute(Spec(number=2), data=bytes(32))
    lane.tick(1.1)
    assert not lane.core.drained(lane.now)
    workers[1].contribute(Spec(number=2), data=bytes(32))
    assert lane.core.drained(lane.now)
    lane.feed(events.Shutdown("SIGTERM"))
    assert workers[0].error().code == ErrorCode.UNAVAILABLE
    assert all(session.closed for session in lane.sessions.values())
    assert not lane.held


@pytest.mark.parametrize("end", [events.Drain("SIGTERM"), events.Shutdown("SIGTERM")])
def test_all_who_wait_for_a_run_are_refused_with_one_frame(end: events.Event) -> None:
    """Regression: 8,000 workers, each with its own frame and log line, took 0.3 s."""
    lane = SimLane()
    waiting = [Scripted(lane, rank, 9, job=job) for job in ("one", "other") for rank in range(8)]
    outputs: list[events.Output | int] = []
    lane.inject = outputs.append
    lane.feed(end)
    assert sum(isinstance(output, events.Send) for output in outputs) == 2
    assert sum(isinstance(output, events.Log) for output in outputs) == 2
    assert all(worker.error().code == ErrorCode.UNAVAILABLE for worker in waiting)


def test_a_lane_has_a_limit_of_jobs() -> None:
    lane = SimLane(max_total_runs=2)
    Scripted(lane, 0, 2, job="a")
    join_all(lane, 1, job="b")
    assert Scripted(lane, 0, 1, job="c").error().code == ErrorCode.QUOTA


def test_a_run_id_may_be_used_again_as_soon_as_all_have_gone() -> None:
    """A supervisor may restart a job with a fixed run id at once, within the grace."""
    lane = SimLane(budget=1 << 30)
    workers = join_all(lane, 2)
    reserved = lane.snapshot()["reserved_bytes"]
    for worker in workers:
        worker.session.disconnect()
    again = [Scripted(lane, rank, 2, run_id="run", incarnation=b"n" * 16) for rank in range(2)]
    assert {welcome(worker).run_id for worker in again} == {"run"}
    assert lane.snapshot()["reserved_bytes"] == reserved


def test_what_a_dead_run_held_is_freed_even_if_its_successor_is_refused() -> None:
    lane = SimLane()
    workers = join_all(lane, 2)
    workers[0].contribute(Spec(), data=bytes(32))
    for worker in workers:
        worker.session.disconnect()
    refused = Scripted(lane, 5, 2, run_id="run", incarnation=b"n" * 16)
    assert refused.error().code == ErrorCode.JOIN
    assert not lane.held
    assert lane.snapshot()["reserved_bytes"] == 0


def group(lane: SimLane, name: str, world: int = 2, **kwargs: Any) -> list[Scripted]:
    """All ranks of a group of run "run"; each rank names the group."""
    return join_all(lane, world, run_id=f"run#{name}", **kwargs)


def sum_of(workers: list[Scripted], value: int) -> bytes:
    """Sum the value over the workers as uint8; returns the result, which must be equal on all."""
    for worker in workers:
        worker.contribute(Spec(dtype=DType.UINT8), data=bytes([value]) * 8)
    (result,) = {result for worker in workers for result in worker.results()}
    return result


def test_groups_of_a_job_form_at_the_same_moment_beside_its_run() -> None:
    """The run and the rows and columns of a 2 x 2 mesh, all half joined at the same time."""
    lane = SimLane()
    names = ["run", "run#rows/0", "run#rows/1", "run#columns/0"]
    first = {name: Scripted(lane, 1, 2, run_id=name) for name in names}
    assert all(pending(worker) == [(0,)] for worker in first.values())
    workers = {n: [Scripted(lane, 0, 2, run_id=n), first[n]] for n in reversed(names)}
    for name, members in workers.items():
        assert {welcome(worker).run_id for worker in members} == {name}
    sums = {name: sum_of(members, 1 + names.index(name)) for name, members in workers.items()}
    assert sums == {name: bytes([2 * (1 + n)]) * 8 for n, name in enumerate(names)}


def test_an_error_names_a_rank_that_is_still_there() -> None:
    """Regression: the error named the first rank of the run, which had left."""
    lane = SimLane()
    first, second = Scripted(lane, 0, 3), Scripted(lane, 1, 3)
    first.session.disconnect()
    wrong = Scripted(lane, 2, 4)
    assert "rank 2 of job 'job' says world size 4, rank 1 says 3" in wrong.error().message
    assert pending(second)


def test_a_group_takes_nobody_who_does_not_name_it() -> None:
    lane = SimLane()
    zero = Scripted(lane, 0, 2, run_id="run#a")
    nameless = Scripted(lane, 1, 2)
    assert pending(zero) == [(1,)] and pending(nameless) == [(0,)]
    wrong = Scripted(lane, 1, 3, run_id="run#a")
    assert "rank 1 of job 'job#a' says world size 3, rank 0 says 2" in wrong.error().message
    twice = Scripted(lane, 0, 2, run_id="run#a", incarnation=b"n" * 16)
    assert "has joined already, from another process" in twice.error().message
    Scripted(lane, 1, 2, run_id="run#a")
    assert welcome(zero).run_id == "run#a"
    assert not nameless.read(MessageKind.WELCOME)


def test_a_group_that_was_there_before_admits_no_new_process() -> None:
    """After a restart of the lane: one rank of the old group rejoins, the other one is new."""
    lane = SimLane()
    back = Scripted(lane, 0, 2, run_id="run#a", rejoin=True)
    new = Scripted(lane, 1, 2, run_id="run#a", incarnation=b"n" * 16)
    assert not back.read(MessageKind.WELCOME) and not new.read(MessageKind.WELCOME)
    Scripted(lane, 1, 2, run_id="run#a", rejoin=True)
    assert welcome(back).run_id == "run#a"
    again = Scripted(lane, 0, 2, run_id="run#a", incarnation=b"m" * 16)
    assert "has all its ranks" in again.error().message
    assert not new.read(MessageKind.WELCOME)


def test_a_new_group_ends_no_other_of_its_run_that_is_between_two_connections() -> None:
    lane = SimLane()
    for worker in group(lane, "a"):
        worker.session.disconnect()
    group(lane, "b")
    assert set(lane.snapshot()["jobs"]) == {"job#a", "job#b"}
    join_all(lane, 2, run_id="next#a")  # the restarted job takes their place
    assert {run["run_id"] for run in lane.report()["runs"]} == {"run#b", "next#a"}


def test_a_job_that_is_named_as_another_ones_group_is_told_apart() -> None:
    """Regression: in metrics and texts each of the two counted the other's ranks."""
    lane = SimLane()
    join_all(lane, 2, job="victim", run_id="run#g")
    join_all(lane, 3, job="victim#g")
    join_all(lane, 1, job="victim%23g")
    jobs = lane.snapshot()["jobs"]
    assert {title: job["world_size"] for title, job in jobs.items()} == {
        "victim#g": 2, "victim%23g": 3, "victim%2523g": 1,
    }  # fmt: skip


def test_an_error_names_the_group_whose_ranks_it_means() -> None:
    lane = SimLane()
    rows = group(lane, "rows")
    rows[0].contribute(Spec(), data=bytes(32))
    rows[1].bye()
    assert "rank 1 left job 'job#rows' before round 0" in rows[0].error().message


def test_ranks_of_groups_are_not_counted_as_those_of_the_job() -> None:
    lane = SimLane()
    for members in (join_all(lane, 2), group(lane, "odd")):
        late = 0 if members[0].hello.run_id == "run" else 1
        members[1 - late].contribute(Spec(), data=bytes(32))
        lane.now += 2.0
        members[late].contribute(Spec(), data=bytes(32))
    numbers = lane.snapshot()["jobs"]
    assert {title: dict(n["lateness"]) for title, n in numbers.items()} == {
        "job": {0: pytest.approx(2.0)}, "job#odd": {1: pytest.approx(2.0)},
    }  # fmt: skip
