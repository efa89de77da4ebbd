"""One job's share of a lane: memory, runs, connections. Other jobs keep their shares."""

from __future__ import annotations

import pytest

from reducer.core.limits.budget import LEAST_FRAMES, SHARES_BESIDE_RANKS, share_of
from reducer.core.limits.charges import MIN_COST
from reducer.core.limits.quotas import ENDED_PER_RUN, SPARE_CONNECTIONS, allowed_connections
from reducer.wire import messages
from reducer.wire.codes import ErrorCode, MessageKind
from reducer.wire.header import HEADER_SIZE
from tests.support.frames import control, heartbeat
from tests.support.scripted import Scripted, Spec, fill, join_all
from tests.support.simlane import SimLane

# Bytes that one rank reserves with this credit and the chunks of `Scripted`.
CREDIT = 8_192
SHARE = share_of(CREDIT + 2 * 4_096)


def refused_for(worker: Scripted) -> str:
    error = worker.error()
    assert error.code == ErrorCode.QUOTA
    assert worker.session.closed
    return error.message


def test_a_job_has_its_share_of_runs() -> None:
    lane = SimLane(max_runs=3)
    join_all(lane, 1, job="a", run_id="formed")
    for number in range(2):
        Scripted(lane, 1, 2, job="a", rejoin=True, run_id=f"forming-{number}")
    text = refused_for(Scripted(lane, 1, 2, job="a", rejoin=True, run_id="another"))
    assert "job 'a' has 3 runs" in text and "--max-runs" in text
    other = join_all(lane, 2, job="b")
    assert all(worker.read(MessageKind.WELCOME) for worker in other)


def test_a_job_has_its_share_of_reducers() -> None:
    lane = SimLane(max_reducers=3)
    text = refused_for(Scripted(lane, 0, 2, job="a", reducers=4))
    assert "job 'a' names 4 reducers, the limit for one job is 3 (--max-reducers)" in text
    workers = [Scripted(lane, rank, 2, job="a", reducers=3) for rank in range(2)]
    assert all(worker.read(MessageKind.WELCOME) for worker in workers)


def test_runs_that_everybody_has_left_take_no_share() -> None:
    lane = SimLane(max_runs=2)
    for number in range(5):
        workers = join_all(lane, 2, run_id=f"run-{number}")
        assert all(worker.read(MessageKind.WELCOME) for worker in workers), number
        for worker in workers:
            worker.session.disconnect()


def test_runs_that_are_not_forgotten_yet_have_their_share() -> None:
    """Regression: with 10,000 such runs each HELLO took 45 ms, another job's p99 44 ms."""
    lane = SimLane(max_runs=2, budget=1 << 40, records=1 << 24)
    for number in range(2 * ENDED_PER_RUN):
        (worker,) = join_all(lane, 1, run_id=f"run-{number}")
        worker.session.send(control(messages.Route(1, (1,), (1,), (1,))))
        fill(worker, 10_000)
        worker.bye()
        worker.session.disconnect()
    assert "8 runs that have ended" in refused_for(join_all(lane, 1, run_id="more")[0])
    assert join_all(lane, 1, job="other")[0].read(MessageKind.WELCOME)
    for _ in range(20):
        lane.tick(0.05)
    assert join_all(lane, 1, run_id="more")[0].read(MessageKind.WELCOME)


def test_runs_with_nothing_to_forget_take_no_share() -> None:
    """Only the connections of these runs are still open."""
    lane = SimLane(max_runs=2, budget=1 << 40)
    for number in range(2 * ENDED_PER_RUN + 1):
        (worker,) = join_all(lane, 1, run_id=f"run-{number}")
        assert worker.read(MessageKind.WELCOME)
        worker.bye()


def test_groups_that_are_deserted_take_their_share_until_they_are_ended() -> None:
    """Regression: deserted groups are not replaced, so a job took all of --max-total-runs."""
    lane = SimLane(max_runs=2)
    for number in range(2):
        (worker,) = join_all(lane, 1, run_id=f"run#{number}")
        worker.session.disconnect()
    text = refused_for(join_all(lane, 1, run_id="run#2")[0])
    assert "has 2 runs" in text
    lane.tick(6.0)
    lane.tick()
    (worker,) = join_all(lane, 1, run_id="run#2")
    assert worker.read(MessageKind.WELCOME)


def test_deserted_runs_and_those_that_would_replace_them_have_one_share() -> None:
    """Regression: two jobs filled --max-total-runs, half with forming, half with deserted runs."""
    lane = SimLane(max_runs=4)
    roster = lane.core._roster
    groups = [join_all(lane, 1, run_id=f"run#{number}")[0] for number in range(4)]
    for worker in groups:
        worker.session.disconnect()
    for number in range(5):
        Scripted(lane, 0, 2, run_id=f"next#{number}")
        assert len(roster.forming) + len(roster.runs) <= 4
    assert len(roster.forming) == 4


def test_a_job_has_its_share_of_memory() -> None:
    lane = SimLane(budget=80 * SHARE, credit=CREDIT, job_budget=40 * SHARE)
    join_all(lane, 4, job="a", run_id="one")
    needed = (67 + SHARES_BESIDE_RANKS) * share_of(2 * 4_096)
    for text in map(refused_for, join_all(lane, 67, job="a", run_id="two")):
        assert f"job 'a' needs {needed:,} bytes on each lane (67 workers" in text
        left, all_ = (36 - SHARES_BESIDE_RANKS) * SHARE, 40 * SHARE
        assert f"{left:,} of the {all_:,} that one job may have are left: raise --job-mem" in text
    assert all(worker.read(MessageKind.WELCOME) for worker in join_all(lane, 4, job="b"))


def test_a_share_of_memory_is_given_back() -> None:
    lane = SimLane(budget=20 * SHARE, credit=CREDIT, job_budget=(4 + SHARES_BESIDE_RANKS) * SHARE)
    for number in range(3):
        workers = join_all(lane, 4, run_id=f"run-{number}")
        assert all(worker.read(MessageKind.WELCOME) for worker in workers), number
        for worker in workers:
            worker.bye()
            worker.session.disconnect()
    assert lane.snapshot()["reserved_bytes"] == 0


def test_the_room_of_a_run_that_is_over_is_its_own_until_its_connections_end() -> None:
    """The connections may hold unread results. A new run that needs the memory cuts them off."""
    lane = SimLane(budget=8 * SHARE, credit=CREDIT)
    workers = join_all(lane, 4)
    reserved = lane.snapshot()["reserved_bytes"]
    for worker in workers:
        worker.bye()
        worker.read(MessageKind.WELCOME)
    workers[0].session.disconnect()
    assert lane.snapshot()["reserved_bytes"] == reserved
    others = join_all(lane, 4, job="another")
    assert "are free: raise --memory" in others[0].error().message
    for worker in join_all(lane, 4, run_id="next"):
        assert worker.read(MessageKind.WELCOME)
    assert {worker.session.closed for worker in workers[1:]} == {
        "the run is over, and the next one needs its memory"
    }
    assert lane.snapshot()["reserved_bytes"] == reserved
    for worker in workers[1:]:
        worker.session.disconnect()
    assert lane.snapshot()["reserved_bytes"] == reserved


def test_a_run_that_wants_all_memory_leaves_room_for_those_that_come_after_it() -> None:
    """The run of a mesh of 8 x 2, then its columns and rows, each with part of its credit."""
    lane = SimLane(budget=400 * SHARE, credit=1 << 30)
    free = 400 * SHARE
    for members, count in ((16, 1), (8, 2), (2, 8)):
        for number in range(count):
            name = f"run#{members}/{number}"
            workers = join_all(lane, members, run_id=name)
            assert all(worker.read(MessageKind.WELCOME) for worker in workers), name
            taken = free - (400 * SHARE - lane.snapshot()["reserved_bytes"])
            assert free / 5 < taken <= free / 4
            free -= taken


def test_the_least_that_a_run_can_work_with_may_be_all_that_is_free() -> None:
    budget = (4 + SHARES_BESIDE_RANKS) * share_of(2 * 4_096)
    lane = SimLane(budget=budget, credit=CREDIT)
    join_all(lane, 4, job="a")
    text = refused_for(Scripted(lane, 0, 1, job="b"))
    assert f"0 of {budget:,} are free: raise --memory" in text


def test_chunks_have_no_room_that_a_run_has_reserved_for_its_records() -> None:
    """Regression: cached buffers filled --memory, and records came on top: 1.4 times --memory."""
    lane = SimLane(budget=1 << 30, records=1 << 20)
    core = lane.core
    assert core.room_for_chunks == 1 << 30
    (worker,) = join_all(lane, 1)
    (members,) = core._roster.runs.values()
    limits = members.run.accounts.limits
    beside = (1 + SHARES_BESIDE_RANKS) * (
        share_of(limits.unanswered, limits.records, limits.frames) - limits.unanswered
    )
    assert limits.records == 1 << 20 and core.room_for_chunks == (1 << 30) - beside
    worker.bye()
    worker.session.disconnect()
    for _ in range(20):
        lane.tick(0.05)
    assert not lane.snapshot()["reserved_bytes"] and core.room_for_chunks == 1 << 30


def test_what_a_rank_does_not_read_and_what_it_sends_have_room_that_is_reserved() -> None:
    """Regression: an incomplete frame took 64 KiB a rank that were not reserved."""
    lane = SimLane(budget=(1 + SHARES_BESIDE_RANKS) * share_of(2 * 4_096), credit=CREDIT)
    worker = join_all(lane, 1)[0]
    assert lane.snapshot()["reserved_bytes"] > 3 * LEAST_FRAMES
    long = heartbeat(*[(key, 1) for key in range(4_096)])
    worker.session.send(long)
    assert worker.session.closed is None
    worker.session.outbox += bytes(LEAST_FRAMES)
    worker.session.send(long[:HEADER_SIZE])
    text = worker.session.closed or ""
    assert "has 0 bytes unanswered" in text and "that it has not read, and sends 65,536" in text


def test_what_a_rank_has_unanswered_takes_of_what_it_may_leave_unread() -> None:
    lane = SimLane(budget=1 << 30)
    worker = join_all(lane, 2)[0]
    slack, before = lane.core.unread_room(worker.session.number)
    (members,) = lane.core._roster.runs.values()
    assert before - slack == members.run.accounts.limits.unanswered
    worker.contribute(Spec(), data=bytes(32))
    assert lane.core.unread_room(worker.session.number) == (slack, before - MIN_COST)


def test_a_job_has_its_share_of_connections() -> None:
    """A worker reconnects again and again, and its old connections are not closed."""
    lane = SimLane()
    workers = join_all(lane, 2, job="a")
    allowed = allowed_connections(2 + 1)
    beside = join_all(lane, 9, job="z")

    def again() -> Scripted:
        return Scripted(lane, 1, 2, job="a", run_id="run", rejoin=True)

    while len(lane.sessions) < allowed + len(beside):
        assert again().read(MessageKind.WELCOME)
    text = refused_for(again())
    assert f"job 'a' has {allowed + 1} connections to this lane" in text
    for _ in range(allowed):
        last = again()
    assert last.session.closed
    assert not last.read(MessageKind.ERROR)  # too many to answer each one
    # Another job can join and work, and the members keep their connections.
    for worker in (other := join_all(lane, 2, job="b")):
        worker.contribute(Spec(), data=bytes(32))
    assert [worker.results() for worker in other] == [[bytes(32)]] * 2
    assert workers[0].session.closed is None
    # As soon as the old ones have ended there is room again.
    for session in list(lane.sessions.values()):
        if session.closed:
            session.disconnect()
    assert again().read(MessageKind.WELCOME)


def test_a_world_for_which_a_lane_has_no_descriptors_is_refused_at_once() -> None:
    """A job may use half of the descriptors, less a few for reconnects."""
    lane = SimLane(descriptors=1_024)
    text = refused_for(Scripted(lane, 1, 449, job="a"))
    assert "job 'a' has 449 workers" in text and "may open 1,024 files, half of them" in text
    assert "needs a limit of 1,026: raise it (ulimit -n)" in text
    assert lane.snapshot()["forming"] == 0
    assert Scripted(lane, 1, 448, job="a").read(MessageKind.PENDING)


def test_a_world_for_which_a_lane_has_no_memory_is_refused_at_once() -> None:
    text = refused_for(Scripted(SimLane(budget=64 << 20), 1, 8_192, job="a"))
    assert "with 67,108,864 bytes of memory a lane admits 1,024 of one job: raise --memory" in text


def test_runs_that_form_leave_descriptors_to_other_jobs() -> None:
    """Claimed ranks that never join must not raise the job's limit of connections."""
    lane = SimLane(descriptors=256)
    ranks = [
        Scripted(lane, rank, 64, job="a", run_id=f"run#{group}", rejoin=True)
        for group in range(8)
        for rank in range(60)
    ]
    assert sum(rank.session.closed is None for rank in ranks) == 128
    text = refused_for(ranks[128])
    assert "has 129 connections to this lane, the limit for one job is 128 (256 open files" in text
    assert "raise ulimit -n and --memory" in text
    assert all(not rank.read(MessageKind.ERROR) for rank in ranks[128 + SPARE_CONNECTIONS :])
    assert all(worker.read(MessageKind.WELCOME) for worker in join_all(lane, 2, job="b"))


@pytest.mark.parametrize("world", [1, 250])
def test_a_job_of_any_size_may_come_at_once(world: int) -> None:
    lane = SimLane(budget=1 << 40)
    assert all(worker.read(MessageKind.WELCOME) for worker in join_all(lane, world))
