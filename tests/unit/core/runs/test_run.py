"""The laws of the sum on one lane: order, exactly once, mismatch, credits, stable, loss."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest

from reducer.core.limits.budget import LEAST_RECORDS, SHARES_BESIDE_RANKS, share_of
from reducer.core.limits.charges import ROUND, Records
from reducer.core.limits.held import HeldBytes
from reducer.core.rounds.chunk_owners import Owners, Route
from reducer.core.rounds.key import Key
from reducer.core.rounds.key_table import IdleKeys
from reducer.core.rounds.round import TRANSITIONS, Chunk, Phase, Round, Step, StreamRounds
from reducer.core.rounds.view import View
from reducer.core.surface import events
from reducer.core.surface.events import Send
from reducer.kernels import load
from reducer.wire import messages
from reducer.wire.codes import Collective, DType, ErrorCode, Flag, MessageKind, ReduceOp
from reducer.wire.errors import InternalError
from reducer.wire.header import Buffer
from reducer.wire.keys import key_id, position
from tests.support.frames import control, frame, heartbeat
from tests.support.keys import SAME_ID
from tests.support.scripted import Scripted, Spec, join_all
from tests.support.simlane import SimLane

KERNELS = load()


def floats(rank: int, count: int = 8) -> np.ndarray:
    return np.random.default_rng(rank).normal(size=count).astype(np.float32)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_contributions_are_folded_in_rank_order_whatever_the_arrival(
    order: tuple[int, ...],
) -> None:
    lane = SimLane()
    workers = join_all(lane, 4)
    values = [floats(rank) * np.float32(10) ** rank for rank in range(4)]
    for rank in order:
        workers[rank].contribute(Spec(), data=values[rank].tobytes())
    expected = ((values[0] + values[1]) + values[2]) + values[3]
    for worker in workers:
        assert worker.results() == [expected.tobytes()]
    assert len(lane.held) == 1  # only the result, until it is stable
    for worker in workers:
        worker.report("x", position(1, 0))
    assert not lane.held


@pytest.mark.parametrize("world", [5, 6, 9])
@pytest.mark.parametrize("seed", range(20))
def test_parts_that_are_folded_early_are_folded_in_rank_order_too(world: int, seed: int) -> None:
    lane = SimLane()
    workers = join_all(lane, world)
    values = [floats(rank) * np.float32(10) ** (rank % 5) for rank in range(world)]
    for rank in random.Random(seed).sample(range(world), world):
        workers[rank].contribute(Spec(), data=values[rank].tobytes())
    expected = functools.reduce(np.add, values)
    for worker in workers:
        assert worker.results() == [expected.tobytes()]
    assert len(lane.held) == 1


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ((1, 5, 0, 2, 3, 4), [1, 2, 3, 4, 2, 1]),  # with rank 3 the first four are in
        (range(9), [1, 2, 3, 1, 2, 3, 4, 1, 1]),
    ],
)
def test_four_parts_that_have_their_turn_become_one(
    order: Sequence[int], expected: list[int]
) -> None:
    lane = SimLane()
    workers = join_all(lane, len(order))
    held = []
    for rank in order:
        workers[rank].contribute(Spec(), data=floats(rank).tobytes())
        held.append(len(lane.held))
    assert held == expected


def test_parked_and_accumulated_bytes_never_exceed_what_was_sent() -> None:
    """The wide accumulator replaces parts that together are at least as large."""
    for dtype in (DType.FLOAT16, DType.BFLOAT16, DType.INT8, DType.FLOAT32):
        for seed in range(5):
            lane = SimLane()
            workers = join_all(lane, 8)
            lane.peak = 0
            size = 4_096
            count = size // {DType.FLOAT32: 4, DType.INT8: 1}.get(dtype, 2)
            ranks = list(range(8))
            random.Random(seed).shuffle(ranks)
            for rank in ranks:
                workers[rank].contribute(Spec(dtype=dtype, count=count), data=bytes(size))
            # Eight parts, and briefly also the accumulator that replaces some of them.
            assert lane.peak <= 8 * (size + 80) + 8 * size + 80
            assert len(lane.held) == 1


def test_every_illegal_step_is_a_bug_of_ours() -> None:
    idle = IdleKeys()
    records = Records("j", 1 << 20, idle.take_apart)
    place = Owners(Route.first((1,))).place(0, 0, 0)
    assert place is not None
    stream = StreamRounds(0, 0, place, records, HeldBytes(), View(2))
    for phase, step in itertools.product(Phase, Step):
        chunk = Chunk(Round(stream, Key(1, View(2)), 0, 0.0), 0, 4_096)
        chunk.phase = phase
        if (phase, step) in TRANSITIONS:
            chunk.step(step)
            assert chunk.phase == TRANSITIONS[phase, step]
        else:
            with pytest.raises(InternalError, match=step.name):
                chunk.step(step)


# --- exactly once ---------------------------------------------------------------------------


def test_a_duplicate_is_dropped_counted_and_answered_from_the_cache() -> None:
    lane = SimLane()
    workers = join_all(lane, 2)
    data = [floats(rank).tobytes() for rank in range(2)]
    workers[0].contribute(Spec(), data=data[0])
    workers[0].contribute(Spec(), data=data[0])
    assert workers[0].results() == []
    workers[1].contribute(Spec(), data=data[1])
    (result,) = workers[0].results()
    workers[0].contribute(Spec(), data=data[0])
    assert workers[0].results() == [result]
    workers[0].report("x", position(1, 0))
    workers[1].report("x", position(1, 0))
    workers[0].contribute(Spec(), data=data[0])
    assert workers[0].results() == []  # stable, so no rank needs it
    assert lane.snapshot()["jobs"]["job"]["duplicates"] == 3
    assert not lane.held


@pytest.mark.parametrize("complete", [False, True])
def test_a_duplicate_with_other_bytes_stops_the_job(complete: bool) -> None:
    lane = SimLane()
    workers = join_all(lane, 2)
    workers[0].announce("x")
    workers[0].contribute(Spec(), data=bytes(32))
    if complete:
        workers[1].contribute(Spec(), data=bytes(32))
    workers[0].contribute(Spec(), data=b"\x01" * 32)
    for worker in workers:
        error = worker.error()
        assert error.code == ErrorCode.INTEGRITY
        assert "rank 0 sent two different contributions for key 'x' round 0" in error.message
        worker.session.disconnect()
    assert not lane.held
    assert lane.snapshot()["reserved_bytes"] == 0


# --- mismatch -------------------------------------------------------------------------------

BASE = Spec(count=4_000)
OTHERS = [
    Spec(count=4_000, dtype=DType.INT32),
    Spec(count=4_001),
    Spec(count=1),
    Spec(count=0),
    Spec(count=4_000, op=ReduceOp.MEAN),
    Spec(count=4_000, collective=Collective.BROADCAST, op=ReduceOp.COPY),
    Spec(count=0, collective=Collective.BARRIER, op=ReduceOp.NONE, dtype=DType.UINT8),
]


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("odd_rank", [0, 2])
def test_a_mismatch_is_one_text_for_all_and_the_key_goes_on(other: Spec, odd_rank: int) -> None:
    lane = SimLane()
    workers = join_all(lane, 3)
    for rank in (1, 0, 2):
        spec = other if rank == odd_rank else BASE
        workers[rank].announce("x")
        size = workers[rank].plan(spec).vector_bytes
        workers[rank].contribute_all(spec, bytes(size))
    texts = set()
    for worker in workers:
        assert worker.results() == []
        (refused,) = worker.read(MessageKind.REFUSED)
        message = messages.decode(messages.Refused, refused.payload or b"")
        assert message.code == ErrorCode.MISMATCH
        assert (refused.header.key, refused.header.round) == (key_id("x"), 0)
        texts.add(message.message)
    (text,) = texts
    assert "the ranks disagree on key 'x' round 0" in text
    assert f"rank {odd_rank}: " in text
    assert f"all_reduce sum float32 x {BASE.count}" in text
    assert not lane.held
    for worker in workers:
        worker.abandon(BASE)
    for rank, worker in enumerate(workers):
        worker.contribute(Spec(number=1), data=floats(rank).tobytes())
    assert all(len(worker.results()) == 1 for worker in workers)
    for worker in workers:
        worker.report("x", position(2, 0))
    for _ in range(5):
        lane.tick(2.7)
        for worker in workers:
            worker.report("none", 0)  # no rank is silent
    assert lane.snapshot()["jobs"]["job"]["keys"] == 0


def test_of_many_calls_that_disagree_the_first_are_named_and_the_others_counted() -> None:
    lane = SimLane()
    workers = join_all(lane, 13)
    for rank, worker in enumerate(workers):
        worker.contribute(Spec(count=1 + rank), data=bytes(4 + 4 * rank))
    (refused,) = workers[0].read(MessageKind.REFUSED)
    text = messages.decode(messages.Refused, refused.payload or b"").message
    assert "rank 7: all_reduce sum float32 x 8; and 5 more. Submit the same" in text


def test_the_verdict_waits_for_every_rank() -> None:
    lane = SimLane()
    workers = join_all(lane, 3)
    workers[0].contribute(Spec(count=8), data=bytes(32))
    workers[2].contribute(Spec(count=4), data=bytes(16))
    assert not workers[0].read(MessageKind.REFUSED)
    workers[1].contribute(Spec(count=8), data=bytes(32))
    (refused,) = workers[0].read(MessageKind.REFUSED)
    text = messages.decode(messages.Refused, refused.payload or b"").message
    assert text.index("ranks 0, 1: ") < text.index("rank 2: ")


def test_an_abandoned_round_restores_the_credit_of_what_was_sent() -> None:
    lane = SimLane(credit=4_096, budget=(2 + SHARES_BESIDE_RANKS) * share_of(3 * 4_096))
    workers = join_all(lane, 2)
    for number in range(50):
        for rank, worker in enumerate(workers):
            worker.contribute(Spec(number=number, count=8 - rank), data=bytes(32 - 4 * rank))
        for worker in workers:
            worker.abandon(Spec(number=number))
    for worker in workers:
        assert len(worker.read(MessageKind.REFUSED)) == 50
        assert worker.session.closed is None
    assert not lane.held


def describe(worker: Scripted, spec: Spec) -> None:
    worker.session.send(frame(worker.header(spec).replace(kind=MessageKind.DESCRIBE)))


def test_descriptions_leave_a_bounded_number_of_records() -> None:
    """Descriptions fill at most half of the records; further ones are dropped."""
    lane = SimLane(records=LEAST_RECORDS)
    workers = join_all(lane, 2)
    room = (2 + SHARES_BESIDE_RANKS) * LEAST_RECORDS
    kept = room // 2 // ROUND
    for number in range(10 * kept):
        describe(workers[0], Spec(number=number))
    numbers = lane.snapshot()["jobs"]["job"]
    assert numbers["record_bytes"] <= room // 2
    for number in (3, kept + 5):  # the first is kept, the second is not
        describe(workers[1], Spec(number=number, count=9))
    (refused,) = workers[0].read(MessageKind.REFUSED)
    assert refused.header.round == 3
    assert workers[0].session.closed is None


def test_a_bug_of_ours_is_not_taken_for_the_peers_fault() -> None:
    bugs: list[InternalError] = []

    def crc32c(data: Buffer) -> int:
        if bugs:
            raise bugs.pop()
        return KERNELS.crc32c(data)

    lane = SimLane(KERNELS, crc32c=crc32c)
    of_a_verdict = join_all(lane, 2, job="verdict")
    describe(of_a_verdict[0], Spec())
    bugs.append(InternalError("planted"))
    describe(of_a_verdict[1], Spec(count=9))  # the verdict is for all
    of_an_answer = join_all(lane, 2, job="answer")
    barrier = Spec(key="b", collective=Collective.BARRIER, op=ReduceOp.NONE, count=0)
    of_an_answer[0].contribute(barrier)
    bugs.append(InternalError("planted"))
    of_an_answer[1].contribute(barrier)
    for worker in (*of_a_verdict, *of_an_answer):
        assert worker.error().code == ErrorCode.INTERNAL


# --- flow control ---------------------------------------------------------------------------


def test_more_than_credit_and_grant_is_refused_before_memory_is_taken() -> None:
    lane = SimLane(credit=4_096)
    workers = join_all(lane, 2)
    for chunk in range(3):
        workers[0].contribute(Spec(count=8_192), chunk, bytes(4_096))
    held = len(lane.held)
    workers[0].contribute(Spec(count=8_192), 3, bytes(4_096))
    error = workers[0].error()
    assert error.code == ErrorCode.QUOTA
    assert "rank 0 has 12,288 bytes unanswered and sends 4,096 more" in error.message
    assert len(lane.held) <= held
    assert lane.peak <= 3 * (4_096 + 80)


def test_the_oldest_open_round_is_granted_to_a_rank_that_is_stuck() -> None:
    lane = SimLane(credit=4_096)
    workers = join_all(lane, 2)
    first, second = Spec(key="first", count=1_024), Spec(key="second", count=1_024)
    workers[0].contribute(first, data=bytes(4_096))
    assert not workers[0].read(MessageKind.GRANT)  # it has sent all of the oldest round
    workers[1].contribute(second, data=bytes(4_096))
    (grant,) = workers[1].read(MessageKind.GRANT)
    assert (grant.header.key, grant.header.round) == (key_id("first"), 0)
    workers[1].contribute(first, data=bytes(4_096))
    assert workers[0].results() == workers[1].results() == [bytes(4_096)]
    assert not workers[0].read(MessageKind.GRANT)  # its credit is free, so it needs no grant
    workers[0].contribute(second, data=bytes(4_096))
    assert workers[0].results() == workers[1].results() == [bytes(4_096)]


def test_a_rank_in_the_middle_of_the_oldest_round_is_granted_the_rest() -> None:
    lane = SimLane(credit=8_192)
    worker = join_all(lane, 2)[0]
    spec = Spec(count=4_096)
    worker.contribute(spec, 0, bytes(4_096))
    assert not worker.read(MessageKind.GRANT)  # there is credit for one more
    worker.contribute(spec, 1, bytes(4_096))
    assert len(worker.read(MessageKind.GRANT)) == 1


def test_ranks_whose_credit_lies_in_a_void_round_may_go_on_with_the_next() -> None:
    """Rank 1 waits for `y` before it submits `x`, on which the others disagree."""
    lane = SimLane(credit=4_096)
    workers = join_all(lane, 3)
    workers[0].contribute(Spec("x", count=1_024), data=bytes(4_096))
    workers[2].contribute(Spec("x", count=8), data=bytes(32))
    outputs: list[events.Output | int] = []
    lane.inject = outputs.append
    workers[1].contribute(Spec("y"), data=bytes(32))
    assert [len(o.sessions) for o in outputs if isinstance(o, events.Send)] == [2]  # one frame
    for worker in (workers[0], workers[2]):
        (grant,) = worker.read(MessageKind.GRANT)
        assert grant.header.key == key_id("y")


BROADCAST = Spec(collective=Collective.BROADCAST, op=ReduceOp.COPY)
BARRIER = Spec(collective=Collective.BARRIER, op=ReduceOp.NONE)


# --- senseless frames --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "chunk", "fields", "size", "text"),
    [
        (Spec(), 0, {"rank": 1}, 32, "a contribution of rank 1 came from rank 0"),
        (
            Spec(),
            0,
            {"epoch": 1},
            32,
            "rank 0 sent a frame of epoch 1 before the route",
        ),
        (Spec(), 1, {}, 32, "rank 0 sent chunk 1 of {round}, expected 0 to 0"),
        (Spec(), 0, {}, 31, "rank 0 sent 31 bytes for chunk 0 of {round}, expected 32"),
        (Spec(), 0, {}, 0, "rank 0 sent 0 bytes for chunk 0 of {round}, expected 32"),
        (Spec(), 0, {"dtype": 0}, 32, "unknown dtype 0 in {round}"),
        (Spec(), 0, {"dtype": 11}, 32, "rank 0 sent 32 bytes for chunk 0 of {round}, expected 8"),
        (Spec(), 0, {"op": 6}, 32, "op 6 does not belong to collective 1"),
        (Spec(), 0, {"op": 77}, 32, "op 77 does not belong to collective 1"),
        (Spec(op=ReduceOp.BAND), 0, {}, 32, "op band is for integers, got float32"),
        (Spec(op=ReduceOp.BXOR, dtype=DType.BFLOAT16), 0, {}, 16, "op bxor is for integers"),
        (Spec(), 0, {"collective": 0}, 32, "does not belong to collective 0"),
        (Spec(), 0, {"collective": 9}, 32, "does not belong to collective 9"),
        (Spec(), 0, {"flags": int(Flag.WIDE)}, 32, "rank 0 set flags"),
        (Spec(), 0, {"flags": int(Flag.OVERFLOW)}, 32, "rank 0 set flags"),
        (Spec(), 0, {"root": 1}, 32, "rank 0 named root 1; expected 0 to 1 for a broadcast"),
        (Spec(), 0, {"round": 1 << 39}, 32, "rank 0 sent round 549755813888, the limit is"),
        (Spec(), 0, {"count": 2**64 - 1}, 32, "elements per part are more than the limit of"),
        (BROADCAST, 0, {"root": 2}, 0, "rank 0 named root 2"),
        (BARRIER, 0, {}, 0, "a barrier of 8 elements, expected 0"),
    ],
)
def test_a_senseless_contribution_ends_the_session_and_takes_nothing(
    spec: Spec, chunk: int, fields: dict[str, int], size: int, text: str
) -> None:
    lane = SimLane()
    workers = join_all(lane, 2)
    workers[0].contribute(spec, chunk, bytes(size), **fields)
    error = workers[0].error()
    assert error.code == ErrorCode.PROTOCOL
    assert text.replace("{round}", f"key {key_id('x'):#x} round 0") in error.message
    assert not lane.held
    assert lane.peak == 0


@pytest.mark.parametrize("lane_number", [0, 1])
@pytest.mark.parametrize("kind", [MessageKind.CONTRIBUTION, MessageKind.DESCRIBE])
def test_what_another_lane_owns_is_refused(kind: MessageKind, lane_number: int) -> None:
    """Of two lanes, one owns chunk 0 of a key, and the other owns chunk 0 of the next one."""
    lane = SimLane(lanes=2, lane=lane_number)
    owner, other = join_all(lane, 2)
    specs = [Spec(key) for key in "xy"]
    owners = Owners(Route.first((2,)))
    owned, wrong = sorted(specs, key=lambda s: owners.owner(key_id(s.key), 0)[1] != lane_number)
    assert owners.owner(key_id(wrong.key), 0) == (0, 1 - lane_number)
    data = bytes(32) if kind == MessageKind.CONTRIBUTION else b""
    owner.contribute(owned, data=data, kind=int(kind))
    assert owner.session.closed is None
    other.contribute(wrong, data=data, kind=int(kind))
    error = other.error()
    assert error.code == ErrorCode.PROTOCOL and "a lane that does not own" in error.message


def test_a_worker_may_not_send_what_only_lanes_send() -> None:
    lane = SimLane()
    workers = join_all(lane, 2)
    workers[0].contribute(Spec(), data=bytes(32), kind=int(MessageKind.GRANT), length=0)
    assert workers[0].session.closed


def test_key_names_are_checked() -> None:
    lane = SimLane()
    workers = join_all(lane, 2)
    workers[0].announce("a")
    workers[0].announce("a")
    workers[1].announce("b", id_=key_id("a"))
    assert "not the id of key 'b'" in workers[1].error().message


def test_a_job_has_its_share_of_keys() -> None:
    lane = SimLane(max_keys=3)
    workers = join_all(lane, 2)
    for name in "abcd":
        workers[0].announce(name)
    error = workers[0].error()
    assert error.code == ErrorCode.QUOTA
    assert "job 'job' has 3 keys in use" in error.message and "--max-keys" in error.message


def test_two_names_of_one_id_are_refused_and_named() -> None:
    lane = SimLane()
    workers = join_all(lane, 2)
    first, second = SAME_ID
    assert key_id(first) == key_id(second)
    for worker, name in zip(workers, SAME_ID, strict=True):
        worker.announce(name)
    error = workers[1].error()
    assert error.code == ErrorCode.PROTOCOL
    assert repr(first) in error.message and repr(second) in error.message
    assert "rename one of them" in error.message
    assert workers[0].session.closed is None


# --- what is kept, what is freed ----------------------------------------------------------------


def test_ten_thousand_keys_used_once_leave_nothing_behind() -> None:
    lane = SimLane(records=4 << 20, budget=1 << 30)
    workers = join_all(lane, 2)
    for number in range(10_000):
        spec = Spec(key=f"key-{number}")
        for worker in workers:
            worker.announce(spec.key)
            worker.contribute(spec, data=bytes(32))
            worker.report(spec.key, position(1, 0))
        if number % 100 == 0:
            lane.tick(0.01)
    assert not lane.held
    for _ in range(13):
        lane.tick(1.1)
        for worker in workers:
            worker.report("none", 0)
    assert lane.snapshot()["jobs"]["job"]["keys"] == 0
    for worker in workers:
        worker.contribute(Spec(key="key-5", number=1), data=bytes(32), done=position(1, 0))
        assert worker.session.closed is None
    assert workers[0].results()[-1] == bytes(32)


def test_results_of_neighbouring_chunks_begin_at_other_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lane = SimLane()
    workers = join_all(lane, 3)
    ranks = {worker.session.number: worker.rank for worker in workers}
    orders: list[list[int]] = []
    send = lane._send

    def note(output: Send) -> None:
        orders.append([ranks[session] for session in output.sessions])
        send(output)

    monkeypatch.setattr(lane, "_send", note)
    for worker in workers:
        worker.contribute_all(Spec(count=4 * 1_024), bytes(4 * 4_096))
    assert orders == [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]]


def test_stable_is_told_at_the_heartbeat_and_when_much_is_unreported() -> None:
    lane = SimLane(credit=4 * 4_096)
    workers = join_all(lane, 2)
    lane.tick(0.3)
    workers[0].read(MessageKind.HEARTBEAT)
    for worker in workers:
        worker.contribute(Spec(key="not reported", count=1), data=bytes(4))
    for key in ("x", "y"):
        for worker in workers:
            worker.contribute(Spec(key=key, count=1_024), data=bytes(4_096))
        for worker in workers:
            worker.report(key, position(1, 0))
    (beat,) = workers[0].read(MessageKind.HEARTBEAT)  # half the credit became stable
    assert bytes(beat.payload or b"") == b"".join(
        key_id(key).to_bytes(8, "little") + position(1, 0).to_bytes(8, "little")
        for key in ("x", "y")
    )


def test_stable_is_told_at_once_when_no_rank_lacks_a_result() -> None:
    lane = SimLane()
    workers = join_all(lane, 2)
    lane.tick(0.3)
    for worker in workers:
        worker.read(MessageKind.HEARTBEAT)
        worker.contribute(Spec(key="x"), data=bytes(32))
        worker.contribute(Spec(key="y"), data=bytes(32))
    workers[0].report("x", position(1, 0))
    workers[1].report("x", position(1, 0))
    workers[0].report("y", position(1, 0))
    assert not workers[0].read(MessageKind.HEARTBEAT)  # rank 1 may lack the result of y
    workers[1].report("y", position(1, 0))
    for worker in workers:
        (beat,) = worker.read(MessageKind.HEARTBEAT)
        assert bytes(beat.payload or b"") == b"".join(
            key_id(key).to_bytes(8, "little") + position(1, 0).to_bytes(8, "little")
            for key in ("x", "y")
        )


def test_what_one_heartbeat_has_made_stable_is_told_in_one() -> None:
    """Regression: 17 keys of half the credit made 17 frames to each of 8,192 ranks: 21 ms."""
    lane = SimLane(credit=4 * 4_096)
    workers = join_all(lane, 2)
    lane.tick(0.3)
    workers[0].read(MessageKind.HEARTBEAT)
    keys = [f"k{number}" for number in range(4)]
    for key in keys:
        for worker in workers:
            worker.contribute_all(Spec(key=key, count=2 * 1_024), bytes(2 * 4_096))
        workers[0].report(key, position(1, 0))
    assert not workers[0].read(MessageKind.HEARTBEAT)
    workers[1].session.send(heartbeat(*((key_id(key), position(1, 0)) for key in keys)))
    (beat,) = workers[0].read(MessageKind.HEARTBEAT)
    assert len(beat.payload or b"") == 16 * len(keys)


def test_what_a_result_has_told_is_not_repeated_in_a_heartbeat() -> None:
    lane = SimLane(credit=4 * 4_096)
    workers = join_all(lane, 2)
    lane.tick(0.3)
    workers[0].read(MessageKind.HEARTBEAT)
    for number in range(8):
        done = position(number, 0)
        for worker in workers:
            spec = Spec(number=number, count=1_024)
            worker.contribute(spec, data=bytes(4_096), done=done)
        (result,) = workers[0].read(MessageKind.RESULT)
        assert result.header.stable == done
    assert not workers[0].read(MessageKind.HEARTBEAT)
    lane.tick(0.3)
    (beat,) = workers[0].read(MessageKind.HEARTBEAT)
    assert beat.payload is None


# --- loss -----------------------------------------------------------------------------------


def absences(worker: Scripted) -> list[messages.Absent]:
    frames = worker.read(MessageKind.ABSENT)
    return [messages.decode(messages.Absent, f.payload or b"") for f in frames]


def test_the_others_hear_of_a_lost_rank_after_the_grace_and_of_its_return() -> None:
    lane = SimLane()
    workers = join_all(lane, 3)
    workers[0].contribute(Spec(), data=bytes(32))
    workers[2].session.disconnect("connection reset")
    lane.tick(0.4)
    assert not absences(workers[0])
    lane.tick(0.2)
    for worker in workers[:2]:
        assert absences(worker) == [messages.Absent(((2, "connection reset"),))]
    lane.tick(0.2)
    assert not absences(workers[0])  # told once
    assert workers[0].session.closed is None
    Scripted(lane, 2, 3, run_id="run", rejoin=True)
    lane.tick(0.05)
    assert absences(workers[0]) == [messages.Absent()]


def test_who_gives_up_ends_the_run_for_all() -> None:
    lane = SimLane()
    workers = join_all(lane, 3)
    workers[0].contribute(Spec(), data=bytes(32))
    lost = messages.Error(int(ErrorCode.PEER_LOST), "rank 2 is lost: reset", 2, "lost")
    workers[1].session.send(control(lost))
    assert workers[0].error() == lost
    assert lane.snapshot()["jobs"] == {}
    assert not lane.held

    workers = join_all(lane, 3)
    workers[1].session.send(control(messages.Error(int(ErrorCode.UNAVAILABLE), "no reducer")))
    error = workers[0].error()
    assert (error.code, error.rank, error.reason) == (ErrorCode.PEER_LOST, 1, "failed")
    assert "rank 1 of job 'job' has failed: no reducer" in error.message


def test_a_run_that_everybody_has_gone_from_is_forgotten() -> None:
    lane = SimLane()
    workers = join_all(lane, 2)
    workers[0].contribute(Spec(), data=bytes(32))
    for worker in workers:
        worker.session.disconnect()
    lane.tick(4.9)
    assert lane.held
    lane.tick(0.2)
    assert not lane.held
    snapshot = lane.snapshot()
    assert (snapshot["jobs"], snapshot["reserved_bytes"]) == ({}, 0)


@pytest.mark.parametrize("contributed", [False, True])
def test_a_rank_that_leaves_early_is_named(contributed: bool) -> None:
    lane = SimLane()
    workers = join_all(lane, 2)
    if contributed:  # the open round already needs the rank
        workers[0].contribute(Spec(), data=bytes(32))
        workers[1].bye()
    else:  # the next round will need the rank
        workers[1].bye()
        workers[0].contribute(Spec(), data=bytes(32))
    error = workers[0].error()
    assert (error.code, error.rank, error.reason) == (ErrorCode.PEER_LOST, 1, "left")
    assert not lane.held


def test_a_rank_that_has_done_its_part_may_leave_before_the_others() -> None:
    lane = SimLane()
    workers = join_all(lane, 2)
    workers[1].contribute(Spec(), data=bytes(32))
    workers[1].bye()
    workers[1].session.disconnect()
    workers[0].contribute(Spec(), data=bytes(32))
    assert workers[0].results() == [bytes(32)]
    lane.tick(1.0)
    assert workers[0].session.closed is None
    workers[0].bye()
    assert lane.snapshot()["jobs"] == {}
    assert not lane.held


def test_a_silent_rank_is_lost() -> None:
    lane = SimLane()
    workers = join_all(lane, 2)
    for _ in range(60):
        lane.tick(0.1)
        workers[0].report("none", 0)
    (absent,) = absences(workers[0])
    assert absent.absent == ((1, "it sent nothing for 5.1 s"),)
    assert workers[1].session.closed
    assert not workers[1].read(MessageKind.ERROR)  # maybe only this lane is deaf


def test_a_job_says_how_long_a_rank_may_be_silent() -> None:
    lane = SimLane()
    patient = join_all(lane, 2, worker_silence_ms=20_000)
    (welcome,) = patient[1].read(MessageKind.WELCOME)
    assert messages.decode(messages.Welcome, welcome.payload).worker_silence_ms == 20_000
    for _ in range(195):
        lane.tick(0.1)
        patient[0].report("none", 0)
    assert not absences(patient[0])
    assert not patient[1].session.closed
    for _ in range(15):
        lane.tick(0.1)
        patient[0].report("none", 0)
    (absent,) = absences(patient[0])
    ((rank, reason),) = absent.absent
    assert rank == 1
    assert reason.startswith("it sent nothing for 20.")


def test_a_lane_that_stood_still_blames_nobody() -> None:
    lane = SimLane()
    workers = join_all(lane, 3)
    workers[2].session.disconnect()
    newcomer = lane.connect()
    lane.tick(0.4)
    lane.stand_still(30)
    assert not absences(workers[0])
    assert newcomer.closed is None
    assert all(worker.session.closed is None for worker in workers[:2])
    lane.tick(0.6)
    ((rank, _),) = absences(workers[0])[0].absent
    assert rank == 2
    lane.tick(5)
    assert newcomer.closed and workers[1].session.closed


def test_a_stalled_round_is_reported_with_the_absent_ranks() -> None:
    lane = SimLane(silence=1_000.0)
    workers = join_all(lane, 3)
    workers[0].announce("slow")
    workers[0].contribute(Spec(key="slow", number=4), data=bytes(32))
    for _ in range(9):
        lane.tick(1.0)
    assert not workers[1].read(MessageKind.STALL)
    for _ in range(7):
        lane.tick(1.0)
    stall = workers[1].read(MessageKind.STALL)[0]
    (row,) = messages.decode(messages.Stall, stall.payload or b"").rounds
    assert (row["key"], row["round"], row["absent"]) == ("slow", 4, [1, 2])
    assert 10_000 <= row["age_ms"] <= 16_000


# --- forwarding -----------------------------------------------------------------------------


def test_nobody_is_sent_bytes_that_it_does_not_need() -> None:
    lane = SimLane()
    workers = join_all(lane, 3)
    gather = Spec("g", collective=Collective.ALL_GATHER, op=ReduceOp.COPY, count=4)
    for rank, worker in enumerate(workers):
        for chunk in range(3):
            worker.contribute(gather, chunk, bytes([rank]) * 16 if chunk == rank else b"")
    for rank, worker in enumerate(workers):
        parts = [b"" if part == rank else bytes([part]) * 16 for part in range(3)]
        assert worker.results() == parts
    scatter = Spec("s", collective=Collective.REDUCE_SCATTER, count=4)
    for worker in workers:
        for chunk in range(3):
            worker.contribute(scatter, chunk, np.full(4, chunk + 1, np.float32).tobytes())
    for rank, worker in enumerate(workers):
        sums = [np.full(4, 3 * (p + 1), np.float32).tobytes() if p == rank else b""
                for p in range(3)]  # fmt: skip
        assert worker.results() == sums
    cast = Spec("b", collective=Collective.BROADCAST, op=ReduceOp.COPY, count=4, root=2)
    for rank, worker in enumerate(workers):
        worker.contribute(cast, 0, b"\xff" * 16 if rank == 2 else b"")
    assert [worker.results() for worker in workers] == [[b"\xff" * 16], [b"\xff" * 16], [b""]]


def test_zero_size_rounds_and_barriers_complete_on_one_empty_chunk() -> None:
    lane = SimLane()
    workers = join_all(lane, 2)
    barrier = Spec("b", collective=Collective.BARRIER, op=ReduceOp.NONE, dtype=DType.UINT8, count=0)
    for spec in (barrier, Spec("z", count=0)):
        for worker in workers:
            assert worker.results() == []
            worker.contribute(spec)
        assert [worker.results() for worker in workers] == [[b""], [b""]]
    assert not lane.held


def test_an_integer_overflow_is_flagged_on_the_result() -> None:
    lane = SimLane()
    workers = join_all(lane, 2)
    for worker in workers:
        worker.contribute(Spec(dtype=DType.INT8, count=4), data=bytes([100] * 4))
    (frame,) = workers[0].read(MessageKind.RESULT)
    assert frame.header.flags & Flag.OVERFLOW
    assert bytes(frame.payload or b"") == np.full(4, -56, np.int8).tobytes()
