"""A worker whose lane is lost and comes back: what is retransmitted, and which errors are final."""

from __future__ import annotations

import engine_parts
import numpy as np
import pytest

from reducer.wire import messages
from reducer.wire.codes import ErrorCode, MessageKind
from reducer.wire.header import HEADER_SIZE, Header
from tests.support.frames import control, frame, heartbeat
from tests.support.one_worker import (
    CHUNK,
    FLOATS,
    KEY,
    chunks,
    decoded,
    joined,
    positions,
    result,
    route,
    said,
    submit,
)


def test_what_had_no_answer_is_sent_again_in_order_and_stays_charged() -> None:
    worker = joined(credit=3 * CHUNK)
    operation, target = submit(worker, 5)
    first = said(worker.sent(), MessageKind.CONTRIBUTION)
    assert [f.header.chunk for f in first] == [0, 1, 2]
    answer = np.full(FLOATS, 7, np.float32).tobytes()
    worker.get(result(first[1].header, answer))
    assert chunks(worker.sent()) == [(0, 3, 0)]
    assert worker.state.counters()["unanswered"] == 3 * CHUNK
    worker.disconnect()
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
    worker.disconnect()
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
    worker.disconnect()
    assert positions(worker.back()) == {(0, 0): 1 << 24}
    worker.get(heartbeat((KEY, 1 << 24)))
    assert worker.state.counters()["copy_bytes"] == 0


def test_a_result_that_was_cut_does_not_spoil_the_next_connection() -> None:
    worker = joined()
    operation, target = submit(worker, 1)
    (sent,) = worker.contributions()
    answer = result(sent, np.full(FLOATS, 3, np.float32).tobytes())
    worker.get(answer[: HEADER_SIZE + 100])
    worker.disconnect()
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
    worker.get(answer[:-1])  # most of the result is already in the array
    assert values[0] == 9
    worker.disconnect()
    again = said(worker.back(credit=CHUNK), MessageKind.CONTRIBUTION)
    assert np.frombuffer(again[0].payload or b"", np.float32).tolist() == [5.0] * FLOATS
    worker.get(answer)
    (second,) = worker.contributions()
    worker.get(result(second, np.full(FLOATS, 9, np.float32).tobytes()))
    assert operation.done
    assert values.tolist() == [9.0] * (2 * FLOATS)


def test_the_limit_of_a_round_does_not_count_what_is_sent_again() -> None:
    limit = (512 << 10) // CHUNK
    worker = joined(credit=4 * limit * CHUNK)
    submit(worker, 2 * limit)
    assert len(worker.contributions()) == limit
    for _ in range(3):
        worker.disconnect()
        again = said(worker.back(credit=4 * limit * CHUNK), MessageKind.CONTRIBUTION)
        assert [f.header.chunk for f in again] == list(range(limit))
    worker.get(result(again[0].header, bytes(CHUNK)))
    assert [h.chunk for h in worker.contributions()] == [limit]


def test_a_grant_ends_with_its_connection() -> None:
    worker = joined()
    submit(worker, 2, "a")
    submit(worker, 2, "key")
    worker.sent()
    worker.get(frame(Header(kind=MessageKind.GRANT, key=KEY, round=0)))
    assert [h.key for h in worker.contributions()] == [KEY] * 2
    worker.disconnect()
    again = said(worker.back(), MessageKind.CONTRIBUTION)
    assert [f.header.key for f in again] == [engine_parts.key_id("a")] * 2 + [KEY] * 2
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
    worker.disconnect()
    again = worker.back()
    assert decoded(again, messages.Abandon) == [abandoned]
    assert chunks(again) == []
    assert positions(again) == {(0, 0): 1 << 24}
    worker.get(heartbeat((KEY, 1 << 24)))
    worker.disconnect()
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
        worker.disconnect(why="we closed it")
        worker.back()
        if attempt == 3:  # a result resets the count
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
            worker.disconnect()
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
        worker.disconnect(1)
        worker.back(1)
    worker.get(route(1, (0, 1), (1, 0)))
    worker.get(error, 1)
    for _ in range(9):
        worker.get(error, 0)
        assert worker.state.error is None
        worker.disconnect(0)
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
