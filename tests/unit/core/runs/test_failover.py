"""A lane with breaking connections and with streams that come and go (PROTOCOL.md, section 11)."""

from __future__ import annotations

import struct
from typing import Any

import msgpack
import numpy as np
import pytest

from reducer.core.limits.charges import MIN_COST
from reducer.core.surface import events
from reducer.wire import messages
from reducer.wire.codes import ErrorCode, MessageKind
from reducer.wire.header import Header
from reducer.wire.keys import key_id, position
from tests.support.frames import control, frame, heartbeat
from tests.support.scripted import Scripted, Spec, join_all
from tests.support.simlane import SimLane

# Slot 0 of two slots is dead since route 1: its chunks are on slot 1, in their own stream.
MOVED = messages.Route(1, (1, 0), (0, 1), (1, 1))
BACK = messages.Route(2, (2, 0), (1, 1), (1, 1))


def data(rank: int, count: int = 8) -> bytes:
    return np.random.default_rng(rank).normal(size=count).astype(np.float32).tobytes()


def total(ranks: int, count: int = 8) -> bytes:
    parts = [np.frombuffer(data(rank, count), np.float32) for rank in range(ranks)]
    result = parts[0].copy()
    for part in parts[1:]:
        result += part
    return result.tobytes()


def again(worker: Scripted, **hello: Any) -> Scripted:
    """The same rank on a new connection; the lane has not noticed the end of the old one."""
    return Scripted(
        worker.lane, worker.rank, worker.world_size, run_id="run", rejoin=True,
        slot=worker.hello.slot, reducers=worker.hello.reducers, **hello,
    )  # fmt: skip


def survivors(world_size: int = 2) -> tuple[SimLane, list[Scripted]]:
    """Slot 1 of a job with two reducers, and its workers."""
    lane = SimLane()
    return lane, join_all(lane, world_size, slot=1, reducers=2)


def spec_of_home(home: int, **fields: Any) -> Spec:
    """A round of one chunk, which slot `home` of two owns while it lives."""
    names = (f"k{n}" for n in range(100))
    return Spec(key=next(name for name in names if key_id(name) % 2 == home), **fields)


def welcome(worker: Scripted) -> messages.Welcome:
    (found,) = worker.read(MessageKind.WELCOME)
    return messages.decode(messages.Welcome, found.payload or b"")


# --- a connection that is lost --------------------------------------------------------------------


def test_a_rank_that_is_back_is_told_all_stable_positions_however_many() -> None:
    """One HEARTBEAT has at most 4,096 positions."""
    lane = SimLane(records=4 << 20, budget=1 << 40)
    workers = join_all(lane, 2)
    names = [f"key-{number}" for number in range(4_200)]
    for worker in workers:
        for name in names:
            worker.announce(name)
            worker.report(name, 7)
    told = [
        entry
        for frame in again(workers[1]).read(MessageKind.HEARTBEAT)
        for entry in struct.iter_unpack("<QQ", frame.payload or b"")
    ]
    assert sorted(told) == sorted((key_id(name), 7) for name in names)


def test_what_was_on_its_way_is_sent_again_and_counts_once() -> None:
    lane = SimLane()
    workers = join_all(lane, 2)
    first = welcome(workers[0])
    workers[0].contribute(Spec(), data=data(0))
    back = again(workers[0])
    assert workers[0].session.closed == "replaced by a new connection"
    assert welcome(back) == first
    back.contribute(Spec(), data=data(0))
    workers[1].contribute(Spec(), data=data(1))
    for worker in (back, workers[1]):
        assert worker.results() == [total(2)]
    numbers = lane.snapshot()["jobs"]["job"]
    assert (numbers["duplicates"], numbers["reconnects"], numbers["failovers"]) == (1, 1, 0)


def test_a_result_that_was_lost_comes_from_the_cache() -> None:
    lane = SimLane()
    workers = join_all(lane, 2)
    for rank, worker in enumerate(workers):
        worker.contribute(Spec(), data=data(rank))
    back = again(workers[0])
    assert back.results() == []
    back.contribute(Spec(), data=data(0))
    assert back.results() == [total(2)]
    assert len(workers[1].results()) == 1


def test_second_copies_need_no_credit() -> None:
    lane = SimLane(credit=4_096, budget=1 << 20)
    workers = join_all(lane, 2)
    limit = welcome(workers[0])
    rounds = (limit.credit + limit.grant) // 4_096
    for number in range(rounds):
        workers[0].contribute(Spec(number=number), data=data(0))
    back = again(workers[0])
    lane.peak = 0
    for number in range(rounds):
        back.contribute(Spec(number=number), data=data(0))
    assert not lane.peak, "duplicates took memory"
    assert back.session.closed is None
    workers[1].contribute(Spec(), data=data(1))
    assert back.results() == [total(2)]
    for number in range(1, rounds + 1):
        back.contribute(Spec(number=number), data=data(0))
    back.contribute(Spec(number=rounds + 1), data=data(0))
    assert back.error().code == ErrorCode.QUOTA


@pytest.mark.parametrize("times", [1, 2])
def test_what_a_rank_sent_of_a_void_round_is_settled_once(times: int) -> None:
    """Settled when the rank reconnects, since it retransmits all, and not again at its ABANDON."""
    lane = SimLane()
    workers = join_all(lane, 2)
    workers[0].contribute(Spec(), data=data(0))
    workers[1].abandon(Spec())
    (members,) = lane.core._roster.runs.values()
    unanswered = members.run.accounts._unanswered
    assert unanswered == [MIN_COST, 0]
    for _ in range(times):
        workers[0] = again(workers[0])
        assert unanswered == [0, 0]
    workers[0].abandon(Spec())
    assert unanswered == [0, 0]


def test_second_copies_of_a_round_that_has_become_void_need_no_credit() -> None:
    """The rank retransmits before it hears that another rank has abandoned the round."""
    lane = SimLane(credit=4_096, budget=1 << 20)
    workers = join_all(lane, 2)
    limit = welcome(workers[0])
    chunks = (limit.credit + limit.grant) // 4_096
    spec = Spec(count=1_024 * chunks)
    for chunk in range(chunks):
        workers[0].contribute(spec, chunk, bytes(4_096))
    back = again(workers[0])
    workers[1].abandon(spec)
    lane.peak = 0
    for chunk in range(chunks):
        back.contribute(spec, chunk, bytes(4_096))
    assert not lane.peak and back.session.closed is None
    back.abandon(spec)
    (members,) = lane.core._roster.runs.values()
    assert members.run.accounts._unanswered == [0, 0]


def test_a_second_copy_whose_first_is_forgotten_is_no_contribution() -> None:
    """The lane dropped the bytes of the copy as they came, for longer than it keeps a key."""
    lane = SimLane(credit=4_096, budget=1 << 20)
    workers = join_all(lane, 2)
    limit = welcome(workers[0])
    for number in range((limit.credit + limit.grant) // 4_096):
        workers[0].contribute(Spec(number=number), data=data(0))
    copy = frame(workers[0].header(Spec()), data(0))
    workers[0].session.send(copy[:-1])
    (members,) = lane.core._roster.runs.values()
    for stream in members.run.streams:
        stream.keys[key_id("x")].rounds.clear()
    workers[0].session.send(copy[-1:])
    assert "after the lane had forgotten the first" in workers[0].error().message


def test_who_is_back_is_told_what_is_stable_and_who_is_absent() -> None:
    lane = SimLane()
    workers = join_all(lane, 3)
    for rank, worker in enumerate(workers):
        worker.contribute(Spec(), data=data(rank))
    workers[0].session.disconnect()
    for worker in workers[1:]:
        worker.report("x", position(1, 0))
    again(workers[0]).report("x", position(1, 0))
    workers[2].session.disconnect("reset")
    lane.tick(0.6)
    back = again(workers[1])
    kinds = [f.header.kind for f in back.session.read()]
    assert kinds == [MessageKind.WELCOME, MessageKind.ABSENT, MessageKind.HEARTBEAT]


def test_what_was_missed_is_told_in_parts_that_others_can_wait_for() -> None:
    """Regression: one HELLO blocked a lane for seconds if its job had many keys and mismatches."""
    lane = SimLane(records=8 << 20, budget=1 << 40)
    workers = join_all(lane, 2)
    for worker in workers:
        for number in range(4_200):
            worker.announce(f"key-{number}")
            worker.report(f"key-{number}", 7)
    for number in range(20):
        workers[0].contribute(Spec(number=number), data=bytes(32))
        workers[0].abandon(Spec(number=number), "x" * 15_000)
    (members,) = lane.core._roster.runs.values()
    for rank in range(2):
        members.run.retelling.add(rank)
    members.run.catch_up(lane.now)
    workers[0].session.disconnect()  # with parts left to tell
    members.run.catch_up(lane.now)
    assert list(members.run.retelling._ranks) == [1]
    members.run.catch_up(lane.now)  # rank 1 reconnects before its parts are told
    sizes, feed = [], lane.feed

    def measure(event: events.Event) -> None:
        before = len(lane.sessions[lane._opened].outbox)
        feed(event)
        sizes.append(len(lane.sessions[lane._opened].outbox) - before)

    lane.feed = measure  # type: ignore[method-assign]
    back = again(workers[1])
    assert len(sizes) > 5 and max(sizes) < 70_000
    assert len(back.read(MessageKind.REFUSED)) == 20
    told = b"".join(found.payload or b"" for found in back.read(MessageKind.HEARTBEAT))
    assert len(told) == 16 * 4_200
    assert not members.run.retelling


def test_a_verdict_on_a_round_that_is_over_meanwhile_is_not_told_again() -> None:
    lane, workers = survivors()
    workers[0].session.send(control(MOVED))
    key = key_id(spec_of_home(0).key)
    cause = control(messages.Abandon(int(ErrorCode.TIMEOUT), "no more"), key=key, route=1)
    workers[0].session.send(cause)
    (members,) = lane.core._roster.runs.values()
    members.run.retelling.add(1)
    members.run.retelling._begin(members.run.streams)
    workers[0].session.send(control(BACK))  # the stream moves away
    assert not members.run.retelling
    assert not workers[1].read(MessageKind.REFUSED)


def test_a_verdict_that_was_lost_is_told_again_until_it_is_abandoned() -> None:
    lane = SimLane()
    workers = join_all(lane, 2)
    workers[0].contribute(Spec(count=8), data=bytes(32))
    workers[1].contribute(Spec(count=9), data=bytes(36))
    (told,) = workers[0].read(MessageKind.REFUSED)
    back = again(workers[0])
    (again_told,) = back.read(MessageKind.REFUSED)
    assert again_told.payload == told.payload
    back.abandon(Spec())
    assert not again(back).read(MessageKind.REFUSED)


def test_what_a_void_round_owes_is_counted_once_after_a_reconnect() -> None:
    lane = SimLane(credit=4_096, budget=1 << 20)
    workers = join_all(lane, 2)
    workers[1].contribute(Spec(count=9), data=bytes(36))
    workers[0].contribute(Spec(count=8), data=bytes(32))
    for _ in range(10):
        workers[0] = again(workers[0])
        workers[0].contribute(Spec(count=8), data=bytes(32))
        assert workers[0].session.closed is None
    for worker in workers:
        worker.abandon(Spec())
    for number in (1, 2):
        for rank, worker in enumerate(workers):
            worker.contribute(Spec(number=number), data=data(rank))
    assert workers[0].results() == [total(2)] * 2


def test_a_grant_that_was_lost_is_given_again() -> None:
    lane = SimLane(credit=4_096, budget=1 << 20)
    workers = join_all(lane, 2)
    workers[1].contribute(Spec(key="old"), data=data(1))
    workers[0].contribute(Spec(key="new"), data=data(0))
    assert workers[0].read(MessageKind.GRANT)
    back = again(workers[0])
    (grant,) = back.read(MessageKind.GRANT)
    assert grant.header.key == key_id("old")


# --- a lane that has lost its state ---------------------------------------------------------------


def test_a_run_that_comes_back_is_formed_by_its_own_processes_alone() -> None:
    lane = SimLane()
    hello = {"run_id": "run", "rejoin": True}
    first = Scripted(lane, 0, 2, **hello)
    stranger = Scripted(lane, 1, 2)  # a new run of the same job, which rank 0 has not joined yet
    assert not first.read(MessageKind.WELCOME)
    assert first.read(MessageKind.PENDING)
    second = Scripted(lane, 1, 2, **hello)
    assert welcome(first).run_id == welcome(second).run_id == "run"
    assert not stranger.read(MessageKind.WELCOME)
    leader = Scripted(lane, 0, 2, run_id="another")
    assert welcome(leader).run_id == welcome(stranger).run_id == "another"


def test_every_forming_of_a_run_has_an_instance_of_its_own() -> None:
    lane = SimLane()
    before = welcome(join_all(lane, 1)[0]).instance
    for session in list(lane.sessions.values()):
        session.disconnect()
    lane.tick(5.1)
    after = welcome(Scripted(lane, 0, 1, run_id="run", rejoin=True)).instance
    assert after != before


def test_a_connection_that_breaks_while_the_run_forms_is_replaced() -> None:
    lane = SimLane()
    first = Scripted(lane, 0, 2)
    back = Scripted(lane, 0, 2)
    assert first.session.closed == "replaced by a new connection"
    Scripted(lane, 1, 2)
    assert welcome(back).world_size == 2


# --- routes and streams ---------------------------------------------------------------------------


def test_a_route_is_passed_on_and_a_dead_slots_chunks_are_taken_over() -> None:
    _, workers = survivors()
    spec = spec_of_home(0)
    workers[0].session.send(control(MOVED))
    (passed,) = workers[1].read(MessageKind.ROUTE)
    assert messages.decode(messages.Route, passed.payload or b"") == MOVED
    for rank, worker in enumerate(workers):
        worker.contribute(spec, data=data(rank), route=1)
    for worker in workers:
        (result,) = worker.read(MessageKind.RESULT)
        assert (bytes(result.payload or b""), result.header.route) == (total(2), 1)
    workers[1].session.send(control(MOVED))  # known: nothing happens
    assert not workers[0].read(MessageKind.ROUTE)
    assert welcome(again(workers[0])).live == (0, 1)


def test_a_route_is_passed_on_as_it_came() -> None:
    """With names that this version does not know: the other ranks may know them."""
    _, workers = survivors()
    payload = msgpack.packb({**msgpack.unpackb(messages.encode(MOVED)), "of a later minor": 7})
    workers[0].session.send(frame(Header(MessageKind.ROUTE), payload))
    (passed,) = workers[1].read(MessageKind.ROUTE)
    assert bytes(passed.payload or b"") == payload


def test_streams_of_living_slots_stay_and_moved_ones_are_dropped_with_what_was_owed() -> None:
    lane, workers = survivors()
    own, other = spec_of_home(1), spec_of_home(0)
    workers[0].contribute(own, data=data(0))
    workers[0].session.send(control(MOVED))
    workers[0].contribute(other, data=data(0), route=1)
    assert len(lane.held) == 2
    workers[0].session.send(control(BACK))
    assert len(lane.held) == 1
    workers[1].contribute(own, data=data(1))
    assert workers[0].results() == [total(2)]
    workers[1].contribute(other, data=data(1), route=1)  # it was on its way
    assert workers[1].session.closed is None
    snapshot = lane.snapshot()["jobs"]["job"]
    assert (snapshot["contributions"], snapshot["open_rounds"]) == (3, 0)
    assert (snapshot["failovers"], snapshot["reconnects"]) == (1, 0)


@pytest.mark.parametrize(
    ("spec", "fields", "text"),
    [
        (spec_of_home(0), {"route": 1}, "which knows route 0 and does not own it"),
        (spec_of_home(0), {}, "does not own it"),
        (spec_of_home(1), {"route": 1}, "which knows route 0 and does not own it"),
    ],
)
def test_a_stream_that_no_route_has_put_here_is_refused(
    spec: Spec, fields: dict[str, int], text: str
) -> None:
    lane, workers = survivors()
    workers[0].contribute(spec, data=data(0), **fields)
    assert text in workers[0].error().message
    assert not lane.held


def test_what_every_rank_holds_by_way_of_an_earlier_stream_is_soon_forgotten() -> None:
    lane, workers = survivors()
    spec = spec_of_home(0, number=7)
    workers[0].session.send(control(MOVED))
    for worker in workers:
        worker.read(MessageKind.HEARTBEAT)
    # The dead slot had told only rank 1 that the round is stable, so rank 0 retransmits.
    entry = (key_id(spec.key), position(8, 0))
    workers[1].session.send(heartbeat(entry, route=1))
    workers[0].contribute(spec, data=data(0), route=1)
    assert lane.held
    workers[0].session.send(heartbeat(entry, route=1))
    assert not lane.held
    assert lane.snapshot()["jobs"]["job"]["open_rounds"] == 0
    lane.tick(0.3)
    told, *_ = workers[0].read(MessageKind.HEARTBEAT)
    assert (told.payload or b"")[8:] == position(8, 0).to_bytes(8, "little")


def test_a_verdict_outlives_the_lane_that_made_it() -> None:
    lane, workers = survivors()
    spec = spec_of_home(0)
    workers[0].session.send(control(MOVED))
    workers[0].contribute(spec, data=data(0), route=1)
    cause = messages.Abandon(int(ErrorCode.MISMATCH), "rank 0: ..., rank 1: ...")
    workers[1].session.send(control(cause, key=key_id(spec.key), round=0, route=1))
    (refused,) = workers[0].read(MessageKind.REFUSED)
    assert messages.decode(messages.Refused, refused.payload or b"").message == cause.message
    assert not lane.held
    assert not workers[1].read(MessageKind.REFUSED)


def test_a_suspicion_goes_to_rank_0_in_its_own_name() -> None:
    _, workers = survivors(3)
    suspect = messages.Suspect(2, 0, 0, "connection refused")
    workers[2].session.send(control(suspect))
    (passed,) = workers[0].read(MessageKind.SUSPECT)
    assert messages.decode(messages.Suspect, passed.payload or b"") == suspect
    assert not workers[1].read(MessageKind.SUSPECT)
    workers[1].session.send(control(suspect))
    assert workers[1].error().code == ErrorCode.PROTOCOL


@pytest.mark.parametrize(
    "route",
    [messages.Route(1, (1,), (1,), (1,)), messages.Route(1, (1, 1, 1), (0, 1, 1), (1, 1, 1))],
)
def test_a_route_of_other_slots_is_refused(route: messages.Route) -> None:
    _, workers = survivors()
    workers[0].session.send(control(route))
    assert "the job has 2" in workers[0].error().message


def test_a_route_without_a_live_slot_is_refused_and_moves_nothing() -> None:
    _, workers = survivors()
    spec = spec_of_home(1)
    dead = msgpack.packb({**msgpack.unpackb(messages.encode(MOVED)), "live": (0, 0)})
    workers[0].session.send(frame(Header(kind=MessageKind.ROUTE), dead))
    error = workers[0].error()
    assert error.code == ErrorCode.PROTOCOL and "no live slot" in error.message
    assert not workers[1].read(MessageKind.ROUTE)
    workers[0] = again(workers[0])
    for worker in workers:
        worker.contribute(spec, data=data(worker.rank))
        assert worker.session.closed is None
    assert workers[1].results() == [total(2)]


def test_who_comes_back_to_a_lane_that_drains_goes_on_there() -> None:
    lane = SimLane()
    workers = join_all(lane, 2)
    workers[0].contribute(Spec(), data=data(0))
    lane.feed(events.Drain("SIGTERM"))
    back = again(workers[1])
    assert back.read(MessageKind.GOAWAY)  # it may have missed the first one
    back.contribute(Spec(), data=data(1))
    assert back.results() == [total(2)]


def test_a_new_run_takes_the_room_of_one_that_all_have_gone_from() -> None:
    lane = SimLane(budget=1 << 20, credit=1 << 30)
    for worker in join_all(lane, 2):
        worker.session.disconnect()
    for worker in join_all(lane, 2, run_id="next"):
        assert not worker.read(MessageKind.ERROR)
    assert len(lane.snapshot()["jobs"]) == 1


def test_a_lane_that_drains_ends_when_every_run_has_gone() -> None:
    lane, workers = survivors()
    lane.feed(events.Drain("SIGTERM"))
    assert workers[0].read(MessageKind.GOAWAY)
    assert not lane.core.drained(lane.now)
    workers[0].contribute(spec_of_home(1), data=data(0))
    gone = messages.Route(1, (0, 1), (1, 0), (1, 1))
    workers[0].session.send(control(gone))
    assert lane.core.drained(lane.now)
    assert not lane.held
