"""If memory for a record is missing, only its run ends, and is dropped completely.

One call of Python's allocators fails, in a separate process: compiled code aborts if it has no
memory for an integer (SIGABRT), and Python 3.12 and 3.13 may crash, also in interpreted code
(SIGSEGV). A lane that dies is restarted.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from reducer.core.limits.budget import Budget
from reducer.core.limits.charges import STREAM, Records
from reducer.core.rounds.key import Untold
from reducer.core.rounds.key_table import IdleKeys, KeyTable
from reducer.core.rounds.stream import Stream
from reducer.core.rounds.view import View
from reducer.core.surface import events
from reducer.server.data.cells import Store
from reducer.wire import messages
from reducer.wire.codes import ErrorCode, MessageKind
from reducer.wire.header import Header
from tests.support.scripted import Scripted, Spec, join_all
from tests.support.simlane import SimLane

ROOT = Path(__file__).parents[3]
MOST_CALLS = 12
ENDS = (0, 2, -signal.SIGABRT, -signal.SIGSEGV)
GREW_AT = (0, 4, 8)  # lists with this many items must grow for the next one


def fails(use: Callable[[], object], call: int) -> bool:
    """Whether `use` raised MemoryError; its allocation number `call` fails."""
    memory = importlib.import_module("_testcapi")
    lack, last, end = memory.set_nomemory, call + 1, memory.remove_mem_hooks
    try:
        lack(call, last)
        use()
    except MemoryError:
        return True
    finally:
        end()
    return False


def a_key(before: int, call: int) -> bool:
    idle = IdleKeys()
    records = Records("job", 1 << 20, idle.take_apart)
    records.take(STREAM)
    table = KeyTable("job", View(2), 100, False, records, idle, Untold())
    for id_ in range(before):
        table.open(id_, 0.0)
    used = records.used
    failed = fails(lambda: table.open(before, 0.0), call)
    assert len(table) == len(table.listing) == records.keys == before + (not failed)
    assert (records.used == used) == failed
    table.take_apart(1 << 20)
    assert len(table) == len(table.listing) == records.used == 0
    return failed


def a_verdict(before: int, call: int) -> bool:
    lane = SimLane()
    worker, _ = join_all(lane, 2)
    for number in range(before + 1):
        worker.contribute(Spec(number=number), data=bytes(32))
    stream = stream_of(lane)
    verdict = messages.Refused(int(ErrorCode.MISMATCH), "the ranks disagree")
    rounds = list(stream.rounds)
    for round_ in rounds[:-1]:
        round_.refuse(verdict)
    failed = fails(lambda: rounds[-1].refuse(verdict), call)
    for round_ in rounds:
        stream.keys[round_.key.id].forget(round_)
    assert not len(stream.refused)
    return failed


def stream_of(lane: SimLane) -> Stream:
    (members,) = lane.core._roster.runs.values()
    (stream,) = members.run.streams
    return stream


def a_slot(before: int, call: int) -> bool:
    """The last slot of a mapping of four."""
    store = Store(1 << 18)
    taken = [store.take() for _ in range(before + 3)]
    failed = fails(lambda: taken.append(store.take()), call)
    taken += [store.take() for _ in range(5)]
    assert len({ctypes.addressof(slot) for slot in taken}) == len(taken)
    return failed


def room(before: int, call: int) -> bool:
    budget = Budget(1 << 40, 1 << 20)
    for number in range(before):
        budget.give(f"job {number}", -4_096)
    failed = fails(lambda: budget.give("another", -4_096), call)
    assert budget.reserved == sum(budget._reserved_by.values())
    return failed


def an_end(before: int, call: int) -> bool:
    """The ERROR of a rank ends its run. If the frames to the others are lost, a tick sends them."""
    lane = SimLane()
    workers = join_all(lane, 3)
    error = messages.Error(int(ErrorCode.PEER_LOST), "it has failed")
    event = events.ControlReceived(
        workers[1].session.number, Header(MessageKind.ERROR), memoryview(messages.encode(error))
    )
    call += MOST_CALLS * GREW_AT.index(before)
    failed = fails(lambda: lane.feed(event), 2 + 6 * call)
    if failed:
        lane.feed(events.Broken(event.session, MemoryError()))
    lane.tick()
    assert all(worker.session.closed for worker in workers)
    return failed


MAKERS = {"end": an_end, "key": a_key, "verdict": a_verdict, "slot": a_slot, "room": room}


def play(make: Callable[[int, int], bool]) -> int:
    """Fail each call in turn, each in its own process; returns how many processes survived."""
    lived = 0
    for before in GREW_AT:
        for call in range(MOST_CALLS):
            pid = os.fork()
            if not pid:
                os._exit(2 if make(before, call) else 0)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            assert status in ENDS, f"{before} before, call {call}: {status}"
            lived += status == 2
    return lived


@pytest.mark.parametrize("what", MAKERS)
def test_what_there_is_no_memory_for_is_not_there(what: str) -> None:
    """Regression: a key in only one of the run's tables kept the run from being dropped."""
    pytest.importorskip("_testcapi")
    command = [sys.executable, "-m", __name__, what]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0  # some call failed and its process survived


def a_run(lane: SimLane, run_id: str) -> Scripted:
    """A run with more keys than its end forgets at once."""
    (worker,) = join_all(lane, 1, run_id=run_id)
    for number in range(200):
        worker.announce(f"{run_id} {number}")
    return worker


def test_keys_that_cannot_be_forgotten_are_given_up_with_their_run_alone() -> None:
    """Regression: the error ended the tick, the lane and all its runs."""
    lane = SimLane()
    workers = [a_run(lane, run_id) for run_id in ("a", "b")]
    jobs = [members.run for members in lane.core._roster.runs.values()]
    for worker in workers:
        worker.bye()
    jobs[0].idle._ended[0].listing._all.clear()
    lane.tick()
    assert ["is dropped" in text for text in lane.logs].count(True) == 1
    for worker in workers:
        worker.session.disconnect()
    lane.tick()
    assert not jobs[1].records.keys and not lane.core._roster.budget.reserved
    assert not lane.core._roster.ended.of("job")


def test_a_run_whose_keys_cannot_be_forgotten_ends_for_every_rank() -> None:
    lane = SimLane()
    workers = join_all(lane, 2)
    workers[0].announce("a")
    stream_of(lane).keys.listing._all.clear()
    lane.feed(events.Broken(workers[0].session.number, RuntimeError("injected")))
    assert all(worker.error().code == ErrorCode.INTERNAL for worker in workers)
    assert any("is dropped" in text for text in lane.logs)
    for worker in workers:
        worker.session.disconnect()
    assert not lane.core._roster.budget.reserved


@pytest.mark.parametrize("fails_again", [False, True])
def test_a_run_whose_buffers_cannot_be_dropped_keeps_its_room_until_they_are(
    fails_again: bool,
) -> None:
    """Regression: the memory was given to other jobs while the buffers still existed."""
    lane = SimLane()
    workers = join_all(lane, 2)
    for number in range(3):
        workers[0].contribute(Spec(number=number), data=bytes(32))
    (members,) = lane.core._roster.runs.values()
    reserved = lane.core._roster.budget.reserved
    members.run.moves.streams.append(cast(Any, "no stream"))  # after the stream with the buffers
    with pytest.raises((TypeError, AttributeError)):
        lane.core._endings.end(members)
    for worker in workers:
        worker.session.disconnect()
    assert len(lane.held) == 3 and lane.core._roster.budget.reserved == reserved
    if not fails_again:
        members.run.moves.streams.clear()
    lane.tick()
    assert not lane.core._roster.budget.reserved and not lane.core._roster.ended.of("job")
    assert len(lane.held) == (3 if fails_again else 0)
    assert any("is dropped" in text for text in lane.logs) == fails_again


if __name__ == "__main__":
    print(play(MAKERS[sys.argv[1]]))
