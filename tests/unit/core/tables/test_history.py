"""Tables of means with a history: pulls of single versions, over promotions and refills, too."""

from __future__ import annotations

import numpy as np
import pytest

from reducer.core.tables.owner import StepOwner, StepSet
from reducer.kernels import load
from reducer.optimizers import SGD, NoOptimizer, Optimizer
from reducer.wire.codes import ErrorCode, Flag, MessageKind
from reducer.wire.table_messages import TableCall
from tests.support.simlane import SimLane
from tests.support.table_lanes import TableLanes
from tests.support.table_worker import Array, TableWorker, describe

A, B, C = "a:1", "b:1", "c:1"
EXACT = int(Flag.EXACT)
HISTORY = 3
FIRST = np.arange(40, dtype=np.float32)


def means(of: Optimizer | None = None, **fields: object) -> TableCall:
    known: dict[str, object] = {"mode": "step", "bound": 2, "workers": 1, "quorum": 1}
    return describe(NoOptimizer(HISTORY) if of is None else of, **{**known, **fields})


def mean(step: int) -> Array:
    """What the worker contributes to a step: no two steps and no two elements have one value."""
    return (FIRST + 100 * step).astype(np.float32) / np.float32(3)


def take_step(worker: TableWorker, step: int, generation: int = 0) -> None:
    worker.step_call("enter", step)
    worker.push_all(mean(step), step)
    worker.step_call("folded", step, generation)


def pulled(worker: TableWorker, version: int) -> tuple[int, Array]:
    """The answer to a pull of this version of all shards."""
    for shard in range(len(worker.shards())):
        worker.pull(shard, version=version, flags=EXACT)
    found = sorted(worker.take_frames(MessageKind.VALUE), key=lambda each: each.header.chunk)
    (came,) = {each.header.count for each in found}
    assert {each.header.root for each in found} == {0}
    parts = [np.frombuffer(each.payload or b"", "<f4") for each in found]
    return came, np.concatenate(parts)


def check(worker: TableWorker, newest: int, history: int = HISTORY) -> None:
    """The table has exactly the last values."""
    for version in range(max(0, newest - history + 1), newest + 1):
        came, values = pulled(worker, version)
        expected = FIRST if version == 0 else mean(version)
        assert (came, values.tobytes()) == (version, expected.tobytes())
    if newest >= history:
        assert pulled(worker, newest - history)[0] == newest  # it is gone: the newest comes


def started(lane: SimLane, description: TableCall | None = None) -> TableWorker:
    worker = TableWorker(lane, 0)
    worker.table(means() if description is None else description)
    worker.values(FIRST)
    return worker


@pytest.mark.parametrize("kernels", ["native", "numpy"])
def test_a_history_has_the_values_of_the_last_steps(kernels: str) -> None:
    lane = SimLane(load(kernels))
    worker = started(lane)
    held = len(lane.held)
    check(worker, 0)
    for step in range(1, 8):
        take_step(worker, step)
        check(worker, step)
    assert len(lane.held) == held


@pytest.mark.parametrize("of", [NoOptimizer(), SGD(1.0, convention="torch", momentum=0.5)])
def test_other_tables_have_the_newest_value_alone(of: Optimizer) -> None:
    worker = started(SimLane(), means(of))
    for step in (1, 2):
        take_step(worker, step)
    assert pulled(worker, 1)[0] == pulled(worker, 2)[0] == 2


def test_a_pull_waits_for_its_version() -> None:
    worker = started(SimLane())
    worker.pull(0, version=2, flags=EXACT)
    take_step(worker, 1)
    assert not worker.take(MessageKind.VALUE)
    take_step(worker, 2)
    (value,) = worker.take_frames(MessageKind.VALUE)
    assert (value.header.count, value.payload) == (2, mean(2)[:16].tobytes())


def test_a_pull_of_all_arrays_has_the_history_from_the_newest_on() -> None:
    worker = started(SimLane())
    for step in (1, 2, 3):
        take_step(worker, step)
    worker.pull(0, flags=int(Flag.ALL))
    values = worker.take_frames(MessageKind.VALUE)
    assert [each.header.root for each in values] == [0, 1, 2]
    assert [each.payload for each in values] == [mean(3 - age)[:16].tobytes() for age in range(3)]


def test_a_restored_table_has_its_history() -> None:
    worker = TableWorker(SimLane(), 0)
    worker.table(means())
    for age in (2, 1, 0):
        worker.values(mean(7 - age), age, version=7)
    check(worker, 7)
    take_step(worker, 8)
    check(worker, 8)


def has_begun_at(worker: TableWorker, newest: int) -> None:
    """The table began at version 3: what would be older is no value."""
    for version in range(3, newest + 1):
        expected = FIRST if version == 3 else mean(version)
        assert pulled(worker, version)[1].tobytes() == expected.tobytes()
    for version in range(newest - HISTORY + 1, 3):
        came, values = pulled(worker, version)
        assert came == version and np.isnan(values).all()


def test_a_table_that_begins_at_a_version_has_no_values_before_it() -> None:
    lanes = TableLanes(A, B, C)
    worker = led(lanes, 1, A, B, version=3)
    has_begun_at(worker, 3)
    step_on(lanes, worker, 1, 4)
    has_begun_at(worker, 4)
    lanes.kill(A)
    lanes.tick(0.1)
    second = led(lanes, 2, B, C, filling=True)
    has_begun_at(second, 4)
    lanes.tick(0.1)
    lanes.kill(B)
    has_begun_at(led(lanes, 3, C), 4)


def test_a_history_needs_common_steps() -> None:
    worker = TableWorker(SimLane(), 0)
    worker.call(describe(NoOptimizer(2), mode="async"))
    (refusal,) = worker.notices("table")
    assert refusal.code == ErrorCode.PROTOCOL and "needs the mode step" in refusal.message


def led(
    lanes: TableLanes, term: int, *places: str, filling: bool = False, version: int = 0
) -> TableWorker:
    worker = lanes.lead(0, term, *places, filling=filling)
    worker.table(means())
    worker.values(FIRST, version=version)
    lanes.pump()
    return worker


def step_on(lanes: TableLanes, worker: TableWorker, term: int, step: int) -> None:
    """A step whose entries wait for the backup."""
    worker.step_call("enter", step)
    worker.push_all(mean(step), step)
    lanes.pump()
    worker.step_call("folded", step, term << 16)
    lanes.pump()


def test_a_promoted_backup_has_the_history() -> None:
    lanes = TableLanes(A, B)
    worker = led(lanes, 1, A, B)
    for step in range(1, 5):
        step_on(lanes, worker, 1, step)
    lanes.kill(A)
    again = led(lanes, 2, B)
    check(again, 4)
    step_on(lanes, again, 2, 5)
    check(again, 5)


def test_a_spare_is_filled_with_the_history() -> None:
    lanes = TableLanes(A, B, C)
    worker = led(lanes, 1, A, B)
    for step in range(1, 5):
        step_on(lanes, worker, 1, step)
    lanes.kill(B)
    lanes.tick(0.1)
    second = led(lanes, 2, A, C, filling=True)
    lanes.tick(0.3)
    assert second.notices("filled")
    third = led(lanes, 3, A, C)
    step_on(lanes, third, 3, 5)
    lanes.kill(A)
    last = led(lanes, 4, C)
    check(last, 5)
    step_on(lanes, last, 4, 6)
    check(last, 6)


THREE = means(workers=3, quorum=2)


def three(
    lanes: TableLanes, term: int, *places: str, count: int = 3, filling: bool = False
) -> list[TableWorker]:
    workers = [lanes.lead(number, term, *places, filling=filling) for number in range(count)]
    for worker in workers:
        worker.table(THREE)
        worker.values(FIRST)
    lanes.pump()
    return workers


def take_common_step(
    lanes: TableLanes, workers: list[TableWorker], members: tuple[int, ...], term: int, step: int
) -> None:
    for member in members:
        workers[member].step_call("enter", step)
        workers[member].push_all(mean(step), step)
    lanes.pump()
    workers[0].step_call("folded", step, term << 16)
    lanes.pump()


def test_a_promoted_owner_knows_whom_the_step_must_wait_for() -> None:
    """Worker 2 was left out of two steps, the bound, and nobody may leave it out of a third."""
    lanes = TableLanes(A, B)
    workers = three(lanes, 1, A, B)
    for step in (1, 2):
        take_common_step(lanes, workers, (0, 1), 1, step)
    lanes.kill(A)
    first, second, last = three(lanes, 2, B)
    for worker in (first, second):
        worker.step_call("enter", 3)
    assert not first.notices("set")
    last.step_call("enter", 3)
    assert [each.members for each in first.notices("set")] == [(0, 1, 2)]


def test_a_promoted_owner_waits_for_workers_that_connect_late() -> None:
    """Otherwise two workers could take any number of steps, and the third would lack the means."""
    lanes = TableLanes(A, B)
    workers = three(lanes, 1, A, B)
    for step in (1, 2):
        take_common_step(lanes, workers, (0, 1), 1, step)
    lanes.kill(A)
    first = lanes.lead(0, 2, B)
    first.table(THREE)
    first.step_call("enter", 3)
    assert not first.notices("set")  # alone it would be all that take part
    lanes.tick(2.5)
    assert [each.members for each in first.notices("set")] == [(0,)]


def test_a_spare_of_the_owner_learns_the_last_sets() -> None:
    """Worker 2 was in step 2, and is cut off from then on: steps 3 and 4 may leave it out."""
    lanes = TableLanes(A, B, C)
    workers = three(lanes, 1, A, B)
    for step, members in enumerate([(0, 1), (1, 2), (0, 1)], 1):
        take_common_step(lanes, workers, members, 1, step)
    lanes.kill(B)
    lanes.tick(0.1)
    workers = three(lanes, 2, A, C, filling=True)
    lanes.tick(0.3)
    assert workers[0].notices("filled")
    three(lanes, 3, A, C)
    lanes.kill(A)
    workers = three(lanes, 4, C, count=2)
    take_common_step(lanes, workers, (0, 1), 4, 4)
    assert pulled(workers[0], 4)[0] == 4
    workers[0].take(MessageKind.NOTICE)
    for worker in workers:
        worker.step_call("enter", 5)
    assert not workers[0].notices("set")


class TestOwner:
    @pytest.mark.parametrize(("known", "members"), [(3, [0, 1, 2]), (4, [0, 1])])
    def test_a_worker_without_a_set_is_awaited_if_all_take_part(
        self, known: int, members: list[int]
    ) -> None:
        owner = StepOwner(2, 3, 2)
        owner.restore(StepSet(1, 0, (0, 1), (1, 1)))
        owner.lead(range(known))
        assert owner.members() == members

    def test_a_spare_of_the_owner_waits_for_the_same_workers(self) -> None:
        owner = StepOwner(2, 3, 2)
        for step, members in ((4, (2,)), (5, (0, 1))):
            owner.restore(StepSet(step, 0, members, (1,) * len(members)))
        owner.lead([0, 1, 2, 3, 4])
        assert owner.members() == [0, 1, 2]
        owner.enter(0, 6, 1)
        owner.enter(1, 6, 1)
        assert owner.set is not None and owner.commit(6, 0)  # the second that leaves out worker 2
        for worker in (0, 1):
            owner.enter(worker, 7, 1)
        assert owner.set is None

    def test_who_comes_back_is_not_waited_for_at_once(self) -> None:
        owner = StepOwner(1, 2, 2)
        for worker in (0, 1):
            owner.join(worker)
        owner.leave(1)
        for step in range(1, 9):
            owner.enter(0, step, 1)
            assert owner.commit(step, 0)
        owner.join(1)
        for step in (9, 10):
            owner.enter(0, step, 1)
            assert owner.commit(step, 0)
        owner.enter(0, 11, 1)
        assert owner.set is None

    @pytest.mark.parametrize("away", [0, 1])
    def test_steps_without_an_absent_worker_count(self, away: int) -> None:
        owner = StepOwner(1, 2, 2)
        for worker in (0, 1):
            owner.join(worker)
        owner.enter(0, 1, 1)
        assert owner.commit(1, 0)
        owner.leave(1)
        for step in range(2, 2 + away):
            owner.enter(0, step, 1)
            assert owner.commit(step, 0)
        owner.join(1)
        for step in range(2 + away, 3):
            owner.enter(0, step, 1)
            assert owner.commit(step, 0)
        owner.enter(0, 3, 1)
        assert owner.set is None  # the steps 1 and 2 were without worker 1
        owner.enter(1, 3, 1)
        assert owner.set is not None and owner.set.members == (0, 1)

    def test_a_restored_table_waits_for_nobody_at_once(self) -> None:
        owner = StepOwner(1, 2, 2)
        for worker in (0, 1):
            owner.join(worker)
        owner.begin_at(101)
        owner.enter(0, 101, 1)
        assert owner.set is not None
