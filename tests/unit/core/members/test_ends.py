"""Deserted runs end a few at a time, and keep their memory reserved until then."""

from __future__ import annotations

import math
import time
from itertools import chain, pairwise
from typing import NoReturn

from reducer.core.limits.budget import SHARES_BESIDE_RANKS, share_of
from reducer.core.limits.charges import CHUNK, KEY, KEY_RANK, LIST_PLACE, MIN_COST, ROUND
from reducer.core.members.joining import CUT_OFF_AT_ONCE
from reducer.core.members.roster import RUN
from reducer.core.members.run_endings import (
    FORGOTTEN_AT_ONCE,
    PARTS_OF_ROUND,
    REPLACED_AT_ONCE,
    ROUNDS_AT_ONCE,
    STREAMS_OF_ROUND,
)
from reducer.core.members.session import Session
from reducer.core.ticks import MOST_ENDED, MOST_IDLE
from reducer.wire import messages
from reducer.wire.codes import MAX_CHUNK_BYTES, MAX_REDUCERS, DType, ErrorCode, MessageKind
from tests.support.frames import control, heartbeat
from tests.support.scripted import Scripted, Spec, fill, join_all, runs_of_one
from tests.support.simlane import SimLane


def test_runs_that_nobody_comes_back_to_end_a_part_at_each_tick() -> None:
    """Regression: one tick ended 100 runs of 24,000 keys each: 0.3 s."""
    lane, count = SimLane(budget=1 << 40), 40
    for worker in runs_of_one(lane, count):
        worker.session.disconnect()
    left = [count]
    while left[-1]:
        lane.tick(0.25)
        left.append(len(lane.core._roster.runs))
    ended = [before - after for before, after in pairwise(left)]
    assert max(ended) == MOST_ENDED
    assert sum(map(bool, ended)) == -(-count // MOST_ENDED)


def deserted_runs(lane: SimLane, count: int, rounds: int) -> None:
    """Make deserted runs with this many open rounds each."""
    runs = [join_all(lane, 2, run_id=f"run-{number}") for number in range(count)]
    for first, _ in runs:
        for open_ in range(rounds):
            first.abandon(Spec(number=open_))
    for worker in chain.from_iterable(runs):
        worker.session.disconnect()


def test_runs_of_many_rounds_end_a_few_at_a_tick() -> None:
    """Regression: 16 runs of 46,000 rounds each blocked a lane for 2 s."""
    lane, rounds = SimLane(budget=1 << 40, records=1 << 24), ROUNDS_AT_ONCE // 2
    deserted_runs(lane, 5, rounds)
    left = [5]
    while left[-1]:
        lane.tick(0.25)
        left.append(len(lane.core._roster.runs))
    assert [before - after for before, after in pairwise(left) if before != after] == [2, 2, 1]


def test_runs_of_many_streams_end_a_few_at_a_tick() -> None:
    """Regression: one HELLO ended 64 runs of 4,095 streams each: 0.2 s."""
    lane, slots, count = SimLane(budget=1 << 40, records=1 << 24), MAX_REDUCERS, 5
    at_once = -(-ROUNDS_AT_ONCE * STREAMS_OF_ROUND // slots)
    live = (0,) * (slots - 1) + (1,)
    route = control(messages.Route(1, (1,) * slots, live, (1,) * slots))
    at_the_last = {"slot": slots - 1, "reducers": slots, "worker_silence_ms": 3_600_000}
    runs = [join_all(lane, 1, run_id=f"run-{n}", **at_the_last)[0] for n in range(count)]
    for worker in runs:
        worker.session.send(route)
        for home in range(slots):
            worker.session.send(heartbeat((1, 1), route=1, chunk=home))
    for worker in runs:
        worker.session.disconnect()
    left = [count]
    while left[-1]:
        lane.tick(0.25)
        left.append(len(lane.core._roster.runs))
    ended = [before - after for before, after in pairwise(left) if before != after]
    assert ended == [at_once, at_once, count - 2 * at_once]


def test_a_tick_forgets_a_few_ended_runs() -> None:
    """Regression: a tick forgot 4,161 of 5,000 runs with one key left each: 28 ms."""
    lane, count = SimLane(budget=1 << 40), 3 * MOST_IDLE // RUN
    for worker in runs_of_one(lane, count):
        fill(worker, 2 + FORGOTTEN_AT_ONCE // (KEY + KEY_RANK))
        worker.bye()
        worker.session.disconnect()
    left = [len(lane.core._roster.ended)]
    assert left == [count], "each run has one key left"
    while left[-1]:
        lane.tick(0.05)
        left.append(len(lane.core._roster.ended))
    assert max(before - after for before, after in pairwise(left)) <= MOST_IDLE // RUN


def test_a_hello_without_room_looks_at_few_of_the_runs_that_have_ended() -> None:
    """Regression: the HELLO checked the free memory once for each ended run: 3 us."""

    def hello(ended: int) -> float:
        lane = SimLane(budget=1 << 40, max_runs=ended)
        for worker in runs_of_one(lane, ended):
            fill(worker, 10 + FORGOTTEN_AT_ONCE // (KEY + KEY_RANK))
            worker.bye()
            worker.session.disconnect()
        lane.core._roster.budget.total = lane.core._roster.budget.reserved
        times = []
        for number in range(3):
            start = time.thread_time()
            refused = join_all(lane, 1, run_id=f"new-{number}", table=((0, MAX_CHUNK_BYTES),))[0]
            times.append(time.thread_time() - start)
            assert refused.error().code == ErrorCode.QUOTA
        return min(times)

    assert hello(1_000) < 4 * hello(100)


def test_a_pause_of_the_lane_is_not_held_against_a_run_that_nobody_is_in() -> None:
    lane = SimLane()
    runs_of_one(lane, 1)[0].session.disconnect()
    lane.tick(lane.settings.deserted_after - 1)
    lane.stand_still(10)
    assert len(lane.core._roster.runs) == 1
    lane.tick(1.5)
    assert not lane.core._roster.runs


def test_runs_that_have_nothing_to_forget_keep_nobody_waiting() -> None:
    """Regression: 64 runs whose only rank had sent BYE but stayed connected used up each tick, so
    keys of other jobs were never forgotten, and a run that made new keys ended for lack of room."""
    lane = SimLane(budget=1 << 40, records=1 << 24)
    for worker in runs_of_one(lane, MOST_IDLE // RUN + 1):
        worker.bye()
    (last,) = runs_of_one(lane, 1)
    fill(last, 1_000)
    last.bye()
    last.session.disconnect()
    before = len(lane.core._roster.ended)
    for _ in range(3):
        lane.tick(0.05)
    assert len(lane.core._roster.ended) == before - 1


def test_the_keys_of_one_job_do_not_wait_for_those_of_another() -> None:
    """Regression: 40 ended runs of 33 MB of records were forgotten first: 16 s."""
    lane = SimLane(budget=1 << 40, records=1 << 24)
    for worker in runs_of_one(lane, 10):
        fill(worker, 10_000)
        worker.bye()
        worker.session.disconnect()
    (other,) = join_all(lane, 1, job="other")
    other.session.send(control(messages.Route(1, (1,), (1,), (1,))))
    fill(other, 1_000)
    other.bye()
    other.session.disconnect()
    roster = lane.core._roster
    for _ in range(3):
        lane.tick(0.05)
    assert not roster.ended.of("other") and len(roster.ended.of("job")) == 10


def test_one_hello_ends_some_of_the_runs_that_it_replaces() -> None:
    """Regression: one HELLO ended 157 runs of 7,000 rounds each: 1.8 s."""
    lane, rounds = SimLane(budget=1 << 40, records=1 << 24), ROUNDS_AT_ONCE // 2
    deserted_runs(lane, 5, rounds)
    assert join_all(lane, 1, run_id="new")[0].read(MessageKind.WELCOME)
    assert len(lane.core._roster.runs) == 5 - 2 + 1


def test_chunks_count_as_parts_of_rounds() -> None:
    """Regression: 64 runs of one round with thousands of chunks ended in one 0.18 s step."""
    lane, count = SimLane(budget=1 << 40, records=1 << 24, credit=1 << 26), 5
    each = (CHUNK + 2 * LIST_PLACE) / ROUND + 1 / PARTS_OF_ROUND  # with a part
    chunks = math.ceil(ROUNDS_AT_ONCE / 2 / each)  # half of the limit at once
    runs = [join_all(lane, 2, run_id=f"run-{n}", table=((0, 64),)) for n in range(count)]
    for first, _ in runs:
        spec = Spec(count=chunks * 16)
        for chunk in range(chunks):
            first.contribute(spec, chunk, bytes(64))
    jobs = [members.run for members in lane.core._roster.runs.values()]
    assert {job.held.parts for job in jobs} == {chunks}
    for worker in chain.from_iterable(runs):
        worker.session.disconnect()
    assert join_all(lane, 1, run_id="new")[0].read(MessageKind.WELCOME)
    assert len(lane.core._roster.runs) == count - 2 + 1
    assert sum(job.held.parts for job in jobs) == 3 * chunks


def test_what_ranks_have_said_of_a_refused_round_counts_as_rounds() -> None:
    """Regression: five runs of 2,028 mismatched rounds of 512 ranks ended in 0.2 s."""
    lane, ranks, rounds = SimLane(budget=1 << 40, records=1 << 24), 8, ROUNDS_AT_ONCE // 4
    runs = [join_all(lane, ranks, run_id=f"run-{n}") for n in range(2)]
    for number in range(rounds):
        for rank, worker in chain.from_iterable(map(enumerate, runs)):
            dtype = DType.INT32 if rank else DType.FLOAT32
            worker.contribute(Spec(number=number, dtype=dtype), data=bytes(32))
    for worker in chain.from_iterable(runs):
        worker.session.disconnect()
    assert join_all(lane, 1, run_id="new")[0].read(MessageKind.WELCOME)
    assert len(lane.core._roster.runs) == 2 - 1 + 1


def test_the_largest_of_the_runs_that_are_replaced_ends_first() -> None:
    """Regression: a restarted job with many groups was refused for its own leftovers."""
    lane = SimLane(budget=1 << 40)
    small = [join_all(lane, 1, run_id=f"run-{number}")[0] for number in range(REPLACED_AT_ONCE)]
    large = join_all(lane, 8, run_id="large")
    for worker in (*small, *large):
        worker.session.disconnect()
    assert join_all(lane, 1, run_id="new")[0].read(MessageKind.WELCOME)
    runs = {members.run.run_id for members in lane.core._roster.runs.values()}
    assert len(runs) == 2 and "large" not in runs


def test_a_run_without_room_is_told_what_the_deserted_ones_still_have() -> None:
    lane = SimLane(budget=1 << 30, records=1 << 24)
    deserted_runs(lane, 3, ROUNDS_AT_ONCE)
    lane.core._roster.budget.total = lane.core._roster.budget.reserved
    world = lane.core._roster.budget.total // share_of(2 * MAX_CHUNK_BYTES) - SHARES_BESIDE_RANKS
    error = join_all(lane, world, run_id="large", table=((0, MAX_CHUNK_BYTES),))[0].error()
    kept = lane.core._roster.budget.reserved
    assert error.code == ErrorCode.QUOTA and f"its ended runs still take {kept:,}" in error.message


def test_the_keys_of_ended_runs_are_forgotten_a_part_at_each_tick() -> None:
    """Regression: one HELLO ended 50 runs of 24,000 keys each at once: 0.35 s."""
    lane, count, keys = SimLane(budget=1 << 40, records=1 << 24), 3, 5_000
    workers = runs_of_one(lane, count)
    for worker in workers:
        fill(worker, keys)
        worker.session.disconnect()
    jobs = [members.run for members in lane.core._roster.runs.values()]
    budget = lane.core._roster.budget
    join_all(lane, 1, run_id="another")
    size = KEY + KEY_RANK
    assert len(lane.core._roster.runs) == 1
    assert all(keys - job.records.keys <= 1 + FORGOTTEN_AT_ONCE // size for job in jobs)
    records = sum(job.records.used for job in jobs)
    (members,) = lane.core._roster.runs.values()
    assert budget.reserved == records + members.run.accounts.limits.reserve(1)
    left = [sum(job.records.keys for job in jobs)]
    while left[-1]:
        lane.tick(0.05)
        left.append(sum(job.records.keys for job in jobs))
    assert max(before - after for before, after in pairwise(left)) <= count + MOST_IDLE // size
    assert budget.reserved == members.run.accounts.limits.reserve(1)


def test_a_job_that_needs_the_room_of_its_ended_run_has_it_at_once() -> None:
    lane = SimLane(budget=1 << 21, job_budget=1 << 21)
    worker = runs_of_one(lane, 1)[0]
    (members,) = lane.core._roster.runs.values()
    fill(worker, 500)
    worker.session.disconnect()
    shares = 1 + SHARES_BESIDE_RANKS
    lane.core._roster.budget.total = shares * share_of(2 * MIN_COST)
    join_all(lane, 1, run_id="another", table=((0, 64),))
    assert [m.run.run_id for m in lane.core._roster.runs.values()] == ["another"]
    assert not members.run.records.keys


def test_a_run_that_needs_the_room_of_many_keys_waits_until_these_are_forgotten() -> None:
    """Regression: one HELLO forgot the keys of 40 ended runs at once: 0.25 s."""
    lane, count, keys = SimLane(budget=1 << 40, records=1 << 24), 3, 10_000
    for worker in runs_of_one(lane, count):
        fill(worker, keys)
        worker.bye()  # without closing the connection
    jobs = [ended.members.run for ended in lane.core._roster.ended.of("job")]
    budget = lane.core._roster.budget
    budget.total = budget.reserved
    world = budget.total // share_of(2 * MAX_CHUNK_BYTES) - SHARES_BESIDE_RANKS
    large = {"run_id": "large", "table": ((0, MAX_CHUNK_BYTES),)}
    error = join_all(lane, world, **large)[0].error()
    kept = sum(job.records.used for job in jobs)
    assert error.code == ErrorCode.QUOTA and f"still take {kept:,}" in error.message
    assert budget.reserved == kept
    size = KEY + KEY_RANK
    forgotten = count * keys - sum(job.records.keys for job in jobs)
    assert forgotten <= 2 * count + (CUT_OFF_AT_ONCE + count * FORGOTTEN_AT_ONCE) // size
    small = join_all(lane, 1, run_id="small")[0]
    assert small.read(MessageKind.WELCOME)
    small.bye()
    small.session.disconnect()
    for _ in range(1 + kept // MOST_IDLE):
        lane.tick(0.05)
    assert not lane.core._roster.ended.of("job") and not budget.reserved
    assert all(worker.read(MessageKind.WELCOME) for worker in join_all(lane, world, **large))


class NoWalk(dict[int, Session]):
    """A dict of sessions that allows lookups but no iteration."""

    def __iter__(self) -> NoReturn:
        raise AssertionError("iterated over all sessions of the lane")

    items = keys = values = __iter__  # type: ignore[assignment]


def test_the_end_of_a_run_looks_at_its_own_sessions_alone() -> None:
    """Regression: 64 runs that ended beside 8,000 other connections took 20 ms."""
    lane = SimLane()
    workers = join_all(lane, 2)
    old = workers[1].session
    workers[1] = Scripted(lane, 1, 2, rejoin=True)
    roster = lane.core._roster
    (run,) = roster.runs.values()
    assert run.sessions == {worker.session.number for worker in workers} | {old.number}
    old.disconnect()
    assert run.sessions == {worker.session.number for worker in workers}
    roster.sessions = NoWalk(roster.sessions)
    workers[0].session.send(control(messages.Error(int(ErrorCode.INTERNAL), "no more")))
    assert workers[1].session.closed is not None
