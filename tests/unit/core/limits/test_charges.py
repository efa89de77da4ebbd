"""Records of a run are charged for their memory and given back; too many end only that run."""

from __future__ import annotations

import gc
import struct
import sys
import tracemalloc
from collections.abc import Callable, Iterator

import msgpack
import pytest

from reducer.core.limits.budget import LEAST_RECORDS, SHARES_BESIDE_RANKS
from reducer.core.limits.charges import PLAN, STREAM, Records, text_bytes
from reducer.core.rounds.key import Untold
from reducer.core.rounds.key_table import IdleKeys, KeyTable
from reducer.core.rounds.view import View
from reducer.wire import messages
from reducer.wire.codes import ErrorCode, MessageKind
from reducer.wire.keys import key_id, position
from tests.support.frames import control, frame, heartbeat
from tests.support.scripted import Scripted, Spec, join_all
from tests.support.simlane import SimLane

# A lane has a table of keys for each dead slot, whose chunks are on the live ones.
SLOTS = 64
MOVED = messages.Route(1, (1,) * SLOTS, (0,) * (SLOTS - 1) + (1,), (1,) * SLOTS)


def keys(worker: Scripted, number: int) -> None:
    worker.announce(f"key-{number}")


def long_names(worker: Scripted, number: int) -> None:
    worker.announce(str(number).zfill(120) + "\N{GRINNING FACE}")


def descriptions(worker: Scripted, number: int) -> None:
    header = worker.header(Spec(number=number), kind=int(MessageKind.DESCRIBE))
    worker.session.send(frame(header))


def disagreements(worker: Scripted, number: int) -> None:
    """Mismatched descriptions, which the lane keeps until the last rank's comes."""
    spec = Spec(number=number // 4, count=8 + number % 500)
    header = worker.header(spec, kind=int(MessageKind.DESCRIBE))
    worker.session.send(frame(header))
    worker.contribute(spec, data=bytes(4 * spec.count))


def causes(worker: Scripted, number: int) -> None:
    """The texts of ABANDON for unknown rounds."""
    cause = messages.Abandon(int(ErrorCode.MISMATCH), "x" * 16_000)
    worker.session.send(control(cause, key=key_id("a"), round=number))


def empty_causes(worker: Scripted, number: int) -> None:
    cause = messages.Abandon(int(ErrorCode.MISMATCH), "")
    worker.session.send(control(cause, key=key_id("a"), round=number))


def tiny_rounds(worker: Scripted, number: int) -> None:
    worker.contribute(Spec(number=number, count=1), data=bytes(4))


def dead_slots(worker: Scripted, number: int) -> None:
    """Keys of every slot that the job declared dead."""
    if number == 0:
        worker.session.send(control(MOVED))
    name = f"key-{number}"
    worker.session.send(control(messages.Key(name), key=key_id(name), chunk=number % SLOTS,
                                route=1))  # fmt: skip


def moved_rounds(worker: Scripted, number: int) -> None:
    """Rounds and chunks of a moved stream, whose order the lane keeps."""
    if number == 0:
        worker.session.send(control(MOVED))
    spec = Spec(number=number // 2, count=200_000)
    chunk = SLOTS * (number % 2) - key_id(spec.key) % SLOTS
    worker.contribute(spec, chunk % (2 * SLOTS), data=bytes(4_096), route=1)


FLOODS = [
    keys, long_names, causes, empty_causes, disagreements, tiny_rounds, dead_slots, moved_rounds,
]  # fmt: skip


def joined(lane: SimLane, world: int, flood: Callable[[Scripted, int], None]) -> list[Scripted]:
    of_dead = flood in (dead_slots, moved_rounds)
    slots = {"slot": SLOTS - 1, "reducers": SLOTS} if of_dead else {}
    return join_all(lane, world, job="greedy", **slots)


@pytest.mark.parametrize("world", [2, 40])
@pytest.mark.parametrize("flood", FLOODS)
def test_a_run_that_fills_its_room_ends_alone(
    flood: Callable[[Scripted, int], None], world: int
) -> None:
    lane = SimLane(records=LEAST_RECORDS, budget=1 << 30, credit=256 << 20)
    calm = join_all(lane, 2, job="calm")
    greedy = joined(lane, world, flood)
    room = (world + SHARES_BESIDE_RANKS) * LEAST_RECORDS
    sent = 0
    while greedy[0].session.closed is None:
        flood(greedy[sent % max(1, world - 1)], sent)
        sent += 1
        assert sent < 20_000
        if sent % 20 == 0 and jobs(lane, "greedy"):
            assert jobs(lane, "greedy")[0]["record_bytes"] <= room
    for worker in greedy:
        error = worker.error()
        assert error.code == ErrorCode.QUOTA
        assert f"job 'greedy' has filled the {room:,} bytes" in error.message
        assert "raise --records" in error.message
    assert not jobs(lane, "greedy")
    assert not lane.held
    for rank, worker in enumerate(calm):
        worker.contribute(Spec(), data=bytes([rank] * 32))
    assert all(worker.results() for worker in calm)
    assert all(worker.read(MessageKind.WELCOME) for worker in join_all(lane, 2, job="greedy"))


def jobs(lane: SimLane, name: str) -> list[dict[str, int]]:
    return [job for title, job in lane.snapshot()["jobs"].items() if title == name]


@pytest.fixture
def traced() -> Iterator[None]:
    gc.collect()
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.parametrize("world", [2, 60])
@pytest.mark.parametrize("flood", [*FLOODS, descriptions])
def test_what_is_charged_is_what_it_takes(
    flood: Callable[[Scripted, int], None], world: int, traced: None
) -> None:
    """Measured by tracemalloc, without frames that the lane sends and without buffers."""
    lane = SimLane(records=16 << 20, budget=1 << 40, credit=256 << 20)
    workers = joined(lane, world, flood)
    flood(workers[0], 0)
    before, charged = memory(lane), jobs(lane, "greedy")[0]["record_bytes"]
    for number in range(1, 200):
        flood(workers[number % max(1, world - 1)], number)
    taken = memory(lane) - before
    charged = jobs(lane, "greedy")[0]["record_bytes"] - charged
    assert 0 < taken <= charged
    assert all(worker.session.closed is None for worker in workers)


def memory(lane: SimLane) -> int:
    for session in lane.sessions.values():
        session.outbox.clear()
    lane.logs.clear()
    lane.about.clear()
    gc.collect()
    buffers = sum(len(b.memory) + 512 for b in lane.held)
    buffers += sum(session.room for session in lane.sessions.values())
    return tracemalloc.get_traced_memory()[0] - buffers


@pytest.mark.parametrize("route", [False, True])
def test_everything_that_is_charged_is_given_back(route: bool) -> None:
    """Rounds with every outcome, keys that are used once, streams that come and go."""
    lane = SimLane(credit=1 << 20)
    workers = join_all(lane, 3, reducers=2)
    start = jobs(lane, "job")[0]["record_bytes"]
    names = [name for name in map(str, range(40)) if key_id(name) % 2 == 0]
    for number, name in enumerate(names):
        for worker in workers:
            worker.announce(name)
            worker.contribute(Spec(key=name), data=bytes(32))
            worker.report(name, position(1, 0))
            count = 8 + worker.rank * (number % 2)
            worker.contribute(Spec(key=name, number=1, count=count), data=bytes(4 * count))
        for worker in workers if number % 2 else ():
            worker.abandon(Spec(key=name, number=1))
        for worker in workers:
            worker.report(name, position(2, 0))
    if route:
        workers[0].session.send(control(messages.Route(1, (0, 1), (1, 0), (1, 1))))
        workers[0].session.send(control(messages.Route(2, (0, 2), (1, 1), (1, 1))))
    assert not lane.held
    for _ in range(14):
        lane.tick(1.0)
        for worker in workers:
            worker.report("none", 0)
    stay = STREAM + 2 * PLAN + 512
    assert jobs(lane, "job")[0]["record_bytes"] <= start + stay
    assert jobs(lane, "job")[0]["keys"] == 0
    assert all(worker.session.closed is None for worker in workers)


def test_a_lane_that_still_forgets_a_run_is_not_idle() -> None:
    """Regression: garbage collection walked the millions of keys of the previous run."""
    lane = SimLane()
    (worker,) = join_all(lane, 1)
    for number in range(200):
        keys(worker, number)
    worker.bye()
    worker.session.disconnect()
    assert len(lane.core._roster.ended) and not lane.core._roster.runs
    assert not lane.core.idle
    lane.tick()
    assert lane.core.idle


def test_rounds_that_end_out_of_order_on_a_moved_stream_are_given_back_once() -> None:
    lane = SimLane()
    workers = join_all(lane, 2, slot=1, reducers=2)
    workers[0].session.send(control(messages.Route(1, (1, 1), (0, 1), (1, 1))))
    key = next(name for name in map(str, range(100)) if key_id(name) % 2 == 0)
    used = []
    for first in (0, 2):
        for number in (first + 1, first):
            for worker in workers:
                spec = Spec(key=key, number=number)
                worker.contribute(spec, data=bytes(32), route=1)
        for over in (first + 1, first + 2):
            for worker in workers:
                done = heartbeat((key_id(key), position(over, 0)), route=1)
                worker.session.send(done)
        used.append(jobs(lane, "job")[0]["record_bytes"])
    assert not lane.held
    assert used[0] == used[1]


def test_a_key_that_a_reconnect_has_touched_is_forgotten_all_the_same() -> None:
    """Regression: 500 of 500 keys that were used once were never forgotten."""
    lane = SimLane()
    workers = join_all(lane, 2)
    for number in range(500):
        for worker in workers:
            worker.announce(f"key-{number}")
            worker.contribute(Spec(key=f"key-{number}"), data=bytes(32))
            worker.report(f"key-{number}", position(1, 0))
    lane.tick(4.0)
    workers[1].session.disconnect()
    workers[1] = Scripted(lane, 1, 2, run_id="run", rejoin=True)
    for _ in range(26):
        lane.tick(1.0)
        for worker in workers:
            worker.report("none", 0)
    assert jobs(lane, "job")[0]["keys"] == 0


@pytest.mark.parametrize("letter", ["a", "é", "字", "🙂"])
def test_a_text_costs_the_same_before_and_after_it_is_sent(letter: str) -> None:
    """Python caches the UTF-8 of a text that was encoded."""
    text = letter * 1_000
    before = text_bytes(text)
    msgpack.packb(text)
    assert text_bytes(text) == before >= sys.getsizeof(text)


def test_a_heartbeat_counts_for_each_key_once() -> None:
    """Each entry that counts may walk all rounds of its key."""
    idle = IdleKeys()
    records, untold = Records("j", 1 << 20, idle.take_apart), Untold()
    table = KeyTable("j", View(2), 10, moved=True, records=records, idle=idle, untold=untold)
    payload = b"".join(struct.pack("<QQ", key, done) for key in (1, 2) for done in (4, 9, 7))
    found = [(key.id, done) for key, done in table.entries(memoryview(payload), 0, 0.0)]
    assert found == [(1, 9), (2, 9)]


def test_a_key_of_which_nobody_was_told_stays_in_the_account() -> None:
    """Regression: such keys were kept uncharged to be told: 7 MB a second."""
    idle = IdleKeys()
    records, untold = Records("j", 1 << 20, idle.take_apart), Untold()
    table = KeyTable("j", View(1), 10, moved=True, records=records, idle=idle, untold=untold)
    for id_ in (1, 2):
        table.report(table.open(id_, 0.0), 0, 1)
    used = records.used
    for now in (10.0, 11.0):
        table.forget_idle(now, 1 << 20)
        assert (len(table), records.used) == (2, used)
    assert len(untold.tell(1)) == 16
    table.forget_idle(12.0, 1 << 20)
    assert len(table) == 1 and untold
    assert len(untold.tell(1)) == 16
    table.forget_idle(13.0, 1 << 20)
    assert len(table) == 0 and not untold
