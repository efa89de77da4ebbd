"""The owners of chunks, and what a worker does when a route moves a stream."""

from __future__ import annotations

from collections import Counter

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
    ROOMY,
    Live,
    chunks,
    decoded,
    home,
    joined,
    positions,
    result,
    route,
    said,
    submit,
)


@pytest.mark.parametrize("live", [(1, 1, 0, 1), (0, 1, 1, 0), (0, 0, 0, 1)])
def test_live_slots_share_the_chunks_of_dead_ones_evenly(live: Live) -> None:
    lanes = [2, 1, 3, 4]

    def placed(now_live: Live) -> list[tuple[int, int]]:
        rows = engine_parts.plan(
            1, 6, 64 * 10_000, 1, 0, [(0, 64)], "key", lanes, live=list(now_live)
        )
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
    assert decoded(after, messages.Route) == []  # slot 0 sent the route
    (told,) = worker.sent(1)
    assert messages.decode(messages.Route, told.payload or b"").since == (0, 1)
    assert worker.state.counters()["unanswered"] == 8 * CHUNK
    late = Header(kind=MessageKind.RESULT, dtype=1, op=1, collective=1, key=KEY, count=8 * FLOATS)
    for _, chunk, _ in moved:  # of the old stream, so no fault of that lane
        worker.get(frame(late.replace(chunk=chunk), bytes(CHUNK)), 1)
    assert worker.state.error is None and worker.state.to_drop() == []
    assert worker.state.counters()["unanswered"] == 8 * CHUNK
    for _, chunk, since in before[0] + moved:
        answer = np.full(FLOATS, chunk, np.float32).tobytes()
        worker.get(frame(late.replace(chunk=chunk, route=since), answer))
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
    target[:] = 8  # the array belongs to the caller again
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
    for sent in said(frames, MessageKind.CONTRIBUTION):  # already received, so dropped
        worker.get(result(sent.header, bytes(CHUNK)))
    assert worker.state.counters()["unanswered"] == 0
    assert target.tolist() == [7.0] * (4 * FLOATS)
    assert worker.state.counters()["copy_bytes"] > 0
    for slot, since in ((0, 0), (1, 1)):
        beat = Header(kind=MessageKind.HEARTBEAT, chunk=slot, route=since)
        stable = KEY.to_bytes(8, "little") + (1 << 24).to_bytes(8, "little")
        worker.get(frame(beat, stable))
    assert worker.state.counters()["copy_bytes"] == 0
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
    assert worker.state.counters()["unanswered"] == CHUNK  # that was of the old stream
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
    worker.disconnect(1)
    assert (0, 1) not in [(h.chunk, h.route) for h in worker.contributions(0) if h.route]
    frames = worker.back(1, incarnation=b"x" * 16, instance=1, route=0)
    assert decoded(frames, messages.Route)[0].route == 1
    assert chunks(frames) == []
    assert worker.state.suspected == set()
    worker.get(route(2, (0, 2), (1, 1)), 1)
    assert chunks(worker.sent(1)) == [(0, chunk, 2) for chunk, _ in mine]
    assert chunks(worker.sent(0)) == []


def test_nothing_is_sent_to_a_lane_that_was_restarted_until_a_route_moves_it() -> None:
    worker = joined(credit=ROOMY, reducers=2, rank=1)
    submit(worker, 4)
    worker.sent(0), worker.sent(1)
    worker.disconnect(1)
    frames = worker.back(1, instance=1, credit=ROOMY)
    assert chunks(frames) == []
    assert worker.state.suspected == {1}
    (suspicion,) = decoded(worker.sent(0), messages.Suspect)
    assert (suspicion.rank, suspicion.slot, suspicion.route) == (1, 1, 0)
    assert "restarted" in suspicion.reason
    submit(worker, 4)
    worker.pass_time(0.5, 0, 1)
    assert chunks(worker.sent(1)) == []
    worker.get(route(1, (0, 1), (1, 1)))
    assert worker.state.suspected == set()
    rounds = [(r, c, 1) for r in (0, 1) for c in range(4) if home(c, 2) == 1]
    assert chunks(worker.sent(1)) == rounds


def test_a_lane_that_forms_the_run_anew_is_suspected_at_once() -> None:
    worker = joined(reducers=2, rank=1)
    worker.disconnect(1)
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
