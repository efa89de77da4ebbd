"""What a worker does about lanes, reducers and ranks that are lost: PROTOCOL.md, section 11."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from reducer.wire import messages
from reducer.wire.codes import ErrorCode, MessageKind
from reducer.wire.decoder import Frame
from reducer.wire.header import HEADER_SIZE, Header
from reducer_client import _engine
from tests.support.frames import control, frame, heartbeat
from tests.support.one_worker import CHUNK, Worker, joined, result

ROOMY = 64 * CHUNK
FLOATS = CHUNK // 4
KEY = _engine.key_id("key")
Live = tuple[int, ...]


def route(number: int, since: tuple[int, ...], live: Live, lanes: Live | None = None) -> bytes:
    return control(messages.Route(number, since, live, lanes or (1,) * len(since)))


def said(frames: list[Frame], kind: MessageKind) -> list[Frame]:
    return [f for f in frames if f.header.kind == kind]


def decoded(frames: list[Frame], kind: type[Any]) -> list[Any]:
    found = said(frames, messages.KIND_OF[kind])
    return [messages.decode(kind, f.payload or b"") for f in found]


def chunks(frames: list[Frame]) -> list[tuple[int, int, int]]:
    """(round, chunk, route) of the contributions."""
    found = said(frames, MessageKind.CONTRIBUTION)
    return [(f.header.round, f.header.chunk, f.header.route) for f in found]


def submit(worker: Worker, count: int, key: str = "key") -> tuple[Any, np.ndarray]:
    """A round of `count` whole chunks, and its target."""
    values = np.arange(count * FLOATS, dtype=np.float32)
    target = np.full_like(values, -1)
    return worker.submit(key, values, target), target


def home(chunk: int, slots: int) -> int:
    return (KEY % 2**32 + chunk) % slots


def positions(frames: list[Frame]) -> dict[tuple[int, int], int]:
    """(home slot, route) and done of the one key in the heartbeats."""
    found = {}
    for beat in said(frames, MessageKind.HEARTBEAT):
        payload = bytes(beat.payload or b"")
        if payload:
            assert int.from_bytes(payload[:8], "little") == KEY
            done = int.from_bytes(payload[8:16], "little")
            found[beat.header.chunk, beat.header.route] = done
    return found


# --- placement ----------------------------------------------------------------------------------


@pytest.mark.parametrize("live", [(1, 1, 0, 1), (0, 1, 1, 0), (0, 0, 0, 1)])
def test_live_slots_share_the_chunks_of_dead_ones_evenly(live: Live) -> None:
    lanes = [2, 1, 3, 4]

    def placed(now_live: Live) -> list[tuple[int, int]]:
        rows = _engine.plan(1, 6, 64 * 10_000, 1, 0, [(0, 64)], "key", lanes, live=list(now_live))
        return [(slot, lane) for slot, lane, *_ in rows]

    before, after = placed((1, 1, 1, 1)), placed(live)
    assert len(before) == 10_000
    gains: Counter[tuple[int, int]] = Counter()
    for chunk, (old, new) in enumerate(zip(before, after, strict=True)):
        assert old[0] == home(chunk, 4)
        if live[old[0]]:
            assert new == old
        else:
            gains[old[0], new[0]] += 1
    for dead in (slot for slot in range(4) if not live[slot]):
        shares = [gains[dead, slot] for slot in range(4) if live[slot]]
        assert max(shares) - min(shares) <= 1
    for slot in (slot for slot in range(4) if live[slot]):
        by_lane = Counter(lane for at, lane in after if at == slot)
        assert max(by_lane.values()) - min(by_lane.values()) <= 4


# --- a lane that is lost, and back --------------------------------------------------------------


def test_what_had_no_answer_is_sent_again_in_order_and_stays_charged() -> None:
    worker = joined(credit=3 * CHUNK)
    operation, target = submit(worker, 5)
    first = said(worker.sent(), MessageKind.CONTRIBUTION)
    assert [f.header.chunk for f in first] == [0, 1, 2]
    answer = np.full(FLOATS, 7, np.float32).tobytes()
    worker.get(result(first[1].header, answer))
    assert chunks(worker.sent()) == [(0, 3, 0)]
    assert worker.state.counters()["unanswered"] == 3 * CHUNK
    worker.lose()
    assert worker.state.counters()["unanswered"] == 3 * CHUNK  # the lane may have it
    assert worker.connect() == [(0, 0)]
    hello = decoded(worker.sent(), messages.Hello)
    assert (hello[0].rejoin, hello[0].run_id, hello[0].rank) == (True, "run", 0)
    assert worker.sent() == []
    worker.welcome(credit=3 * CHUNK)
    again = worker.sent()
    assert [f.header.kind for f in again].count(MessageKind.KEY) == 1
    assert chunks(again) == [(0, 0, 0), (0, 2, 0), (0, 3, 0)]
    assert [bytes(f.payload or b"") for f in said(again, MessageKind.CONTRIBUTION)[:1]] == [
        bytes(first[0].payload or b"")
    ]
    for index in (0, 2, 3, 4):
        worker.get(result(first[0].header, answer, chunk=index))
        worker.sent()
    assert operation.done and operation.error is None
    np.testing.assert_array_equal(target, np.full_like(target, 7))
    counters = worker.state.counters()
    assert (counters["unanswered"], counters["resent"], counters["reconnects"]) == (0, 3, 1)


def test_a_result_may_come_before_the_contribution_is_sent_again() -> None:
    worker = joined(credit=4 * CHUNK)
    operation, _ = submit(worker, 2)
    (first, second) = worker.contributions()
    worker.lose()
    worker.connect()
    worker.sent()
    worker.welcome()
    worker.get(result(first, bytes(CHUNK)))
    assert [h.chunk for h in worker.contributions()] == [1]
    worker.get(result(second, bytes(CHUNK)))
    assert operation.done and worker.state.error is None
    assert worker.state.counters()["unanswered"] == 0


def test_done_and_the_question_for_stats_are_repeated() -> None:
    worker = joined()
    operation, _ = submit(worker, 1)
    worker.get(result(worker.contributions()[0], bytes(CHUNK)))
    worker.pass_time(0.3, 0)
    assert positions(worker.sent()) == {(0, 0): 1 << 24}
    assert operation.done
    worker.lose()
    assert positions(worker.back()) == {(0, 0): 1 << 24}
    worker.get(heartbeat((KEY, 1 << 24)))
    assert worker.state.counters()["staging_bytes"] == 0


def test_a_result_that_was_cut_does_not_spoil_the_next_connection() -> None:
    worker = joined()
    operation, target = submit(worker, 1)
    (sent,) = worker.contributions()
    answer = result(sent, np.full(FLOATS, 3, np.float32).tobytes())
    worker.get(answer[: HEADER_SIZE + 100])
    worker.lose()
    worker.back()
    worker.get(answer)
    assert operation.done
    assert target.tolist() == [3.0] * FLOATS


def test_chunks_of_a_round_in_place_are_sent_again_as_they_were() -> None:
    worker = joined(credit=CHUNK)
    values = np.full(2 * FLOATS, 5, np.float32)
    operation = worker.submit("key", values, values)
    (first,) = worker.contributions()
    answer = result(first, np.full(FLOATS, 9, np.float32).tobytes())
    worker.get(answer[:-1])  # most of it is in the array already
    assert values[0] == 9
    worker.lose()
    again = said(worker.back(credit=CHUNK), MessageKind.CONTRIBUTION)
    assert np.frombuffer(again[0].payload or b"", np.float32).tolist() == [5.0] * FLOATS
    worker.get(answer)
    (second,) = worker.contributions()
    worker.get(result(second, np.full(FLOATS, 9, np.float32).tobytes()))
    assert operation.done
    assert values.tolist() == [9.0] * (2 * FLOATS)


def test_the_window_of_a_round_does_not_count_what_is_sent_again() -> None:
    window = (512 << 10) // CHUNK
    worker = joined(credit=4 * window * CHUNK)
    submit(worker, 2 * window)
    assert len(worker.contributions()) == window
    for _ in range(3):
        worker.lose()
        again = said(worker.back(credit=4 * window * CHUNK), MessageKind.CONTRIBUTION)
        assert [f.header.chunk for f in again] == list(range(window))
    worker.get(result(again[0].header, bytes(CHUNK)))
    assert [h.chunk for h in worker.contributions()] == [window]


def test_a_grant_ends_with_its_connection() -> None:
    worker = joined()
    submit(worker, 2, "a")
    submit(worker, 2, "key")
    worker.sent()
    worker.get(frame(Header(kind=MessageKind.GRANT, key=KEY, round=0)))
    assert [h.key for h in worker.contributions()] == [KEY] * 2
    worker.lose()
    again = said(worker.back(), MessageKind.CONTRIBUTION)
    assert [f.header.key for f in again] == [_engine.key_id("a")] * 2 + [KEY] * 2
    submit(worker, 2, "key")
    worker.get(frame(Header(kind=MessageKind.GRANT, key=KEY, round=1)))
    assert not worker.contributions()  # the room of the grant is taken


def test_an_abandoned_round_is_abandoned_again_until_it_is_stable() -> None:
    worker = joined()
    operation, _ = submit(worker, 3)
    worker.sent()
    worker.get(control(messages.Refused(int(ErrorCode.MISMATCH), "two truths"), key=KEY))
    assert operation.error[:2] == (ErrorCode.MISMATCH, "two truths")
    first = worker.sent()
    abandoned = messages.Abandon(int(ErrorCode.MISMATCH), "two truths")
    assert decoded(first, messages.Abandon) == [abandoned]
    worker.get(control(messages.Refused(int(ErrorCode.MISMATCH), "two truths"), key=KEY))
    assert worker.sent() == []
    worker.lose()
    again = worker.back()
    assert decoded(again, messages.Abandon) == [abandoned]
    assert chunks(again) == []
    assert positions(again) == {(0, 0): 1 << 24}
    worker.get(heartbeat((KEY, 1 << 24)))
    worker.lose()
    assert decoded(worker.back(), messages.Abandon) == []
    assert worker.state.counters()["live_rounds"] == 0


@pytest.mark.parametrize("code", [ErrorCode.PROTOCOL, ErrorCode.CORRUPTED, ErrorCode.INTERNAL])
def test_ten_errors_of_a_connection_in_a_row_are_final(code: ErrorCode) -> None:
    worker = joined()
    operation, _ = submit(worker, 2)
    error = control(messages.Error(int(code), "no frame magic"))
    (first, second) = worker.contributions()
    for attempt in range(13):
        worker.get(error)
        assert worker.state.error is None
        assert worker.state.to_drop() == [(0, 0)]
        worker.lose(why="we closed it")
        worker.back()
        if attempt == 3:  # a result in between
            worker.get(result(first, bytes(CHUNK)))
    worker.get(error)
    assert worker.state.error is not None
    assert worker.state.error[:2] == (code, "no frame magic (from reducer r0 (lane 0))")
    assert operation.error[0] == code
    assert second.chunk == 1


def test_ten_frames_that_break_the_protocol_are_final_too() -> None:
    worker = joined()
    for attempt in range(10):
        worker.get(b"x" * 100)
        assert (worker.state.error is None) == (attempt < 9)
        if attempt < 9:
            assert worker.state.to_drop() == [(0, 0)]
            worker.lose()
            worker.back()
    assert worker.state.error is not None
    assert worker.state.error[0] == ErrorCode.PROTOCOL


def test_a_lane_that_errs_again_and_again_is_left_to_the_others_while_there_are_any() -> None:
    worker = joined(reducers=2, rank=1)
    error = control(messages.Error(int(ErrorCode.CORRUPTED), "a bad CRC"))
    for attempt in range(5):
        worker.sent(0)
        worker.get(error, 1)
        suspicions = decoded(worker.sent(0), messages.Suspect)
        assert [s.slot for s in suspicions] == ([1] if attempt >= 2 else [])
        worker.lose(1)
        worker.back(1)
    worker.get(route(1, (0, 1), (1, 0)))
    worker.get(error, 1)
    for _ in range(9):
        worker.get(error, 0)
        assert worker.state.error is None
        worker.lose(0)
        worker.back(0)
    worker.get(error, 0)
    assert worker.state.error[0] == ErrorCode.CORRUPTED


@pytest.mark.parametrize(
    "error",
    [
        messages.Error(int(ErrorCode.PEER_LOST), "rank 1 is lost", 1, "lost"),
        messages.Error(int(ErrorCode.MISMATCH), "two truths"),
        messages.Error(int(ErrorCode.INTEGRITY), "two copies"),
        messages.Error(int(ErrorCode.INTERNAL), "a bug", 1),
    ],
)
def test_an_error_of_the_run_is_final_and_told_to_every_lane(error: messages.Error) -> None:
    worker = joined(reducers=2)
    operation, _ = submit(worker, 2)
    worker.sent(1)
    worker.get(control(error))
    assert operation.error[0] == error.code
    assert operation.error[1].startswith(error.message)
    (told,) = decoded(worker.sent(1), messages.Error)
    assert (told.code, told.reason) == (error.code, error.reason)
    assert told.rank == (1 if error.rank == 1 else 0)  # never an error of the connection alone


def test_a_group_that_its_user_aborts_says_nothing_of_a_failure() -> None:
    worker = joined(reducers=2)
    worker.state.leave(worker.now)
    worker.pass_time(10.1, 0, 1)
    assert MessageKind.ERROR not in worker.kinds(1)


# --- streams that move --------------------------------------------------------------------------


def test_a_route_moves_the_chunks_of_the_dead_slot_and_no_other() -> None:
    worker = joined(credit=ROOMY, reducers=2, rank=1)
    operation, target = submit(worker, 8)
    before = [chunks(worker.sent(reducer)) for reducer in (0, 1)]
    assert sorted(before[0] + before[1]) == [(0, chunk, 0) for chunk in range(8)]
    moved = [(0, chunk, 1) for chunk in range(8) if home(chunk, 2) == 1]
    worker.get(route(1, (0, 1), (1, 0)))
    assert worker.state.route == {"route": 1, "since": [0, 1], "live": [1, 0], "lanes": [1, 1]}
    after = worker.sent(0)
    assert chunks(after) == moved
    assert decoded(after, messages.Route) == []  # it knows
    (told,) = worker.sent(1)
    assert messages.decode(messages.Route, told.payload or b"").since == (0, 1)
    assert worker.state.counters()["unanswered"] == 8 * CHUNK
    late = Header(kind=MessageKind.RESULT, dtype=1, op=1, collective=1, key=KEY, count=8 * FLOATS)
    for _, chunk, _ in moved:  # of the stream as it was: no fault of that lane
        worker.get(frame(late._replace(chunk=chunk), bytes(CHUNK)), 1)
    assert worker.state.error is None and worker.state.to_drop() == []
    assert worker.state.counters()["unanswered"] == 8 * CHUNK
    for _, chunk, since in before[0] + moved:
        answer = np.full(FLOATS, chunk, np.float32).tobytes()
        worker.get(frame(late._replace(chunk=chunk, route=since), answer))
    assert operation.done and operation.error is None
    assert target.tolist() == [float(n // FLOATS) for n in range(8 * FLOATS)]
    assert worker.state.counters()["unanswered"] == 0


def test_a_result_that_was_on_its_way_when_its_stream_moved_is_thrown_away() -> None:
    worker = joined(credit=ROOMY, reducers=2, rank=1)
    operation, target = submit(worker, 1)
    owner = home(0, 2)
    (sent,) = worker.contributions(owner)
    late = result(sent, np.full(FLOATS, 3, np.float32).tobytes())
    half = HEADER_SIZE + CHUNK // 2
    worker.get(late[:half], owner)
    since, live = ((0, 1), (1, 0)) if owner == 1 else ((1, 0), (0, 1))
    worker.get(route(1, since, live), 1 - owner)
    (again,) = worker.contributions(1 - owner)
    worker.get(result(again, np.full(FLOATS, 7, np.float32).tobytes()), 1 - owner)
    assert operation.done
    target[:] = 8  # it is the caller's again
    worker.get(late[half:] + heartbeat(), owner)
    assert target.tolist() == [8.0] * FLOATS
    assert worker.state.error is None and worker.state.to_drop() == []


def test_what_is_held_but_not_stable_is_sent_to_the_new_owner() -> None:
    worker = joined(credit=ROOMY, reducers=2, rank=1)
    operation, target = submit(worker, 4)
    for reducer in (0, 1):
        for header in worker.contributions(reducer):
            worker.get(result(header, np.full(FLOATS, 7, np.float32).tobytes()), reducer)
    assert operation.done
    worker.get(route(1, (0, 1), (1, 0)))
    moved = [chunk for chunk in range(4) if home(chunk, 2) == 1]
    frames = worker.sent(0)
    assert chunks(frames) == [(0, chunk, 1) for chunk in moved]
    assert worker.state.counters()["unanswered"] == len(moved) * CHUNK
    for sent in said(frames, MessageKind.CONTRIBUTION):  # the same result; nobody waits for it
        worker.get(result(sent.header, bytes(CHUNK)))
    assert worker.state.counters()["unanswered"] == 0
    assert target.tolist() == [7.0] * (4 * FLOATS)
    assert worker.state.counters()["staging_bytes"] > 0
    for slot, since in ((0, 0), (1, 1)):
        beat = Header(kind=MessageKind.HEARTBEAT, chunk=slot, route=since)
        stable = KEY.to_bytes(8, "little") + (1 << 24).to_bytes(8, "little")
        worker.get(frame(beat, stable))
    assert worker.state.counters()["staging_bytes"] == 0
    assert worker.state.counters()["live_rounds"] == 0


def test_a_charge_without_an_answer_ends_when_the_chunk_is_stable() -> None:
    worker = joined(credit=ROOMY, reducers=2, rank=1)
    submit(worker, 2)
    for reducer in (0, 1):
        for header in worker.contributions(reducer):
            worker.get(result(header, bytes(CHUNK)), reducer)
    worker.get(route(1, (0, 1), (1, 0)))
    assert len(worker.contributions(0)) == 1
    assert worker.state.counters()["unanswered"] == CHUNK
    stable = KEY.to_bytes(8, "little") + (1 << 24).to_bytes(8, "little")
    worker.get(frame(Header(kind=MessageKind.HEARTBEAT, chunk=1, route=0), stable))
    assert worker.state.counters()["unanswered"] == CHUNK  # of the stream as it was
    worker.get(frame(Header(kind=MessageKind.HEARTBEAT, chunk=1, route=1), stable))
    assert worker.state.counters()["unanswered"] == 0


def test_the_positions_of_a_stream_that_moved_begin_anew() -> None:
    worker = joined(credit=ROOMY, reducers=2, rank=1)
    submit(worker, 4)
    for reducer in (0, 1):
        for header in worker.contributions(reducer):
            worker.get(result(header, bytes(CHUNK)), reducer)
    submit(worker, 4)
    worker.sent(0), worker.sent(1)
    worker.get(route(1, (0, 1), (1, 0)))
    first = next(chunk for chunk in range(4) if home(chunk, 2) == 1)
    moved = said(worker.sent(0), MessageKind.CONTRIBUTION)
    assert [(f.header.round, f.header.route) for f in moved] == [(0, 1)] * 2 + [(1, 1)] * 2
    assert {f.header.done for f in moved} == {(1 << 24) + first}


def test_a_key_that_was_forgotten_just_now_has_its_done_told_to_the_new_owner() -> None:
    worker = joined(credit=ROOMY, reducers=2, rank=1)
    submit(worker, 2)
    for reducer in (0, 1):
        for header in worker.contributions(reducer):
            worker.get(result(header, bytes(CHUNK)), reducer)
            stable = KEY.to_bytes(8, "little") + (1 << 24).to_bytes(8, "little")
            worker.get(frame(Header(kind=MessageKind.HEARTBEAT, chunk=reducer), stable), reducer)
    worker.pass_time(1.5, 0, 1)
    assert worker.state.counters()["keys"] == 0
    worker.sent(0)
    worker.get(route(1, (0, 1), (1, 0)))
    worker.pass_time(0.3, 0, 1)
    assert positions(worker.sent(0)) == {(1, 1): 1 << 24}
    worker.pass_time(1.5, 0, 1)
    assert worker.state.counters()["keys"] == 0
    operation, _ = submit(worker, 2)
    assert operation.round == 1


def test_an_abandoned_round_is_abandoned_on_its_new_lane() -> None:
    worker = joined(credit=ROOMY, reducers=2, rank=1)
    submit(worker, 4)
    for reducer in (0, 1):
        worker.sent(reducer)
    refused = messages.Refused(int(ErrorCode.MISMATCH), "two truths")
    worker.get(control(refused, key=KEY, chunk=0))
    for reducer in (0, 1):
        assert [f.header.chunk for f in said(worker.sent(reducer), MessageKind.ABANDON)] == [
            reducer
        ]
    worker.get(route(1, (0, 1), (1, 0)))
    frames = worker.sent(0)
    assert chunks(frames) == []
    (abandon,) = said(frames, MessageKind.ABANDON)
    assert (abandon.header.chunk, abandon.header.route) == (1, 1)


def test_a_verdict_and_a_grant_of_a_stream_that_moved_are_dropped() -> None:
    worker = joined(reducers=2, rank=1)
    operation, _ = submit(worker, 8)
    worker.sent(0)
    worker.get(route(1, (0, 1), (1, 0)))
    worker.sent(0)
    refused = messages.Refused(int(ErrorCode.MISMATCH), "two truths")
    worker.get(control(refused, key=KEY, chunk=1, route=0))
    worker.get(control(refused, key=KEY, chunk=1, route=0), 1)
    worker.get(frame(Header(kind=MessageKind.GRANT, key=KEY, chunk=1, route=0)))
    assert not operation.done
    assert worker.contributions() == []
    worker.get(frame(Header(kind=MessageKind.GRANT, key=KEY, chunk=1, route=1)))
    granted = worker.contributions()
    assert [h.chunk for h in granted] == [c for c in range(8) if home(c, 2) == 1][: len(granted)]
    worker.get(control(refused, key=KEY, chunk=1, route=1))
    assert operation.error[0] == ErrorCode.MISMATCH


def test_a_slot_that_is_taken_in_again_gets_its_chunks_back() -> None:
    worker = joined(credit=ROOMY, reducers=2, rank=1)
    submit(worker, 4)
    mine = [(chunk, 0) for chunk in range(4) if home(chunk, 2) == 1]
    worker.get(route(1, (0, 1), (1, 0)))
    worker.lose(1)
    assert (0, 1) not in [(h.chunk, h.route) for h in worker.contributions(0) if h.route]
    frames = worker.back(1, incarnation=b"x" * 16, instance=1, route=0)
    assert decoded(frames, messages.Route)[0].route == 1
    assert chunks(frames) == []
    assert worker.state.suspected == []
    worker.get(route(2, (0, 2), (1, 1)), 1)
    assert chunks(worker.sent(1)) == [(0, chunk, 2) for chunk, _ in mine]
    assert chunks(worker.sent(0)) == []


def test_nothing_is_sent_to_a_lane_that_was_restarted_until_a_route_moves_it() -> None:
    worker = joined(credit=ROOMY, reducers=2, rank=1)
    submit(worker, 4)
    worker.sent(0), worker.sent(1)
    worker.lose(1)
    frames = worker.back(1, instance=1, credit=ROOMY)
    assert chunks(frames) == []
    assert worker.state.suspected == [1]
    (suspicion,) = decoded(worker.sent(0), messages.Suspect)
    assert (suspicion.rank, suspicion.slot, suspicion.route) == (1, 1, 0)
    assert "restarted" in suspicion.reason
    submit(worker, 4)
    worker.pass_time(0.5, 0, 1)
    assert chunks(worker.sent(1)) == []
    worker.get(route(1, (0, 1), (1, 1)))
    assert worker.state.suspected == []
    rounds = [(r, c, 1) for r in (0, 1) for c in range(4) if home(c, 2) == 1]
    assert chunks(worker.sent(1)) == rounds


def test_a_lane_that_forms_the_run_anew_is_suspected_at_once() -> None:
    worker = joined(reducers=2, rank=1)
    worker.lose(1)
    worker.connect()
    worker.pending(0, reducer=1)
    (suspicion,) = decoded(worker.sent(0), messages.Suspect)
    assert suspicion.slot == 1
    assert "lost its state" in suspicion.reason


@pytest.mark.parametrize(
    "wrong",
    [
        route(1, (0, 1, 1), (1, 1, 1)),
        control(messages.Key("x"))[: HEADER_SIZE - 1],
    ],
)
def test_a_route_of_another_job_is_none(wrong: bytes) -> None:
    worker = joined(reducers=2, rank=1)
    worker.get(wrong)
    assert worker.state.route["route"] == 0
    assert worker.state.to_drop() == ([(0, 0)] if len(wrong) > HEADER_SIZE else [])


def test_rank_0_believes_no_route_that_it_did_not_make() -> None:
    worker = joined(reducers=2, rank=0)
    worker.get(route(1, (0, 1), (1, 0)))
    assert worker.state.route["route"] == 0
    assert worker.state.to_drop() == [(0, 0)]


# --- suspicion ----------------------------------------------------------------------------------


def test_a_slot_that_refuses_connections_is_suspected_now_and_every_heartbeat() -> None:
    worker = joined(reducers=2, rank=1)
    worker.lose(1)
    assert worker.state.suspected == []
    worker.refuse(1)
    (suspicion,) = decoded(worker.sent(0), messages.Suspect)
    assert (suspicion.rank, suspicion.slot, suspicion.route) == (1, 1, 0)
    assert "reducer r1 (lane 0): connection refused" in suspicion.reason
    worker.pass_time(1.0, 0)
    assert len(decoded(worker.sent(0), messages.Suspect)) in (3, 4)
    worker.back(1)
    assert worker.state.suspected == []
    worker.pass_time(1.0, 0, 1)
    assert decoded(worker.sent(0), messages.Suspect) == []
    assert worker.state.counters()["suspicions"] == 1


def test_a_lane_has_300_ms_to_come_back() -> None:
    worker = joined(reducers=2, rank=1)
    worker.lose(1)
    worker.connect()
    worker.pass_time(0.25, 0)
    assert worker.state.suspected == []
    worker.pass_time(0.1, 0)
    assert worker.state.suspected == [1]
    worker.welcome(1)
    assert worker.state.suspected == []


def test_a_silent_lane_is_suspected_until_it_speaks_and_keeps_its_connection() -> None:
    worker = joined(reducers=2, rank=1)
    worker.pass_time(0.95, 0)
    assert worker.state.suspected == []
    worker.pass_time(0.1, 0)
    (suspicion,) = decoded(worker.sent(0), messages.Suspect)
    assert "nothing was heard from it for 1.0" in suspicion.reason
    worker.get(heartbeat(), 1)
    worker.pass_time(0.1, 0)
    assert worker.state.suspected == []
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
    worker.pass_time(0.9, 0)  # reducer 1 is silent, and then this process is stopped
    worker.tick(30)
    assert worker.state.suspected == []
    worker.pass_time(0.2, 0)
    assert worker.state.suspected == [1]


def test_goaway_is_suspicion_until_the_slot_is_out() -> None:
    worker = joined(reducers=2, rank=1)
    worker.get(control(messages.Goaway("SIGTERM")), 1)
    (suspicion,) = decoded(worker.sent(0), messages.Suspect)
    assert "SIGTERM" in suspicion.reason
    worker.lose(1)
    worker.back(1)
    assert worker.state.suspected == [1]  # the same process still drains
    worker.get(route(1, (0, 1), (1, 0)))
    assert worker.state.suspected == []


def test_an_error_on_a_rejoin_is_no_strike() -> None:
    worker = joined(reducers=2, rank=1)
    for _ in range(5):
        worker.lose(1)
        worker.connect()
        worker.get(control(messages.Error(int(ErrorCode.UNAVAILABLE), "this reducer drains")), 1)
        assert worker.state.to_drop() == [(1, 0)]
    assert worker.state.error is None
    worker.pass_time(0.4, 0)
    (suspicion, *_) = decoded(worker.sent(0), messages.Suspect)
    assert "this reducer drains" in suspicion.reason


# --- rank 0 decides -----------------------------------------------------------------------------


def decider(reducers: int = 2, **options: Any) -> Worker:
    return joined(reducers=reducers, rank=0, credit=ROOMY, **options)


def suspect(worker: Worker, slot: int, known: int = 0, rank: int = 1) -> None:
    worker.get(control(messages.Suspect(rank, slot, known, "reset")))


def test_rank_0_puts_out_a_slot_that_it_cannot_reach_and_tells_all_lanes() -> None:
    worker = decider(3)
    operation, _ = submit(worker, 6)
    for reducer in range(3):
        worker.sent(reducer)
    worker.lose(1)
    worker.refuse(1)
    assert worker.state.route["live"] == [1, 0, 1]
    assert worker.state.route["since"] == [0, 1, 0]
    (report,) = worker.state.take_reports()
    assert "reducer r1 is out: connection refused" in report
    frames = [worker.sent(0), worker.sent(2)]
    for said_to in frames:
        assert said_to[0].header.kind == MessageKind.ROUTE  # before its first frame under it
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
        worker.lose(1)
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
        worker.lose(reducer)
    worker.connect()
    worker.pass_time(1.0)
    assert worker.state.route["route"] == 0
    assert worker.state.suspected == [0, 1]
    worker.welcome(0)
    assert worker.state.route["live"] == [1, 0]


def test_the_last_live_slot_begins_anew_where_it_is() -> None:
    worker = decider(1, lanes=2)
    operation, _ = submit(worker, 4)
    before = [chunks(worker.sent(0, lane)) for lane in (0, 1)]
    for lane in (0, 1):
        worker.lose(0, lane)
    assert sorted(worker.connect()) == [(0, 0), (0, 1)]
    worker.pending(1, lanes=3)  # another process, with more lanes
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
    worker.lose(0)
    worker.connect()
    worker.welcome(0, incarnation=b"n" * 16, credit=ROOMY)
    assert worker.state.route["since"] == [2, 2]
    assert worker.state.route["live"] == [1, 0]
    assert sorted(chunks(worker.sent(0))) == [(0, chunk, 2) for chunk in range(4)]


def test_a_dead_slot_is_taken_in_when_it_misses_no_rank() -> None:
    worker = decider()
    worker.lose(1)
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
    worker.lose(1)
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


# --- other ranks --------------------------------------------------------------------------------


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
    worker.lose(1)
    worker.connect()
    worker.get(absent(2))
    worker.pass_time(4.9, 0)
    assert worker.state.error is None
    worker.pass_time(0.3, 0)
    assert worker.state.error is not None
    assert worker.state.error[2] == 2


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
        worker.lose(reducer)
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


# --- waiting, and the end -----------------------------------------------------------------------


def test_open_rounds_wait_for_a_reducer_that_they_need_and_no_longer() -> None:
    worker = joined(credit=ROOMY, reducers=2, rank=1, reducer_wait=2.0)
    worker.lose(1)
    worker.refuse(1)
    worker.pass_time(5.0, 0)
    assert worker.state.error is None  # an idle group needs nobody
    only_0 = next(k for k in (f"k{n}" for n in range(99)) if _engine.key_id(k) % 2**32 % 2 == 0)
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


def test_a_route_around_ends_the_wait() -> None:
    worker = joined(credit=ROOMY, reducers=2, rank=1, reducer_wait=2.0)
    operation, _ = submit(worker, 4)
    worker.lose(1)
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
    worker.lose(owner)
    worker.back(owner)
    worker.get(result(sent, bytes(CHUNK)), owner)
    assert operation.done
    stable = KEY.to_bytes(8, "little") + (1 << 24).to_bytes(8, "little")
    worker.get(frame(Header(kind=MessageKind.HEARTBEAT, chunk=owner), stable), owner)
    assert worker.state.counters()["live_rounds"] == 0
    for reducer in (0, 1):
        worker.lose(reducer)
    assert worker.state.wanted() == []
    worker.tick(0.05)
    assert worker.state.left and worker.state.error is None
