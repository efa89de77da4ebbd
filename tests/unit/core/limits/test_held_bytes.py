"""The count of bytes that a run holds is right after each step, and 0 at the end."""

from __future__ import annotations

from typing import Any

import pytest

from reducer.wire import messages
from reducer.wire.codes import Collective, DType, ReduceOp
from reducer.wire.keys import key_id, position
from tests.support.frames import control, heartbeat
from tests.support.laws import counts_what_it_holds
from tests.support.scripted import Scripted, Spec, join_all
from tests.support.simlane import SimLane

WORLD = 6  # after the fourth part there is an accumulator
SUMS = [
    Spec(),  # a part becomes the accumulator
    Spec(dtype=DType.FLOAT16),  # the accumulator is new, and wider
]
# Slot 0 of two slots is dead since route 1: its chunks are on slot 1, in their own stream.
MOVED = messages.Route(1, (1, 0), (0, 1), (1, 1))
BACK = messages.Route(2, (2, 0), (1, 1), (1, 1))


class Held:
    """One run on a lane; `send` and `check` compare its counters with what it holds."""

    def __init__(self, world_size: int = WORLD, **hello: Any) -> None:
        self.lane = SimLane()
        self.workers = join_all(self.lane, world_size, **hello)
        (members,) = self.lane.core._roster.runs.values()
        self.job = members.run

    def send(self, worker: Scripted, spec: Spec, **fields: int) -> None:
        size = worker.plan(spec).sends(0, worker.rank, spec.root)
        worker.contribute(spec, data=bytes(size), **fields)
        self.check()

    def check(self) -> int:
        counts_what_it_holds(self.job)
        held: int = self.job.held.total
        assert held == sum(len(buffer.view) for buffer in self.lane.held)
        return held

    def is_empty(self) -> bool:
        return self.check() == 0 and not self.job.held.parked


@pytest.mark.parametrize(
    "spec",
    [
        *SUMS,
        Spec(collective=Collective.BROADCAST, op=ReduceOp.COPY, root=2),
        Spec(collective=Collective.BARRIER, op=ReduceOp.NONE, dtype=DType.UINT8, count=0),
    ],
)
def test_of_a_round_that_is_stable(spec: Spec) -> None:
    held = Held()
    for worker in held.workers:
        held.send(worker, spec)
        held.send(worker, spec)  # a duplicate
    assert held.job.results.rounds == 1
    assert bool(held.check()) == (spec.collective != Collective.BARRIER)
    for worker in held.workers:
        worker.report(spec.key, position(1, 0))
    assert held.is_empty()


@pytest.mark.parametrize("sent", [3, 5])
@pytest.mark.parametrize("spec", SUMS)
@pytest.mark.parametrize("end", ["mismatch", "abandon", "loss"])
def test_of_a_round_that_fails(spec: Spec, sent: int, end: str) -> None:
    held = Held()
    *early, last = held.workers
    for worker in early[:sent]:
        held.send(worker, spec)
    assert held.check()
    if end == "mismatch":
        held.send(last, Spec(dtype=spec.dtype, count=9))
    elif end == "abandon":
        last.abandon(spec)
    else:
        last.bye()
        held.send(early[0], Spec(number=1))  # nobody can complete this round, so the run ends
        assert not held.lane.core._roster.runs
    assert held.is_empty()


@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize("end", ["moved", "passed"])
def test_of_a_stream_that_has_come_from_another_slot(end: str, complete: bool) -> None:
    held = Held(2, slot=1, reducers=2)
    first, second = held.workers
    name = next(name for name in map(str, range(10)) if key_id(name) % 2 == 0)
    first.session.send(control(MOVED))
    held.send(first, Spec(key=name), route=1)
    if complete:
        held.send(second, Spec(key=name), route=1)
    assert held.check()
    if end == "moved":
        first.session.send(control(BACK))
    else:
        for worker in held.workers:
            worker.session.send(heartbeat((key_id(name), position(1, 0)), route=1))
    assert held.is_empty()
