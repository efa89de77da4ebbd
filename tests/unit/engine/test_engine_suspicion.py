"""Which slots a worker suspects, and how rank 0 decides which slots are live."""

from __future__ import annotations

from typing import Any

import pytest

from reducer.wire import messages
from reducer.wire.codes import ErrorCode, MessageKind
from tests.support.frames import control, heartbeat
from tests.support.one_worker import (
    CHUNK,
    ROOMY,
    Worker,
    chunks,
    decoded,
    home,
    joined,
    result,
    route,
    submit,
)


def test_a_slot_that_refuses_connections_is_suspected_now_and_every_heartbeat() -> None:
    worker = joined(reducers=2, rank=1)
    worker.disconnect(1)
    assert worker.state.suspected == set()
    worker.refuse(1)
    (suspicion,) = decoded(worker.sent(0), messages.Suspect)
    assert (suspicion.rank, suspicion.slot, suspicion.route) == (1, 1, 0)
    assert "reducer r1 (lane 0): connection refused" in suspicion.reason
    worker.pass_time(1.0, 0)
    assert len(decoded(worker.sent(0), messages.Suspect)) in (3, 4)
    worker.back(1)
    assert worker.state.suspected == set()
    worker.pass_time(1.0, 0, 1)
    assert decoded(worker.sent(0), messages.Suspect) == []
    assert worker.state.counters()["suspicions"] == 1


def test_a_lane_has_300_ms_to_come_back() -> None:
    worker = joined(reducers=2, rank=1)
    worker.disconnect(1)
    worker.connect()
    worker.pass_time(0.25, 0)
    assert worker.state.suspected == set()
    worker.pass_time(0.1, 0)
    assert worker.state.suspected == {1}
    worker.welcome(1)
    assert worker.state.suspected == set()


def test_a_reducer_that_goes_with_a_rank_that_has_left_is_no_news() -> None:
    """A hosted reducer ends with its worker."""
    for left, news in (((), 1), ((1,), 0)):
        worker = joined(reducers=2, world_size=3)
        worker.get(control(messages.Absent((), left)))
        worker.get(control(messages.Goaway("it was told to stop")), 1)
        assert len(worker.state.take_reports()) == news
        assert decoded(worker.sent(0), messages.Route)[-1].live == (1, 0)


def test_a_silent_lane_is_suspected_until_it_speaks_and_keeps_its_connection() -> None:
    worker = joined(reducers=2, rank=1)
    worker.pass_time(0.95, 0)
    assert worker.state.suspected == set()
    worker.pass_time(0.1, 0)
    (suspicion,) = decoded(worker.sent(0), messages.Suspect)
    assert "nothing was heard from it for 1.0" in suspicion.reason
    worker.get(heartbeat(), 1)
    worker.pass_time(0.1, 0)
    assert worker.state.suspected == set()
    assert worker.state.to_drop() == []


def test_a_silent_lane_is_not_taken_in_again_before_it_speaks() -> None:
    worker = joined(reducers=2, rank=0)
    worker.pass_time(1.1, 0)
    assert worker.state.route["live"] == [1, 0]
    worker.pass_time(40.0, 0)
    assert worker.state.route["live"] == [1, 0]
    worker.get(heartbeat(), 1)
    worker.pass_time(0.9, 0, 1)
    assert worker.state.route["live"] == [1, 1]


def test_a_late_tick_blames_nobody() -> None:
    worker = joined(reducers=2, rank=1)
    worker.pass_time(0.9, 0)  # reducer 1 is silent; then this process stops
    worker.tick(30)
    assert worker.state.suspected == set()
    worker.pass_time(0.2, 0)
    assert worker.state.suspected == {1}


def _given_up(seconds: float, **options: Any) -> Worker:
    """A worker that was stopped, while its lanes lost the run."""
    worker = joined(reducers=2, rank=1, **options)
    submit(worker, 2)
    worker.tick(0.05)
    worker.tick(seconds)
    for reducer in (0, 1):
        worker.disconnect(reducer, why="closed by the reducer")
    assert set(worker.connect()) == {(0, 0), (1, 0)}
    for reducer in (0, 1):
        worker.pending(0, reducer=reducer)
    return worker


def test_a_worker_that_was_stopped_for_too_long_says_so() -> None:
    worker = _given_up(6.2)
    worker.pass_time(2.9)
    assert worker.state.error is None  # other ranks may have been stopped, too, and come back
    worker.pass_time(0.2)
    code, text, rank, reason, *_ = worker.state.error
    assert (code, rank, reason) == (ErrorCode.PEER_LOST, 1, "lost")
    assert "rank 1 of job 'job', this process itself, stood still for 6.2 s" in text
    assert "lost after 5.0 s without a byte" in text and "REDUCER_WORKER_SILENCE" in text


def test_a_worker_that_was_stopped_for_a_while_waits_for_the_reducers() -> None:
    worker = _given_up(4.0)
    worker.pass_time(10.0)
    assert worker.state.error is None


def test_ranks_that_were_stopped_together_meet_again() -> None:
    worker = _given_up(6.2)
    for reducer in (0, 1):
        worker.welcome(reducer, instance=2)
    worker.pass_time(5.0, 0, 1)
    assert worker.state.error is None


def test_a_lane_that_does_not_keep_rank_0_s_time_is_named() -> None:
    worker = Worker(worker_silence=60.0)
    worker.welcome(worker_silence_ms=60_000)
    assert worker.state.joined
    worker = Worker(worker_silence=60.0)
    worker.welcome()  # as a lane of an older release does
    assert "does not pass worker_silence on: it runs an older release" in worker.state.error[1]
    with pytest.raises(ValueError, match=r"worker_silence must be 1 to 3600 seconds, got 0\.5 s"):
        Worker(worker_silence=0.5)


def test_goaway_is_suspicion_until_the_slot_is_out() -> None:
    worker = joined(reducers=2, rank=1)
    worker.get(control(messages.Goaway("SIGTERM")), 1)
    (suspicion,) = decoded(worker.sent(0), messages.Suspect)
    assert "SIGTERM" in suspicion.reason
    worker.disconnect(1)
    worker.back(1)
    assert worker.state.suspected == {1}  # the same process still drains
    worker.get(route(1, (0, 1), (1, 0)))
    assert worker.state.suspected == set()


def test_an_error_on_a_rejoin_is_no_strike() -> None:
    worker = joined(reducers=2, rank=1)
    for _ in range(5):
        worker.disconnect(1)
        worker.connect()
        worker.get(control(messages.Error(int(ErrorCode.UNAVAILABLE), "this reducer drains")), 1)
        assert worker.state.to_drop() == [(1, 0)]
    assert worker.state.error is None
    worker.pass_time(0.4, 0)
    (suspicion, *_) = decoded(worker.sent(0), messages.Suspect)
    assert "this reducer drains" in suspicion.reason


def decider(reducers: int = 2, **options: Any) -> Worker:
    return joined(reducers=reducers, rank=0, credit=ROOMY, **options)


def suspect(worker: Worker, slot: int, known: int = 0, rank: int = 1) -> None:
    worker.get(control(messages.Suspect(rank, slot, known, "reset")))


def test_rank_0_puts_out_a_slot_that_it_cannot_reach_and_tells_all_lanes() -> None:
    worker = decider(3)
    operation, _ = submit(worker, 6)
    for reducer in range(3):
        worker.sent(reducer)
    worker.disconnect(1)
    worker.refuse(1)
    assert worker.state.route["live"] == [1, 0, 1]
    assert worker.state.route["since"] == [0, 1, 0]
    (report,) = worker.state.take_reports()
    assert "reducer r1 is out: connection refused" in report
    frames = [worker.sent(0), worker.sent(2)]
    for said_to in frames:
        assert said_to[0].header.kind == MessageKind.ROUTE  # before the first frame under the route
        assert decoded(said_to, messages.Suspect) == []
    moved = sorted(chunks(frames[0]) + chunks(frames[1]))
    assert moved == [(0, chunk, 1) for chunk in range(6) if home(chunk, 3) == 1]
    assert not operation.done


def test_rank_0_puts_out_what_another_rank_suspects() -> None:
    worker = decider()
    suspect(worker, 1)
    assert worker.state.route["live"] == [1, 0]
    suspect(worker, 0)  # the last one
    suspect(worker, 9)
    assert worker.state.route["route"] == 1


def test_rank_0_ignores_a_suspicion_of_a_slot_as_it_was() -> None:
    worker = decider()
    suspect(worker, 1)
    worker.pass_time(0.9, 0, 1)
    assert (worker.state.route["route"], worker.state.route["live"]) == (1, [1, 0])
    worker.pass_time(0.2, 0, 1)
    assert (worker.state.route["route"], worker.state.route["live"]) == (2, [1, 1])
    suspect(worker, 1, known=1)
    assert worker.state.route["route"] == 2
    suspect(worker, 1, known=2)
    assert worker.state.route["live"] == [1, 0]


def test_a_slot_that_only_some_ranks_reach_stays_out_for_longer_each_time() -> None:
    worker = decider()
    out = []
    for _ in range(4):
        suspect(worker, 1, known=worker.state.route["route"])
        since = worker.now
        while not worker.state.route["live"][1]:
            worker.pass_time(0.05, 0, 1)
        out.append(round(worker.now - since, 1))
    assert out == pytest.approx([1, 2, 4, 8], abs=0.15)


def test_a_slot_that_is_restarted_again_and_again_is_taken_in_at_once_each_time() -> None:
    worker = decider()
    for process in range(10, 15):
        worker.disconnect(1)
        worker.refuse(1)
        assert worker.state.route["live"] == [1, 0]
        worker.pass_time(0.1, 0)
        assert worker.connect() == [(1, 0)]
        worker.welcome(1, incarnation=bytes([process]) * 16, credit=ROOMY)
        worker.pass_time(0.6, 0, 1)
        assert worker.state.route["live"] == [1, 1]


def test_rank_0_never_leaves_only_slots_that_it_does_not_reach() -> None:
    worker = decider()
    for reducer in (0, 1):
        worker.disconnect(reducer)
    worker.connect()
    worker.pass_time(1.0)
    assert worker.state.route["route"] == 0
    assert worker.state.suspected == {0, 1}
    worker.welcome(0)
    assert worker.state.route["live"] == [1, 0]


def test_the_last_live_slot_begins_anew_where_it_is() -> None:
    worker = decider(1, lanes=2)
    operation, _ = submit(worker, 4)
    before = [chunks(worker.sent(0, lane)) for lane in (0, 1)]
    for lane in (0, 1):
        worker.disconnect(0, lane)
    assert sorted(worker.connect()) == [(0, 0), (0, 1)]
    worker.pending(1, lanes=3)  # a new process with more lanes
    assert worker.connect() == [(0, 2)]
    assert worker.state.route["route"] == 0
    for lane in range(3):
        assert worker.state.route["route"] == 0
        worker.welcome(0, lane, 3, incarnation=b"n" * 16, credit=ROOMY)
    assert worker.state.route == {"route": 1, "since": [1], "live": [1], "lanes": [3]}
    after = [chunks(worker.sent(0, lane)) for lane in range(3)]
    assert sorted(chunk for sent in before for chunk in sent) == [(0, c, 0) for c in range(4)]
    assert sorted(chunk for sent in after for chunk in sent) == [(0, c, 1) for c in range(4)]
    assert not operation.done


def test_a_restart_moves_the_streams_of_dead_slots_too() -> None:
    worker = decider(2)
    suspect(worker, 1)
    submit(worker, 4)
    worker.sent(0)
    worker.disconnect(0)
    worker.connect()
    worker.welcome(0, incarnation=b"n" * 16, credit=ROOMY)
    assert worker.state.route["since"] == [2, 2]
    assert worker.state.route["live"] == [1, 0]
    assert sorted(chunks(worker.sent(0))) == [(0, chunk, 2) for chunk in range(4)]


def test_a_dead_slot_is_taken_in_when_it_misses_no_rank() -> None:
    worker = decider()
    worker.disconnect(1)
    worker.refuse(1)
    assert worker.state.route["live"] == [1, 0]
    worker.back(1, incarnation=b"n" * 16, instance=3, credit=ROOMY)
    worker.get(control(messages.Absent(((1, "connection reset"),))), 1)
    worker.pass_time(1.0, 0, 1)
    assert worker.state.route["live"] == [1, 0]
    worker.get(control(messages.Absent()), 1)
    worker.pass_time(0.45, 0, 1)
    assert worker.state.route["live"] == [1, 0]
    worker.pass_time(0.1, 0, 1)
    assert worker.state.route == {"route": 2, "since": [0, 2], "live": [1, 1], "lanes": [1, 1]}
    assert decoded(worker.sent(1), messages.Route)[-1].route == 2


def test_a_draining_slot_is_not_taken_in_again_but_its_successor_is() -> None:
    worker = decider()
    worker.get(control(messages.Goaway("SIGTERM")), 1)
    assert worker.state.route["live"] == [1, 0]
    worker.pass_time(1.0, 0, 1)
    assert worker.state.route["live"] == [1, 0]
    worker.disconnect(1)
    worker.back(1, incarnation=b"n" * 16)
    worker.pass_time(0.6, 0, 1)
    assert worker.state.route["live"] == [1, 1]


def test_the_last_slot_may_drain() -> None:
    worker = decider(1)
    operation, _ = submit(worker, 1)
    (sent,) = worker.contributions()
    worker.get(control(messages.Goaway("SIGTERM")))
    worker.get(result(sent, bytes(CHUNK)))
    assert operation.done
    assert worker.state.route["route"] == 0
