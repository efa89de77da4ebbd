"""When a rank is lost, how long rounds wait for reducers, and who leaves when."""

from __future__ import annotations

import engine_parts
import pytest

from reducer.core.limits.budget import RankLimits
from reducer.core.members.roster import Members
from reducer.core.rounds.chunk_owners import Route
from reducer.core.rounds.view import View
from reducer.core.runs.run import Run
from reducer.core.runs.terms import Terms
from reducer.core.surface.settings import LaneSettings
from reducer.wire import messages
from reducer.wire.codes import ErrorCode, MessageKind
from reducer.wire.header import Header
from tests.support.checksum import crc32c
from tests.support.frames import control, frame, heartbeat
from tests.support.one_worker import (
    CHUNK,
    KEY,
    ROOMY,
    TABLE,
    decoded,
    home,
    joined,
    result,
    route,
    submit,
)


def _run(world_size: int) -> Run:
    route, limits = Route.first((1,)), RankLimits(ROOMY, ROOMY, CHUNK, ROOMY, ROOMY)
    settings = LaneSettings(0, 1, bytes(16), ROOMY, crc32c, lambda *_: 4)
    terms = Terms(1, "job", "run", 0, world_size, TABLE)
    return Run(terms, settings, route, View(world_size), limits)


def absent(*ranks: int, left: tuple[int, ...] = (), why: str = "the worker closed it") -> bytes:
    return control(messages.Absent(tuple((rank, why) for rank in ranks), left))


def test_a_rank_is_lost_when_every_lane_of_every_live_slot_misses_it() -> None:
    worker = joined(reducers=2, lanes=2, rank=1, world_size=4)
    operation, _ = submit(worker, 1)
    for reducer, lane in ((0, 0), (0, 1), (1, 0)):
        worker.get(absent(2, 3), reducer, lane)
        assert worker.state.error is None
    worker.get(absent(2), 1, 1)
    assert worker.state.error is not None
    code, text, rank, reason, *_ = worker.state.error
    assert (code, rank, reason) == (ErrorCode.PEER_LOST, 2, "lost")
    assert text == "rank 2 of job 'job' is lost: the worker closed it"
    assert operation.error[:2] == (code, text)
    for reducer, lane in ((0, 0), (0, 1), (1, 0), (1, 1)):
        (told,) = decoded(worker.sent(reducer, lane), messages.Error)
        assert (told.code, told.rank, told.reason, told.message) == (code, 2, "lost", text)


def test_a_rank_that_comes_back_is_not_lost() -> None:
    worker = joined(reducers=2, rank=1, world_size=4)
    worker.get(absent(2))
    worker.get(absent())
    worker.get(absent(2), 1)
    assert worker.state.error is None
    worker.get(absent(2))
    assert worker.state.error is not None


def test_a_slot_that_is_out_of_reach_has_a_say_for_five_seconds() -> None:
    worker = joined(reducers=2, rank=1, world_size=4)
    worker.get(absent(2), 1)
    worker.disconnect(1)
    worker.connect()
    worker.get(absent(2))
    worker.pass_time(4.9, 0)
    assert worker.state.error is None
    worker.pass_time(0.3, 0)
    assert worker.state.error is not None
    assert worker.state.error[2] == 2


def test_the_other_lanes_of_a_slot_have_a_say_when_one_is_out_of_reach() -> None:
    """One lane of every reducer is lost, and so is the rank that could move their streams."""
    worker = joined(reducers=2, lanes=2, rank=1, world_size=4)
    operation, _ = submit(worker, 1)
    for reducer in (0, 1):
        worker.disconnect(reducer)
        worker.get(absent(0, 2), reducer, 1)
    for _ in range(5):
        assert operation.error is None
        worker.pass_time(1.0)
        worker.get(heartbeat(), 0, 1)
        worker.get(heartbeat(), 1, 1)
    worker.pass_time(0.1)
    code, text, *_ = operation.error
    assert (code, text) == (
        ErrorCode.PEER_LOST, "rank 0 of job 'job' is lost: the worker closed it"
    )  # fmt: skip


def test_a_reducer_on_the_ranks_own_machine_has_no_say() -> None:
    """The rank's network is gone: only the reducer beside the rank still hears the rank."""
    hosted = [[0, 1], [2, 3]]
    for rank, lost in ((1, True), (3, False)):
        worker = joined(reducers=2, rank=rank, world_size=4, hosted=hosted)
        worker.get(absent(2))
        assert (worker.state.error is not None) == lost
    # With the machine, its reducer is gone, too: nobody has to wait for the reducer.
    worker = joined(reducers=2, rank=1, world_size=4, hosted=hosted)
    worker.disconnect(1)
    worker.get(absent(2))
    assert worker.state.error is not None
    assert worker.state.error[1] == "rank 2 of job 'job' is lost: the worker closed it"


def test_a_reducer_that_goes_with_its_host_names_the_rank_and_not_itself() -> None:
    """All ranks are on one machine. Rank 0 has started the reducer, and dies."""
    worker = joined(rank=1, world_size=3, hosted=[[0, 1, 2]])
    operation, _ = submit(worker, 1)
    worker.disconnect()
    worker.refuse()
    worker.pass_time(9.9)
    assert not operation.done
    worker.pass_time(0.3)
    code, text, rank, reason, *_ = operation.error
    assert (code, rank, reason) == (ErrorCode.PEER_LOST, 0, "lost")
    assert text == (
        "rank 0 of job 'job' is lost, and with it the reducer that it hosted: neither has been "
        "heard of for 10.0 s"
    )
    worker = joined(rank=1, world_size=3, hosted=[[0, 1, 2]], reducer_wait=2.0)
    operation, _ = submit(worker, 1)
    worker.disconnect()
    worker.refuse()
    worker.pass_time(2.3)
    assert "neither has been heard of for 2.0 s" in operation.error[1]
    # Rank 0 itself knows better, and a reducer that nobody hosts is another case.
    for options in ({"rank": 0, "hosted": [[0, 1, 2]]}, {"rank": 1, "hosted": [[]]}):
        worker = joined(world_size=3, **options)
        operation, _ = submit(worker, 1)
        worker.disconnect()
        worker.refuse()
        worker.pass_time(11.0)
        assert not operation.done


def test_a_slot_that_is_out_of_the_route_has_no_say() -> None:
    worker = joined(reducers=2, rank=1, world_size=4)
    worker.get(absent(2))
    assert worker.state.error is None
    worker.get(route(1, (0, 1), (1, 0)))
    worker.tick(0.05)
    assert worker.state.error is not None


def test_a_worker_that_reaches_nobody_calls_nobody_lost() -> None:
    worker = joined(reducers=2, rank=1, world_size=4)
    for reducer in (0, 1):
        worker.get(absent(2) if reducer == 0 else absent(), reducer)
        worker.disconnect(reducer)
    worker.connect()
    worker.pass_time(6.0)
    assert worker.state.error is None


def test_a_rank_that_left_while_it_is_needed_is_lost() -> None:
    worker = joined(reducers=2, rank=1)
    worker.get(absent(left=(0,)))
    assert worker.state.error is None
    operation, _ = submit(worker, 1)
    worker.tick(0.05)
    code, text, rank, reason, *_ = operation.error
    assert (code, rank, reason) == (ErrorCode.PEER_LOST, 0, "left")
    assert "rank 0 of job 'job' has left" in text


@pytest.mark.parametrize("others", [8_191, 8_190])
def test_the_largest_run_ends_when_all_others_have_left(others: int) -> None:
    """Rank 0 leaves last. A lane names only 4,096 of the ranks that left, and counts the rest."""
    members = Members(_run(8_192), {}, 0, 5.0, 0.0)
    members.left.update(range(1, 1 + others))
    message = members.absence(0.0)
    assert message is not None
    assert len(message.left) == 4_096
    assert members.absence(0.0) is None
    worker = joined(world_size=8_192)
    worker.get(control(message))
    worker.state.leave(worker.now)
    assert worker.state.error is None
    assert worker.state.left == (others == 8_191)
    members.left.add(0)
    assert members.absence(0.0) is not None  # although the list is unchanged


def test_open_rounds_wait_for_a_reducer_that_they_need_and_no_longer() -> None:
    worker = joined(credit=ROOMY, reducers=2, rank=1, reducer_wait=2.0)
    worker.disconnect(1)
    worker.refuse(1)
    worker.pass_time(5.0, 0)
    assert worker.state.error is None  # an idle group needs no reducer
    only_0 = next(
        k for k in (f"k{n}" for n in range(99)) if engine_parts.key_id(k) % 2**32 % 2 == 0
    )
    submit(worker, 1, only_0)
    worker.pass_time(3.0, 0)
    assert worker.state.error is None
    operation, _ = submit(worker, 2)
    worker.pass_time(1.9, 0)
    assert not operation.done
    worker.pass_time(0.3, 0)
    code, text, _, reason, *_ = operation.error
    assert (code, reason) == (ErrorCode.UNAVAILABLE, "unreachable")
    assert "slot 1 at r1 for 2.0 s (connection refused)" in text
    (told,) = decoded(worker.sent(0), messages.Error)
    assert told.rank == 1  # an error of the run, not of the connection


def test_open_rounds_wait_no_longer_for_the_only_reducer_if_it_stands_still() -> None:
    """The connection to a stopped reducer may stay open for a quarter of an hour."""
    worker = joined(reducer_wait=2.0)
    worker.pass_time(5.0)
    assert worker.state.error is None  # an idle group needs no reducer
    worker.get(heartbeat())
    operation, _ = submit(worker, 1)
    worker.pass_time(2.0)
    worker.get(heartbeat())  # the reducer was only slow
    worker.pass_time(2.9)
    assert not operation.done
    worker.pass_time(0.3)
    code, text, _, reason, *_ = operation.error
    assert (code, reason) == (ErrorCode.UNAVAILABLE, "unreachable")
    assert "slot 0 at r0 for 2.0 s (nothing was heard from it for 1.0 s)" in text


def test_a_route_around_ends_the_wait() -> None:
    worker = joined(credit=ROOMY, reducers=2, rank=1, reducer_wait=2.0)
    operation, _ = submit(worker, 4)
    worker.disconnect(1)
    worker.refuse(1)
    worker.pass_time(1.9, 0)
    worker.get(route(1, (0, 1), (1, 0)))
    worker.pass_time(3.0, 0)
    assert worker.state.error is None and not operation.done


def test_rank_0_leaves_last() -> None:
    worker = joined(reducers=2, world_size=3)
    worker.state.leave(worker.now)
    worker.pass_time(1.0, 0, 1)
    assert not worker.state.left
    worker.get(absent(left=(1,)))
    worker.pass_time(1.0, 0, 1)
    assert not worker.state.left
    worker.get(absent(left=(2,)), 1)
    worker.tick(0.05)
    assert worker.state.left
    assert worker.kinds(0)[-1] == worker.kinds(1)[-1] == MessageKind.BYE


def test_rank_0_waits_for_ten_seconds_and_others_do_not_wait() -> None:
    worker = joined(world_size=2)
    worker.state.leave(worker.now)
    worker.pass_time(9.9, 0)
    assert not worker.state.left
    worker.pass_time(0.2, 0)
    assert worker.state.left
    other = joined(world_size=2, rank=1)
    other.state.leave(other.now)
    assert other.state.left


def test_a_lane_that_is_lost_while_leaving_is_dialled_only_for_what_is_unstable() -> None:
    worker = joined(reducers=2, world_size=2)
    operation, _ = submit(worker, 1)
    owner = home(0, 2)
    (sent,) = worker.contributions(owner)
    worker.state.leave(worker.now)
    worker.disconnect(owner)
    worker.back(owner)
    worker.get(result(sent, bytes(CHUNK)), owner)
    assert operation.done
    stable = KEY.to_bytes(8, "little") + (1 << 24).to_bytes(8, "little")
    worker.get(frame(Header(kind=MessageKind.HEARTBEAT, chunk=owner), stable), owner)
    assert worker.state.counters()["live_rounds"] == 0
    for reducer in (0, 1):
        worker.disconnect(reducer)
    assert worker.state.wanted() == []
    worker.tick(0.05)
    assert worker.state.left and worker.state.error is None
