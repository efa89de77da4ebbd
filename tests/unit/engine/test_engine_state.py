"""The frames that the engine's protocol state sends in reply to frames of the test."""

from __future__ import annotations

from typing import Any

import engine_parts
import numpy as np
import pytest

from reducer.wire import messages
from reducer.wire.codes import PROTOCOL_MINOR, ErrorCode, Flag, MessageKind
from reducer.wire.header import HEADER_SIZE, Header
from reducer_client import _engine
from tests.support.frames import control, frame, heartbeat
from tests.support.one_worker import CHUNK, TABLE, Worker, decoded, joined, result
from tests.support.simcluster import SimCluster


def failure(worker: Worker) -> tuple[int, str]:
    assert worker.state.error is not None
    return worker.state.error[:2]


# --- joining ------------------------------------------------------------------------------------


def test_the_arbiter_comes_first_and_every_lane_after_it() -> None:
    worker = Worker(reducers=2)
    assert set(worker.decoders) == {(0, 0)}
    hello = worker.sent()[0]
    assert hello.payload is not None
    said = messages.decode(messages.Hello, hello.payload)
    assert (said.job, said.run_id, said.rank, said.slot) == ("job", "run", 0, 0)
    assert tuple(said.chunk_table) == TABLE
    worker.pending(1, lanes=2)
    assert set(worker.connect()) == {(0, 1), (1, 0)}
    worker.pending(1, reducer=1, lanes=3)
    assert set(worker.connect()) == {(1, 1), (1, 2)}
    for reducer, lanes in ((0, 2), (1, 3)):
        for lane in range(lanes):
            assert not worker.state.joined
            worker.welcome(reducer, lane, lanes)
    assert worker.state.joined


def test_no_answer_names_the_address() -> None:
    worker = Worker()
    worker.tick(9.9)
    assert worker.state.error is None
    worker.tick(0.2)
    code, text = failure(worker)
    assert code == ErrorCode.UNAVAILABLE
    assert "no reducer answered at r0 within 10 s" in text
    assert "reducer serve" in text


def test_absent_ranks_are_named() -> None:
    worker = Worker(world_size=4)
    worker.pending(2, 3)
    worker.tick(10)
    code, text = failure(worker)
    assert code == ErrorCode.JOIN
    assert "ranks 2, 3 of 4 have not joined job 'job' within 10 s" in text


def test_of_many_absent_ranks_sixteen_are_named() -> None:
    worker = Worker(world_size=30)
    worker.pending(*range(10, 30))
    worker.tick(10)
    _, text = failure(worker)
    named = ", ".join(str(rank) for rank in range(10, 26))
    assert f"ranks {named} and 4 more of 30 have not joined" in text


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"run_id": "other"}, "run id 'other', expected 'run'"),
        ({"world_size": 3}, "world size 3, expected 2"),
        ({"reducers": 2}, "slot 0 of 2"),
        ({"credit": CHUNK - 1}, "a bad WELCOME: 'credit' is not a number of at least 4096"),
        ({"run_id": "x" * 129}, "a bad WELCOME: 'run_id' is not a text of at most 128 bytes"),
        ({"lanes": 0}, "a bad WELCOME: 'lanes' is not a number from 1 to"),
        ({"chunk_table": ((0, 2 * CHUNK),), "credit": CHUNK}, "credit or grant 4096, expected"),
    ],
)
def test_a_welcome_to_another_run_is_no_welcome(changes: dict[str, Any], text: str) -> None:
    worker = Worker()
    worker.welcome(**changes)
    assert text in failure(worker)[1]


def test_a_run_that_two_lanes_name_differently_is_an_error_that_both_are_told() -> None:
    """Rank 0 restarted after one lane had welcomed all, so the other ranks get two run ids."""
    worker = Worker(rank=1)
    worker.pending(lanes=2)
    worker.connect()
    worker.welcome(lanes=2, run_id="a")
    assert worker.state.error is None
    worker.welcome(lane=1, lanes=2, run_id="b")
    code, text = failure(worker)
    assert code == ErrorCode.JOIN
    assert "run id 'b', expected 'a' of reducer r0 (lane 0)" in text
    assert "start all ranks again" in text
    for lane in range(2):
        (error,) = decoded(worker.sent(lane=lane), messages.Error)
        assert error.code == ErrorCode.JOIN and error.message in text


@pytest.mark.parametrize(
    ("second", "text"),
    [
        ({"lane": 1, "slot": 1}, "slot 1, expected slot 0, which reducer r0 (lane 0) has"),
        (
            {"reducer": 1, "slot": 0},
            "slot 0, expected any slot but 0, which reducer r0 (lane 0) has",
        ),
        ({"lane": 1, "epoch": 1}, "epoch 1, expected 0 of its lost ranks"),
    ],
)
def test_what_a_second_lane_says_otherwise_is_named(second: dict[str, Any], text: str) -> None:
    worker = Worker(reducers=2)
    worker.pending(lanes=2)
    worker.connect()
    worker.welcome(lanes=2, reducers=2)
    worker.welcome(lanes=2, reducers=2, **second)
    assert text in failure(worker)[1]


def test_one_reducer_under_two_addresses_is_named() -> None:
    worker = Worker(reducers=2)
    worker.pending(1)
    worker.connect()
    message = messages.Pending(1, 0, bytes(16), (1,), 1)
    worker.get(control(message), reducer=1)
    code, text = failure(worker)
    assert code == ErrorCode.JOIN
    assert "r0" in text
    assert "r1" in text


def test_one_reducer_under_two_addresses_that_ends_the_first_connection_is_named() -> None:
    """A lane closes the first connection of a rank that reconnects, before it answers."""
    worker = Worker(reducers=2)
    worker.pending(1)
    worker.connect()
    worker.disconnect(0, why="closed by the reducer")
    worker.get(control(messages.Pending(1, 0, bytes(16), (1,), 1)), reducer=1)
    code, text = failure(worker)
    assert code == ErrorCode.JOIN
    assert "addresses r0 and r1 are the same reducer" in text


def test_a_reducer_that_closes_at_once_is_tried_again() -> None:
    worker = Worker()
    worker.state.closed(0, 0, "closed", 0.1)
    assert worker.state.error is None
    assert worker.connect() == [(0, 0)]
    worker.welcome()
    assert worker.state.joined


@pytest.mark.parametrize("step", [1, 7, 1_000])
def test_other_servers_are_shown(step: int) -> None:
    worker = Worker()
    answer = b"HTTP/1.1 400 Bad Request\r\n"
    for at in range(0, len(answer), step):
        worker.get(answer[at : at + step])
    code, text = failure(worker)
    assert code == ErrorCode.PROTOCOL
    assert "HTTP" in text
    assert "r0" in text


def test_another_version_is_named_beside_ours() -> None:
    worker = Worker()
    worker.get(b"ORSP\x07\x03" + bytes(10))
    code, text = failure(worker)
    assert code == ErrorCode.VERSION
    assert f"1.{PROTOCOL_MINOR}" in text
    assert "7.3" in text


# --- rounds -------------------------------------------------------------------------------------


def test_a_round_is_sent_within_the_credit_and_received_into_its_target() -> None:
    worker = joined()
    values = np.arange(3 * CHUNK // 4, dtype=np.float32)
    target = np.zeros_like(values)
    operation = worker.submit("key", values, target)
    values[:] = -1
    first = worker.sent()
    assert [f.header.kind for f in first] == [MessageKind.KEY, *[MessageKind.CONTRIBUTION] * 2]
    assert worker.sent() == []
    assert first[1].payload is not None
    for sent in first[1:]:
        assert sent.payload is not None
        worker.get(result(sent.header, bytes(sent.payload)))
    (third,) = [f for f in worker.sent() if f.header.kind == MessageKind.CONTRIBUTION]
    assert third.header.done == 2
    assert not operation.done
    assert third.payload is not None
    worker.get(result(third.header, bytes(third.payload), flags=Flag.NAN))
    assert operation.done
    assert operation.error is None
    assert operation.flags == Flag.NAN
    np.testing.assert_array_equal(target, np.arange(values.size, dtype=np.float32))


def test_a_grant_lets_its_round_pass_and_no_other() -> None:
    worker = joined()
    values = np.ones(2 * CHUNK // 4, np.float32)
    for key in ("a", "b", "c"):
        worker.submit(key, values, np.empty_like(values))
    kinds = worker.kinds()
    assert kinds.count(MessageKind.CONTRIBUTION) == 2
    assert kinds.count(MessageKind.DESCRIBE) == 2
    worker.get(frame(Header(kind=MessageKind.GRANT, key=engine_parts.key_id("c"), round=0)))
    sent = [f.header for f in worker.sent() if f.header.kind == MessageKind.CONTRIBUTION]
    assert [(h.key, h.chunk) for h in sent] == [(engine_parts.key_id("c"), n) for n in (0, 1)]


def test_one_round_fills_its_limit_and_leaves_the_rest_of_the_credit_to_others() -> None:
    limit = (512 << 10) // CHUNK
    worker = Worker()
    worker.welcome(credit=4 * limit * CHUNK)
    worker.sent()
    values = np.ones(2 * limit * CHUNK // 4, np.float32)
    worker.submit("a", values, np.empty_like(values))
    worker.submit("b", values, np.empty_like(values))
    sent = worker.contributions()
    assert [h.key for h in sent] == [engine_parts.key_id(key) for key in "a" * limit + "b" * limit]
    worker.get(result(sent[0], bytes(CHUNK)))
    assert [(h.key, h.chunk) for h in worker.contributions()] == [(engine_parts.key_id("a"), limit)]


def test_in_place_each_chunk_is_copied_when_its_turn_comes() -> None:
    worker = joined()
    values = np.zeros(3 * CHUNK // 4, np.float32)
    operation = worker.submit("key", values, values)
    values[:] = 1
    first = worker.contributions()
    assert [h.chunk for h in first] == [0, 1]
    values[:] = 2
    worker.get(result(first[1], np.full(CHUNK // 4, 5, np.float32).tobytes()))
    (third,) = [f for f in worker.sent() if f.header.kind == MessageKind.CONTRIBUTION]
    assert np.frombuffer(third.payload or b"", np.float32).tolist() == [2.0] * (CHUNK // 4)
    for header in (first[0], third.header):
        worker.get(result(header, np.full(CHUNK // 4, 5, np.float32).tobytes()))
    assert operation.done
    np.testing.assert_array_equal(values, 5)


def test_a_round_in_place_that_must_wait_is_described() -> None:
    worker = joined()
    values = [np.zeros(2 * CHUNK // 4, np.float32) for _ in range(2)]
    for key, array in zip("ab", values, strict=True):
        worker.submit(key, array, array)
    kinds = worker.kinds()
    assert kinds.count(MessageKind.CONTRIBUTION) == 2
    assert kinds.count(MessageKind.DESCRIBE) == 1


def test_of_the_rounds_that_wait_the_highest_priority_goes_first() -> None:
    worker = joined()
    values = np.ones(2 * CHUNK // 4, np.float32)
    for key, priority in (("a", 0), ("b", 1), ("c", 2), ("d", 1)):
        worker.submit(key, values, np.empty_like(values), priority)
    order = []
    while sent := worker.contributions():
        order += [h.key for h in sent]
        for header in sent:
            worker.get(result(header, bytes(CHUNK)))
    assert order == [engine_parts.key_id(key) for key in "ccbbddaa"]


def test_the_copy_is_kept_until_stable_and_keys_are_forgotten() -> None:
    worker = joined()
    values = np.ones(10, np.float32)
    operation = worker.submit("key", values, np.empty_like(values))
    (_, sent) = worker.sent()
    assert sent.payload is not None
    worker.get(result(sent.header, bytes(sent.payload)))
    assert operation.done
    assert worker.state.counters()["copy_bytes"] > 0
    worker.tick(0.3)
    (beat,) = worker.sent()
    assert bytes(beat.payload or b"") == heartbeat((sent.header.key, 1 << 24))[HEADER_SIZE:]
    assert worker.state.counters()["copy_bytes"] > 0
    worker.get(heartbeat((sent.header.key, 1 << 24)))
    assert worker.state.counters()["copy_bytes"] == 0
    worker.tick(1.5)
    assert worker.state.counters()["keys"] == 0
    again = worker.submit("key", values, np.empty_like(values))
    assert again.round == 1
    assert MessageKind.KEY in worker.kinds()


def test_a_refused_round_is_abandoned_and_the_next_one_goes_on() -> None:
    worker = joined()
    values = np.ones(3 * CHUNK // 4, np.float32)
    operation = worker.submit("key", values, np.empty_like(values))
    worker.sent()
    refused = messages.Refused(int(ErrorCode.MISMATCH), "rank 0 says one thing, rank 1 another")
    worker.get(control(refused, key=engine_parts.key_id("key"), round=0))
    assert operation.error == (
        ErrorCode.MISMATCH, "rank 0 says one thing, rank 1 another", -1, "", "key", 0,
    )  # fmt: skip
    assert worker.kinds() == [MessageKind.ABANDON]
    counters = worker.state.counters()
    assert (counters["copy_bytes"], counters["unanswered"]) == (0, 0)
    worker.submit("key", values, np.empty_like(values))
    sent = worker.sent()
    assert [f.header.round for f in sent if f.header.kind == MessageKind.CONTRIBUTION] == [1, 1]
    assert sent[-1].header.done == 1 << 24


@pytest.mark.parametrize(
    "changes",
    [
        {"chunk": 9},
        {"round": 5},
        {"dtype": 2},
        {"op": 3},
        {"collective": 2},
        {"count": 11},
        {"epoch": 1},
        {"rank": 2},
    ],
)
def test_a_result_that_nobody_asked_for_costs_the_connection(changes: dict[str, Any]) -> None:
    worker = joined()
    values = np.ones(10, np.float32)
    target = np.zeros_like(values)
    operation = worker.submit("key", values, target)
    sent = worker.sent()[1]
    worker.get(result(sent.header, bytes(40), **changes))
    assert worker.state.error is None
    assert worker.state.to_drop() == [(0, 0)]
    assert not operation.done
    assert worker.kinds() == []


@pytest.mark.parametrize("size", [0, 40])
def test_a_result_with_a_bad_crc_is_not_believed(size: int) -> None:
    worker = joined()
    values = np.ones(10, np.float32)
    operation = worker.submit("key", values, np.zeros_like(values))
    bad = bytearray(result(worker.sent()[1].header, bytes(40)))
    bad[HEADER_SIZE + size - 1] ^= 1
    worker.get(bytes(bad))
    assert worker.state.to_drop() == [(0, 0)]
    assert not operation.done


# --- the end ------------------------------------------------------------------------------------


def test_a_lost_reducer_fails_every_operation_with_its_own_name() -> None:
    worker = joined(reducer_wait=1.0)
    values = np.ones(10, np.float32)
    operations = [worker.submit(key, values, np.empty_like(values)) for key in "ab"]
    worker.state.closed(0, 0, "connection reset", worker.now)
    assert worker.state.wanted() == [(0, 0)]
    worker.state.unreachable(0, 0, "connection refused", worker.now)
    for _ in range(6):
        assert worker.state.error is None
        worker.tick(0.2)
    for key, operation in zip("ab", operations, strict=True):
        code, text, rank, reason, name, round_ = operation.error
        assert (code, rank, name, round_) == (ErrorCode.UNAVAILABLE, -1, key, 0)
        assert reason == "unreachable"
        assert "slot 0 at r0 for 1.0 s (connection refused)" in text
    with pytest.raises(_engine.EngineError) as caught:
        worker.submit("a", values, np.empty_like(values))
    assert caught.value.args[0] == ErrorCode.UNAVAILABLE


def test_a_reducer_that_is_lost_while_the_run_joins_is_asked_until_the_time_is_up() -> None:
    worker = Worker(reducers=2, rank=1)
    worker.welcome(0)
    worker.pending(0, reducer=1)
    worker.disconnect(1, why="closed by the reducer")
    assert worker.state.error is None
    while worker.state.error is None and worker.now < 100:
        worker.get(heartbeat())
        worker.tick(0.25)
    code, text, *_ = worker.state.error
    assert code == ErrorCode.UNAVAILABLE
    assert "r1" in text and "closed by the reducer" in text


def test_a_lost_rank_is_passed_on() -> None:
    worker = joined()
    values = np.ones(10, np.float32)
    operation = worker.submit("key", values, np.empty_like(values))
    worker.get(control(messages.Error(int(ErrorCode.PEER_LOST), "rank 1 is gone", 1, "killed")))
    code, text, rank, reason, key, round_ = operation.error
    assert (code, rank, reason, key, round_) == (ErrorCode.PEER_LOST, 1, "killed", "key", 0)
    assert "rank 1 is gone" in text


def test_silence_is_suspicious_and_heartbeats_break_it() -> None:
    worker = joined()
    for _ in range(100):
        worker.tick(0.25)
        worker.get(heartbeat())
        assert worker.kinds() == [MessageKind.HEARTBEAT]
    for _ in range(4):
        worker.tick(0.25)
    assert worker.state.suspected == set()
    worker.tick(0.25)
    assert worker.state.suspected == {0}
    assert worker.state.error is None


def test_goaway_leaves_it_to_the_lane_which_rounds_may_begin() -> None:
    worker = joined()
    values = np.ones(10, np.float32)
    operation = worker.submit("key", values, np.empty_like(values))
    sent = worker.sent()[1]
    worker.get(control(messages.Goaway("SIGTERM", 0)))
    refused = worker.submit("key", values, np.empty_like(values))
    text = messages.Refused(int(ErrorCode.UNAVAILABLE), "draining")
    worker.get(control(text, key=sent.header.key, round=1))
    assert refused.error == (ErrorCode.UNAVAILABLE, "draining", -1, "", "key", 1)
    worker.get(result(sent.header, bytes(sent.payload or b"")))
    assert operation.error is None
    assert operation.done


def test_leaving_waits_for_stability() -> None:
    worker = joined(world_size=1)
    values = np.ones(10, np.float32)
    worker.submit("key", values, np.empty_like(values))
    sent = worker.sent()[1]
    worker.state.leave(worker.now)
    assert not worker.state.left
    worker.get(result(sent.header, bytes(sent.payload or b"")))
    assert worker.kinds() == [MessageKind.HEARTBEAT]
    worker.get(heartbeat((sent.header.key, 1 << 24)))
    assert worker.kinds() == [MessageKind.BYE]
    with pytest.raises(_engine.EngineError) as caught:
        worker.submit("key", values, np.empty_like(values))
    assert caught.value.args[3] == "closed"


def test_ten_thousand_keys_used_once_leave_nothing() -> None:
    cluster = SimCluster(2, (1,), TABLE, credit=1 << 20, budget=1 << 30, records=8 << 20)
    cluster.cut = 1 << 20
    cluster.join()
    values = np.ones(4, np.float32)
    for start in range(0, 10_000, 1_000):
        targets = [np.empty_like(values) for _ in range(2)]
        cluster.finish(
            [
                cluster.submit(rank, f"key-{number}", values, targets[rank])
                for number in range(start, start + 1_000)
                for rank in range(2)
            ]
        )
    cluster.settle(3.0)
    for state in cluster.states:
        counters = state.counters()
        assert counters["keys"] == counters["copy_bytes"] == counters["live_rounds"] == 0
        assert counters["remembered_keys"] == 10_000


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"collective": 9}, "collective"),
        ({"dtype": 77}, "dtype"),
        ({"op": 6}, "op"),
        ({"key": ""}, "key"),
        ({"key": "x" * 513}, "513"),
        ({"count": 9}, "40 bytes, expected 9"),
        ({"root": 1}, "root"),
        ({"source": None}, "source"),
        ({"target": None}, "target"),
        ({"wide": True}, "float16, bfloat16 or blocks"),
    ],
)
def test_a_wrong_call_is_a_value_error(change: dict[str, Any], text: str) -> None:
    worker = joined()
    values = np.ones(10, np.float32)
    call: dict[str, Any] = {
        "collective": 1, "op": 1, "dtype": 1, "wide": False, "key": "key", "root": 0, "count": 10,
        "source": values, "target": np.empty_like(values),
    }  # fmt: skip
    with pytest.raises(ValueError, match=text):
        worker.state.submit(**{**call, **change})
    assert worker.state.counters()["keys"] == 0
