"""The work that a frame of a job causes grows no faster than the frame (SECURITY.md)."""

from __future__ import annotations

import gc
import random
import struct
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import msgpack  # type: ignore[import-untyped]
import pytest

from reducer.core.limits.charges import KEY, KEY_RANK, MIN_COST, STREAM
from reducer.core.measures.ranking import MAX_RANKS, MAX_RANKS_OF_JOB
from reducer.core.members.run_endings import FORGOTTEN_AT_ONCE
from reducer.core.report import KEY_SHOWN, MAX_ROUNDS, MAX_ROUNDS_IN_ALL, WAITING_SECONDS
from reducer.core.rounds.chunk_owners import Owners, Route
from reducer.core.rounds.key_table import KeyRounds
from reducer.core.rounds.open_rounds import LOOKED_AT, OpenRounds
from reducer.core.rounds.round import Round
from reducer.core.rounds.view import View
from reducer.core.runs.moves import STREAMS_AT_ONCE
from reducer.core.runs.stalls import MAX_STALLS
from reducer.core.surface import events
from reducer.core.surface.numbers import RunPart
from reducer.core.ticks import (
    KEY_IDLE_SECONDS,
    MOST_IDLE,
    MOST_STALLED,
    MOST_TOLD,
    MOST_TOLD_ABSENCE,
    RANKS_OF_PREPARING,
)
from reducer.wire import messages
from reducer.wire.codes import (
    MAX_HEARTBEAT_ENTRIES,
    MAX_REDUCERS,
    MAX_WORLD_SIZE,
    ErrorCode,
    MessageKind,
)
from reducer.wire.errors import BadFrameError
from reducer.wire.header import Header
from reducer.wire.keys import key_id, position
from tests.support.frames import control, frame, heartbeat
from tests.support.scripted import Scripted, Spec, fill, join_all, runs_of_one
from tests.support.simlane import SimLane


def cpu(act: Callable[[], object]) -> float:
    """CPU seconds of this thread, the minimum of five runs."""
    times = []
    for _ in range(5):
        start = time.thread_time()
        act()
        times.append(time.thread_time() - start)
    return max(min(times), 1e-5)


def ask(worker: Scripted) -> None:
    worker.session.send(frame(Header(kind=MessageKind.STATS)))


def answers(worker: Scripted) -> list[messages.Stats]:
    frames = worker.read(MessageKind.STATS)
    return [messages.decode(messages.Stats, found.payload or b"") for found in frames]


def test_questions_share_one_walk_over_waiting_rounds_a_heartbeat() -> None:
    """Regression: a flood of STATS blocked a lane for 27 s."""
    lane = SimLane()
    workers = join_all(lane, 3)
    for _ in range(1_000):
        for worker in workers:
            ask(worker)
    numbers = lane.snapshot()["jobs"]["job"]
    assert (numbers["stats_walks"], numbers["stats_shared"]) == (1, 2_999)
    assert [len(answers(worker)) for worker in workers] == [1_000] * 3
    workers[0].contribute(Spec(), data=bytes(32))
    ask(workers[1])
    (early,) = answers(workers[1])
    assert early.contributions == 1 and early.held_bytes and early.waiting == ()
    lane.tick(lane.settings.heartbeat)
    ask(workers[1])
    (later,) = answers(workers[1])
    assert later.held_bytes == early.held_bytes and later.waiting
    assert lane.snapshot()["jobs"]["job"]["stats_walks"] == 2


def test_the_numbers_for_metrics_cost_no_more_for_rounds_that_are_open() -> None:
    """Regression: a scrape walked all open rounds: 1 s for 250 runs of 1,000 rounds."""

    def scrape(rounds: int) -> float:
        lane = SimLane(records=64 << 20, budget=1 << 40, credit=256 << 20)
        worker, _ = join_all(lane, 2)
        for number in range(rounds):
            worker.contribute(Spec(number=number), data=bytes(32))
        assert lane.snapshot()["jobs"]["job"]["open_rounds"] == rounds
        return cpu(lambda: [lane.snapshot() for _ in range(20)])

    assert scrape(4_000) < 4 * scrape(100)


def test_a_report_looks_at_the_oldest_rounds_and_names_some() -> None:
    lane = SimLane(budget=1 << 40, credit=1 << 30, records=1 << 24)
    worker = join_all(lane, 2)[0]
    (members,) = lane.core._roster.runs.values()
    for number in range(LOOKED_AT + MAX_STALLS):
        worker.contribute(Spec(number=number), data=bytes(32))
    stalled = members.run.open.stalled
    assert [r.number for r in stalled(lane.now, 0.0, MAX_STALLS)] == list(range(MAX_STALLS))
    assert len(stalled(lane.now, 0.0, 2 * LOOKED_AT)) == LOOKED_AT


def test_rounds_that_end_in_their_order_take_time_linear_in_their_number() -> None:
    """Regression: the search for the oldest of 96,000 rounds walked all ended ones: 3.5 s."""

    def ended(count: int) -> float:
        lane = SimLane(budget=1 << 40, credit=1 << 30, records=1 << 24)
        worker = join_all(lane, 2)[0]
        for number in range(count):
            worker.contribute(Spec(number=number), data=bytes(32))
        (members,) = lane.core._roster.runs.values()
        rounds = list(members.run.open)

        def all_of_them() -> None:
            open_ = OpenRounds()
            for round_ in rounds:
                open_.begin(round_, 0.0)
            for round_ in rounds:
                assert open_.end(round_)

        return cpu(all_of_them)

    assert ended(16_000) < 50 * ended(1_000)


def test_the_places_of_a_route_take_time_linear_in_its_slots() -> None:
    def places(slots: int) -> float:
        live = tuple(slot % 2 for slot in range(slots))
        route = Route(1, (1,) * slots, live, (1,) * slots)

        def found() -> int:
            owners = Owners(route)
            return sum(owners.place(1, 0, home) is not None for home in range(slots))

        assert found() == slots // 2 + 1
        return cpu(found)

    assert places(MAX_REDUCERS) < 40 * places(MAX_REDUCERS // 16)


def moved(slots: int) -> list[Scripted]:
    """Two ranks at the last slot of a job whose other slots are dead since route 1."""
    lane = SimLane(records=64 << 20, budget=1 << 40, credit=256 << 20)
    workers = join_all(lane, 2, slot=slots - 1, reducers=slots, worker_silence_ms=3_600_000)
    live = (0,) * (slots - 1) + (1,)
    workers[0].session.send(control(messages.Route(1, (1,) * slots, live, (1,) * slots)))
    return workers


def test_a_slot_that_nobody_uses_costs_no_beat_anything() -> None:
    """Regression: heartbeats of 125 runs with 2,600 dead slots each took 20 ms."""

    def beat(slots: int) -> float:
        lane = moved(slots)[0].lane
        return cpu(lambda: [lane.tick(lane.settings.heartbeat) for _ in range(20)])

    assert beat(MAX_REDUCERS) < 4 * beat(4)


def test_a_route_costs_less_than_the_frames_that_made_what_it_drops() -> None:
    """Regression: each rank's bytes were sought in all chunks: 1.1 s for 100,000 chunks of 200."""
    lane, world, chunks = SimLane(records=1 << 20, budget=1 << 40), 2_000, 500
    worker = join_all(lane, world, table=((0, 64),))[0]
    frames = [frame(worker.header(Spec(count=16 * chunks), n), bytes(64)) for n in range(chunks)]
    start = time.thread_time()
    for one in frames:
        worker.session.send(one)
    made = time.thread_time() - start
    (members,) = lane.core._roster.runs.values()
    assert (
        members.run.accounts.unread_room(0)
        == members.run.accounts.unread_room(1) - chunks * MIN_COST
    )
    start = time.thread_time()
    worker.session.send(control(messages.Route(1, (1,), (1,), (1,))))
    assert time.thread_time() - start < 4 * made  # the regression took 100 times as long
    assert members.run.accounts.unread_room(0) == members.run.accounts.unread_room(1)


def rounds_in_memory() -> int:
    gc.collect()
    return sum(isinstance(found, Round) for found in gc.get_objects())


def test_a_grant_keeps_no_round_that_is_forgotten() -> None:
    """Regression: each rank could keep a round with its sets: 232 bytes a pair of ranks."""
    lane = SimLane(credit=8_192)
    workers = join_all(lane, 2)
    for chunk in range(2):
        workers[0].contribute(Spec(count=8 * 1_024), chunk, data=bytes(4_096))
    assert workers[0].read(MessageKind.GRANT)
    before = rounds_in_memory()
    workers[0].session.send(control(messages.Route(1, (1,), (1,), (1,))))
    assert rounds_in_memory() == before - 1


def test_ranks_hear_of_their_credit_first_and_by_one_frame() -> None:
    """Regression: one entry was answered by 23 frames with all changed positions: 47 ms."""
    lane = SimLane(credit=8_192, budget=1 << 40, records=1 << 24)
    workers = join_all(lane, 2)
    (members,) = lane.core._roster.runs.values()
    stream = members.run.streams.find(0, 0, Header(kind=MessageKind.CONTRIBUTION))
    assert stream is not None
    others = [key_id(f"other-{number}") for number in range(2 * MAX_HEARTBEAT_ENTRIES)]
    for other in others:
        stream.keys.open(other, lane.now)
    for worker in workers:
        worker.contribute(Spec(), data=bytes(32))
    for worker in workers:
        for first in range(0, len(others), 256):
            entries = [(other, position(1, 0)) for other in others[first : first + 256]]
            worker.session.send(heartbeat(*entries))
    workers[0].session.send(heartbeat((key_id(Spec().key), position(1, 0))))
    workers[0].read(MessageKind.HEARTBEAT)
    workers[1].session.send(heartbeat((key_id(Spec().key), position(1, 0))))
    (told,) = workers[0].read(MessageKind.HEARTBEAT)
    assert told.payload is not None
    entries = list(struct.iter_unpack("<QQ", told.payload))
    assert len(entries) == MAX_HEARTBEAT_ENTRIES
    assert entries[0] == (key_id(Spec().key), position(1, 0))


def route_of(number: int, live: tuple[int, ...]) -> Route:
    """A route that moves all slots but the last."""
    slots = len(live)
    return Route(number, (number,) * (slots - 1) + (1,), live, (1,) * slots)


def hear_of(worker: Scripted, home: int) -> None:
    """Make the stream of a dead slot, by a heartbeat for it."""
    worker.session.send(heartbeat((1, 1), route=1, chunk=home))


def test_a_stream_without_news_costs_no_tick_anything() -> None:
    """Regression: 20 runs with 4,096 dead slots each raised another job's p99 from 1 to 47 ms."""

    def beat(slots: int) -> float:
        workers = moved(slots)
        lane = workers[0].lane
        for home in range(slots):
            hear_of(workers[0], home)
        (members,) = lane.core._roster.runs.values()
        assert len(list(members.run.streams)) == slots
        return cpu(lambda: [lane.tick(lane.settings.heartbeat) for _ in range(20)])

    assert beat(MAX_REDUCERS) < 4 * beat(4)


def test_the_beats_of_many_runs_are_spread_over_a_heartbeat() -> None:
    """Regression: 100 runs with 4,096 new positions each took 60 ms at once."""
    lane, count = SimLane(budget=1 << 40), 20
    workers = [join_all(lane, 1, run_id=f"run-{n}")[0] for n in range(count)]
    lane.tick(lane.settings.heartbeat)
    for worker in workers:
        assert worker.read(MessageKind.HEARTBEAT)
    beats = []
    for _ in range(5):
        lane.stand_still(1.001 * lane.settings.heartbeat / 5)
        beats.append(sum(len(worker.read(MessageKind.HEARTBEAT)) for worker in workers))
    assert beats == [count // 5] * 5


def test_what_many_runs_have_to_tell_is_told_a_part_at_each_tick() -> None:
    """Regression: 150 runs with 4,096 new positions each took 12 ms of each tick."""
    lane, count = SimLane(budget=1 << 40, records=1 << 24), 20
    workers = runs_of_one(lane, count)
    small = join_all(lane, 1, run_id="small")[0]
    small.session.send(control(messages.Route(1, (1,), (1,), (1,))))
    lane.stand_still(lane.settings.heartbeat)
    lane.stand_still(lane.settings.heartbeat)
    for worker in (*workers, small):
        worker.read(MessageKind.HEARTBEAT)
        keys = 1 if worker is small else MAX_HEARTBEAT_ENTRIES + 1
        worker.session.send(heartbeat(*((key, 1) for key in range(1, keys)), route=1))
    told = dict.fromkeys((*workers, small), 0)
    tick = lane.settings.heartbeat / 20
    for number in range(1, 2 * count + 2):
        lane.stand_still(lane.settings.heartbeat if number == 1 else tick)
        frames = {worker: worker.read(MessageKind.HEARTBEAT) for worker in told}
        sizes = {w: sum(len(f.payload or b"") for f in found) for w, found in frames.items()}
        assert (RANKS_OF_PREPARING + 1) * sum(sizes.values()) // 16 <= 2 * MOST_TOLD
        for worker, size in sizes.items():
            told[worker] += size
        assert frames[small] or number > 1
    assert [told[worker] for worker in workers] == [16 * MAX_HEARTBEAT_ENTRIES] * count


def test_what_a_job_is_to_be_told_waits_for_no_second_run_of_another_one() -> None:
    """Regression: beside 255 runs of one job, another job waited 4 s for its positions."""
    lane, count = SimLane(budget=1 << 40, records=1 << 24), 20
    workers = runs_of_one(lane, count)
    workers += join_all(lane, 1, job="another")
    workers[-1].session.send(control(messages.Route(1, (1,), (1,), (1,))))
    lane.stand_still(lane.settings.heartbeat)
    lane.stand_still(lane.settings.heartbeat)
    for worker in workers:
        worker.read(MessageKind.HEARTBEAT)
        news = ((key, 1) for key in range(1, MAX_HEARTBEAT_ENTRIES + 1))
        worker.session.send(heartbeat(*news, route=1))
    lane.stand_still(lane.settings.heartbeat)
    told, ticks = sum(beats_of(workers[-1])), 0
    while told < MAX_HEARTBEAT_ENTRIES:
        lane.stand_still(lane.settings.heartbeat / 20)
        told += sum(beats_of(workers[-1]))
        ticks += 1
    assert ticks <= 2


def beats_of(worker: Scripted) -> list[int]:
    """The number of stable positions in each received heartbeat."""
    return [len(frame.payload or b"") // 16 for frame in worker.read(MessageKind.HEARTBEAT)]


@pytest.mark.parametrize("positions", [1, MAX_HEARTBEAT_ENTRIES])
def test_no_run_is_without_a_heartbeat_where_many_have_news(positions: int) -> None:
    """Regression: with 64 runs of one new position each, a worker got nothing for 1.8 s."""
    lane = SimLane(budget=1 << 40, records=1 << 24)
    busy = runs_of_one(lane, 64 if positions == 1 else 16)
    calm = join_all(lane, 1, run_id="calm")[0]
    calm.session.send(control(messages.Route(1, (1,), (1,), (1,))))
    ticks = 5  # per heartbeat interval
    silent = dict.fromkeys((*busy, calm), 0)
    untold = 0
    for tick in range(6 * ticks):
        if tick % ticks == 0:
            news = [(key, 1 + tick) for key in range(1, 1 + positions)]
            for worker in busy:
                worker.session.send(heartbeat(*news, route=1))
            calm.session.send(heartbeat((1, 1 + tick), route=1))
            untold += 1
        lane.stand_still(lane.settings.heartbeat / ticks)
        for worker in silent:
            beats = beats_of(worker)
            silent[worker] = 0 if beats else silent[worker] + 1
            if worker is calm and any(beats):
                untold = 0
        assert max(silent.values()) <= ticks + 1
        assert untold <= 2


def make_idle(lane: SimLane, workers: list[Scripted]) -> None:
    """Make 3,000 keys for each worker, and wait until they may be forgotten."""
    for worker in workers:
        worker.session.send(heartbeat(*((key, 1) for key in range(3_000)), route=1))
    while lane.now < KEY_IDLE_SECONDS + lane.settings.silence:
        lane.tick(0.5)
        for worker in workers:
            worker.session.send(heartbeat())


def test_idle_keys_of_all_runs_are_forgotten_a_part_at_each_tick() -> None:
    """Regression: one tick forgot 2.4 million keys: 0.4 s."""
    lane, count = SimLane(budget=1 << 40, records=1 << 24), 8
    workers = runs_of_one(lane, count)
    make_idle(lane, workers)
    runs = list(lane.core._roster.runs.values())
    steps = [[members.run.records.keys for members in runs]]
    while any(steps[-1]):
        lane.tick(0.05)
        steps.append([members.run.records.keys for members in runs])
    gone = [[before - after for before, after in zip(*two, strict=True)] for two in pairwise(steps)]
    size = KEY + KEY_RANK
    assert size * max(map(sum, gone)) < 2 * MOST_IDLE
    assert all(map(any, zip(*gone[: count + 1], strict=True)))  # nobody starves
    assert len(gone) <= 2 + count * (1 + 3_000 * size // MOST_IDLE)
    assert not any(members.run.idle for members in runs)


def test_idle_keys_of_a_job_wait_for_no_run_of_another_one() -> None:
    """Regression: beside 255 runs of one job, another job's idle keys were forgotten more slowly
    than it made new ones, until it was ended."""
    lane = SimLane(budget=1 << 40, records=1 << 24)
    workers = runs_of_one(lane, 20)
    workers += join_all(lane, 1, job="another")
    workers[-1].session.send(control(messages.Route(1, (1,), (1,), (1,))))
    make_idle(lane, workers)
    (records,) = [
        members.run.records
        for members in lane.core._roster.runs.values()
        if members.run.name == "another"
    ]
    ticks = 0
    while records.keys:
        lane.tick(0.05)
        ticks += 1
    assert ticks <= 2 * (2 + 3_000 * (KEY + KEY_RANK) // MOST_IDLE)


def test_runs_with_waiting_rounds_are_told_a_few_at_each_tick() -> None:
    """Regression: after a pause of the lane one tick told 250 runs, again and again: 27 ms."""
    lane, count = SimLane(budget=1 << 40), MOST_STALLED + 1
    silence = {"worker_silence_ms": 3_600_000}
    runs = [join_all(lane, 2, run_id=f"run-{n}", **silence) for n in range(count)]
    for first, _ in runs:
        first.contribute(Spec(), data=bytes(32))
    told = []
    while sum(told) < count:
        lane.stand_still(0.05)
        told.append(sum(len(first.read(MessageKind.STALL)) for first, _ in runs))
    assert [number for number in told if number] == [MOST_STALLED // 2, MOST_STALLED // 2, 1]


def test_ranks_that_are_gone_for_long_cost_no_tick_anything() -> None:
    """Regression: 48,000 such ranks in 6 groups took 3.4 ms of each tick."""

    def look(gone: int, left: int) -> float:
        lane = SimLane(budget=1 << 40)
        workers = join_all(lane, gone + left + 1, worker_silence_ms=3_600_000)
        for worker in workers[:left]:
            worker.bye()
        for worker in workers[left:-1]:
            worker.session.disconnect("connection reset")
        lane.tick(1.0)
        (members,) = lane.core._roster.runs.values()
        assert members.absence(lane.now) is None, "the absence is already told"
        return cpu(
            lambda: [(members.absence(lane.now), members.deserted(lane.now)) for _ in range(200)]
        )

    assert look(2_000, 2_000) < 4 * look(100, 100)


def test_some_runs_at_each_tick_are_told_who_is_absent() -> None:
    """Regression: one more lost rank in each of 16 groups of 500 made 8,000 frames a tick."""
    lane, world = SimLane(budget=1 << 40), MOST_TOLD_ABSENCE // 2 + 2
    silence = {"worker_silence_ms": 3_600_000}
    runs = [join_all(lane, world, run_id=f"run-{n}", **silence) for n in range(4)]

    def told() -> list[int]:
        lane.tick(0.05)
        return [len(run[0].read(MessageKind.ABSENT)) for run in runs]

    for run in runs:
        run[-1].session.disconnect("connection reset")
    lane.tick(lane.settings.absent_after - 0.05)
    assert told() == [1, 1, 0, 0]
    for run in runs:
        run[-2].session.disconnect("connection reset")
    assert told() == [0, 0, 1, 1]
    lane.tick(lane.settings.absent_after - 0.1)
    assert told() == [1, 1, 0, 0]
    assert told() == [0, 0, 1, 1]


def test_a_run_is_told_who_is_absent_though_others_have_news_at_each_tick() -> None:
    """Regression: five groups of 1,025 ranks used up each tick; others waited over 25 s."""
    lane, world = SimLane(budget=1 << 40), MOST_TOLD_ABSENCE + 20
    ticks = round(lane.settings.heartbeat / 0.05)
    silence = {"worker_silence_ms": 3_600_000}
    runs = [join_all(lane, world, run_id=f"run-{n}", **silence) for n in range(ticks)]
    last = join_all(lane, 2, run_id="last", **silence)
    last[1].session.disconnect()
    for tick in range(20):
        for run in runs:
            run[world - 1 - tick].bye()
        lane.tick(0.05)
    assert last[0].read(MessageKind.ABSENT)


def test_a_run_is_told_who_is_absent_once_in_an_interval() -> None:
    lane = SimLane()
    workers = join_all(lane, 4, worker_silence_ms=3_600_000)
    told = []
    for tick in range(20):
        if tick < 3:
            workers[tick + 1].session.disconnect("connection reset")
        lane.tick(0.05)
        if workers[0].read(MessageKind.ABSENT):
            told.append(lane.now)
    assert len(told) == 2 and told[1] - told[0] >= lane.settings.heartbeat


def test_the_keys_of_a_stream_that_has_moved_are_forgotten_a_part_at_each_tick() -> None:
    """Regression: 80,000 keys took 30 ms for each ROUTE that a worker cared to send."""
    lane, keys = SimLane(budget=1 << 40, records=1 << 24), 6_000
    worker = runs_of_one(lane, 1)[0]
    (members,) = lane.core._roster.runs.values()
    fill(worker, keys)
    worker.session.send(control(messages.Route(2, (2,), (1,), (1,))))
    assert members.run.records.keys == keys
    lane.tick(0.05)
    size = KEY + KEY_RANK
    assert 0 < keys - members.run.records.keys <= 1 + MOST_IDLE // size
    while members.run.records.keys:
        lane.tick(0.05)


@pytest.mark.parametrize("ends", [False, True])
def test_rounds_that_nobody_has_sent_of_are_forgotten_a_part_at_each_tick(ends: bool) -> None:
    """Regression: 96,000 abandoned rounds took 80 ms when their stream moved or run ended."""
    lane, rounds = SimLane(budget=1 << 40, records=1 << 24), 10_000
    workers = join_all(lane, 2)
    (members,) = lane.core._roster.runs.values()
    records = members.run.records
    workers[1].contribute(Spec(number=rounds), data=bytes(32))
    for number in range(rounds):
        workers[0].abandon(Spec(number=number))
    assert records.rounds == rounds + 1
    each = records.used // rounds
    if ends:
        workers[0].session.send(control(messages.Error(int(ErrorCode.PEER_LOST), "x")))
    else:
        workers[0].session.send(control(messages.Route(1, (1,), (1,), (1,))))
    assert rounds - records.rounds <= 1 + FORGOTTEN_AT_ONCE // each and not lane.held
    for worker in workers:
        worker.read(MessageKind.REFUSED)
    if not ends:
        back_again(lane)
    left = [records.rounds]
    while left[-1]:
        lane.tick(0.05)
        left.append(records.rounds)
    assert max(before - after for before, after in pairwise(left)) <= 2 + MOST_IDLE // each
    if not ends:
        assert not any(worker.read(MessageKind.REFUSED) for worker in workers)
        assert records.used < each + 8_192


def test_what_has_moved_leaves_no_key_without_room() -> None:
    """Otherwise a job whose records are half full could not continue after a failover."""
    lane = SimLane()
    worker = runs_of_one(lane, 1)[0]
    (members,) = lane.core._roster.runs.values()
    records = members.run.records
    keys = (records.room - records.used - STREAM) // (KEY + KEY_RANK)
    for route in range(1, 4):
        fill(worker, keys, route)
        assert worker.session.closed is None and records.used <= records.room
        more = route + 1
        worker.session.send(control(messages.Route(more, (more,), (1,), (1,))))
    fill(worker, keys + 1, 4)
    assert worker.error().code == ErrorCode.QUOTA


def test_a_route_walks_the_open_rounds_once_for_all_streams_that_it_moves() -> None:
    """Regression: the open rounds were walked once for each stream."""
    slots = 256

    def move(rounds: int) -> float:
        workers = moved(slots)
        for home in range(slots):
            hear_of(workers[0], home)
        spec = Spec(key=key_of_slot(slots - 1, slots), count=1)
        for number in range(rounds):
            workers[0].contribute(replace(spec, number=number), data=bytes(4), route=1)
        (members,) = workers[0].lane.core._roster.runs.values()
        assert (len(list(members.run.streams)), len(members.run.open)) == (slots, rounds)
        route = messages.Route(2, (2,) * (slots - 1) + (1,), members.run.route.live, (1,) * slots)
        start = time.thread_time()
        workers[0].session.send(control(route))
        spent = time.thread_time() - start
        assert (len(list(members.run.streams)), len(members.run.open)) == (1, rounds)
        return spent

    assert move(2_000) < 5 * move(10)


def test_the_streams_that_a_route_moves_are_dropped_some_at_a_time() -> None:
    """Regression: 4,095 streams without rounds took 5.5 ms for each ROUTE."""
    slots = 3 * STREAMS_AT_ONCE + 2
    worker = moved(slots)[0]
    (members,) = worker.lane.core._roster.runs.values()
    for home in range(slots):
        hear_of(worker, home)
    live = members.run.route.live
    out = members.run.move(route_of(2, live), members.run.view)
    assert len(list(members.run.streams)) == 1, "moved streams are gone at once"
    assert any(isinstance(output, events.Behind) for output in out)
    counts = [members.run.stream_count]
    while members.run.is_behind:
        members.run.catch_up(0.0)
        counts.append(members.run.stream_count)
    assert counts == [slots - STREAMS_AT_ONCE, slots - 2 * STREAMS_AT_ONCE, 2, 1]


def test_a_stream_with_rounds_does_not_wait_for_those_without() -> None:
    """The buffers of such a stream must be freed before the next outputs."""
    slots = 2 * STREAMS_AT_ONCE
    worker = moved(slots)[0]
    (members,) = worker.lane.core._roster.runs.values()
    for home in range(1, slots):
        hear_of(worker, home)
    worker.contribute(Spec(key=key_of_slot(0, slots), count=1), data=bytes(4), route=1)
    assert len(members.run.open) == 1
    live = members.run.route.live
    out = members.run.move(route_of(2, live), members.run.view)
    (freed,) = (output.buffers for output in out if isinstance(output, events.Free))
    assert len(freed) == 1 and not len(members.run.open) and members.run.is_behind


def test_a_run_that_ends_takes_streams_apart_that_have_moved() -> None:
    slots = 3 * STREAMS_AT_ONCE
    worker = moved(slots)[0]
    (members,) = worker.lane.core._roster.runs.values()
    for home in range(slots):
        hear_of(worker, home)
    live = members.run.route.live
    members.run.move(route_of(2, live), members.run.view)
    assert members.run.is_behind
    members.run.drop_all()
    assert len(members.run.idle._ended) == slots and not members.run.is_behind


def test_the_tables_of_streams_that_have_moved_are_forgotten_some_at_each_tick() -> None:
    """Regression: 4,095 tables of one key each took a megabyte of records and 4 ms of a tick."""
    slots = MAX_REDUCERS // 4
    worker = moved(slots)[0]
    (members,) = worker.lane.core._roster.runs.values()
    hear_of(worker, slots - 1)
    used = members.run.records.used
    for home in range(slots - 1):
        hear_of(worker, home)
    live = members.run.route.live
    worker.session.send(control(messages.Route(2, (2,) * (slots - 1) + (1,), live, (1,) * slots)))
    while members.run.is_behind:
        members.run.catch_up(0.0)
    keys = [members.run.records.keys]
    while keys[-1] > 1:
        worker.lane.tick(0.05)
        keys.append(members.run.records.keys)
    assert all(0 < a - b <= MOST_IDLE // STREAM for a, b in pairwise(keys))
    assert members.run.records.used == used


def key_of_slot(home: int, slots: int) -> str:
    return next(name for name in map(str, range(10_000)) if key_id(name) % slots == home)


def back_again(lane: SimLane) -> Scripted:
    return Scripted(lane, 1, 2, run_id="run", rejoin=True)


@pytest.mark.parametrize("owed", [False, True])
def test_who_is_back_costs_no_walk_over_the_rounds_of_its_run(owed: bool) -> None:
    """Regression: a HELLO took 10 ms with 96,000 rounds, as often as a rank sent one."""

    def come_back(rounds: int) -> float:
        """The longest of the first steps, which find what the rank must be told."""
        lane = SimLane(budget=1 << 40, records=64 << 20, credit=1 << 30)
        workers = join_all(lane, 2)
        for number in range(rounds):
            if owed:
                workers[1].contribute(Spec(number=number, count=1), data=bytes(4))
            workers[0].abandon(Spec(number=number))
        steps: list[float] = []
        feed = lane.feed

        def measure(event: events.Event) -> None:
            start = time.thread_time()
            feed(event)
            steps.append(time.thread_time() - start)

        def hello() -> float:
            steps.clear()
            back_again(lane)
            return max(steps[:4])

        lane.feed = measure  # type: ignore[method-assign]
        return min(hello() for _ in range(5))

    assert come_back(8_000) < 8 * come_back(500)


def test_who_is_back_makes_no_list_of_all_keys() -> None:
    """Regression: each HELLO took 8 bytes and 10 ns for each key."""
    lane, keys = SimLane(budget=1 << 40, records=64 << 20), 100_000
    workers = join_all(lane, 2)
    workers[0].session.send(control(messages.Route(1, (1,), (1,), (1,))))
    fill(workers[0], keys)
    tracemalloc.start()
    try:
        back_again(lane)
        assert tracemalloc.get_traced_memory()[1] < 4 * keys
    finally:
        tracemalloc.stop()


def test_a_route_looks_at_no_round_that_it_does_not_move() -> None:
    """Regression: each ROUTE of a flood walked the 100,000 open rounds of its run."""

    def route(rounds: int) -> float:
        worker, _ = moved(2)
        spec = Spec(key=key_of_slot(1, 2), count=1)
        for number in range(rounds):
            worker.contribute(replace(spec, number=number), data=bytes(4), route=1)
        (members,) = worker.lane.core._roster.runs.values()
        live, numbers = members.run.route.live, iter(range(2, 1_000))

        def send() -> None:
            number = next(numbers)
            worker.session.send(control(messages.Route(number, (number, 1), live, (1, 1))))

        spent = cpu(lambda: [send() for _ in range(20)])
        assert len(members.run.open) == rounds and members.run.route.number == 101
        return spent

    assert route(5_000) < 4 * route(50)


@pytest.mark.parametrize("chunks", [False, True])
def test_a_rising_position_costs_no_more_for_all_that_waits_behind_it(chunks: bool) -> None:
    """Regression: each position walked all rounds of the key, or all chunks of its round."""
    key, size = key_of_slot(0, 2), 4_096

    def rise(count: int) -> float:
        workers = moved(2)
        spec = Spec(key=key, count=count * 2 * (size // 4))
        for n in range(200, count):
            if chunks:
                workers[0].contribute(spec, 2 * n, data=bytes(size), route=1)
            else:
                cause = control(messages.Abandon(5, "x"), key=key_id(key), round=n, route=1)
                workers[0].session.send(cause)
        (members,) = workers[0].lane.core._roster.runs.values()
        (stream,) = members.run.streams
        assert len(stream.keys[key_id(key)].rounds) == (1 if chunks else count - 200)
        workers[0].session.send(heartbeat((key_id(key), 1 << 60), route=1))
        places = iter(range(1, 200))

        def next_one() -> None:
            place = next(places)
            at = place if chunks else position(place, 0)
            workers[1].session.send(heartbeat((key_id(key), at), route=1))

        return cpu(lambda: [next_one() for _ in range(30)])

    assert rise(2_200) < 4 * rise(210)


def test_a_route_of_all_slots_is_parsed_in_a_part_of_a_heartbeat() -> None:
    slots = MAX_REDUCERS
    route = messages.Route(7, (7,) * slots, (0,) * (slots - 1) + (1,), (1_024,) * slots)
    payload = messages.encode(route)
    assert messages.decode(messages.Route, payload) == route
    assert cpu(lambda: messages.decode(messages.Route, payload)) < 0.2


def test_a_map_with_more_values_than_any_message_has_is_refused() -> None:
    """64 KiB of one-byte values in lists would take much more memory than their bytes."""
    lists = {f"unknown-{n}": [0] * 250 for n in range(4)}
    assert messages.decode(messages.Key, msgpack.packb({"name": "k", **lists})).name == "k"
    lists["more"] = [0] * 100
    with pytest.raises(BadFrameError, match="over 1024 values"):
        messages.decode(messages.Key, msgpack.packb({"name": "k", **lists}))
    lists = {f"unknown-{n}": [0] * 4_000 for n in range(5)}
    with pytest.raises(BadFrameError, match="over 16384 values"):
        messages.decode(messages.Absent, msgpack.packb(lists))


@pytest.mark.parametrize("world", [1, 2, 3, 7, 64, 100])
def test_stable_is_the_least_done_of_all_ranks(world: int) -> None:
    key, done, rng = KeyRounds(1, View(world)), [0] * world, random.Random(world)
    for _ in range(2_000):
        rank, position = rng.randrange(world), rng.randrange(1, 60)
        before = min(done)
        assert key.is_news(rank, position) == (position > done[rank])
        done[rank] = max(done[rank], position)
        assert key.take_done(rank, position) == (min(done) > before)
        assert key.stable == min(done)


def test_what_one_rank_reports_costs_no_more_for_all_the_others() -> None:
    """Regression: each entry of the slowest rank searched the minimum of all ranks."""

    def last_of(world: int) -> float:
        key = KeyRounds(1, View(world))
        for rank in range(1, world):
            key.take_done(rank, 1 << 60)
        numbers = iter(range(1, 1 << 30))
        return cpu(lambda: [key.take_done(0, next(numbers)) for _ in range(500)])

    assert last_of(MAX_WORLD_SIZE) < 10 * last_of(8)


def test_heartbeats_that_say_nothing_new_leave_nothing_behind() -> None:
    lane = SimLane()
    workers = join_all(lane, 2)
    entries = []
    for number in range(100):
        workers[0].announce(f"key-{number}")
        entries.append((key_id(f"key-{number}"), 1))
    for _ in range(50):
        workers[0].session.send(heartbeat(*entries))
    (members,) = lane.core._roster.runs.values()
    (stream,) = members.run.streams
    assert len(stream.keys._idle) == 100


def test_the_groups_of_one_job_show_a_number_of_ranks() -> None:
    """Regression: 256 groups of 64 late ranks each took a second per page and lane, so beyond
    ten lanes there were no metrics."""
    lane = SimLane(budget=1 << 40)
    for group in range(2 * MAX_RANKS_OF_JOB // MAX_RANKS):
        join_all(lane, 2, job="one", run_id=f"run#{group}")
    join_all(lane, 2, job="other")
    for members in lane.core._roster.runs.values():
        members.run.results.nonfinite = [1] * MAX_RANKS
    parts = [part for part in lane.core.parts(lane.now) if isinstance(part, RunPart)]
    shown = {"one": 0, "other": 0}
    for part in parts:
        shown[part.run.job] += len(part.numbers.nonfinite)
    assert shown == {"one": MAX_RANKS_OF_JOB, "other": MAX_RANKS}


def test_a_report_of_many_runs_shows_a_number_of_waiting_rounds() -> None:
    """Regression: 1,000 runs of 16 rounds with long keys made 54 MB; 64 MB would end a lane."""
    lane = SimLane(budget=1 << 40)
    runs = 2 * MAX_ROUNDS_IN_ALL // MAX_ROUNDS
    for run in range(runs):
        worker, _ = join_all(lane, 2, job=f"job-{run}")
        for key in range(MAX_ROUNDS):
            name = f"{key}".ljust(2 * KEY_SHOWN, "x")
            worker.announce(name)
            worker.contribute(Spec(key=name), data=bytes(32))
    lane.now += WAITING_SECONDS
    reports = lane.report()["runs"]
    rows = [row for report in reports for row in report["waiting"]]
    assert len(reports) == runs and len(rows) == MAX_ROUNDS_IN_ALL
    assert {len(row["key"]) for row in rows} == {KEY_SHOWN}
