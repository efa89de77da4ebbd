"""Steps: sets, generations, means, commits; workers that are late or lost."""

from __future__ import annotations

import numpy as np
import pytest

from reducer.core.tables.owner import StepOwner
from reducer.wire.codes import ErrorCode, MessageKind, Outcome
from reducer.wire.errors import ProtocolError, StaleBaseError
from reducer.wire.keys import key_id
from reducer.wire.table_messages import Notice, TableCall
from tests.support.simlane import SimLane
from tests.support.table_worker import TableWorker, describe

ONES = np.ones(40, np.float32)


def step_table(workers: int = 2, quorum: int = 2, **fields: object) -> TableCall:
    known: dict[str, object] = {"mode": "step", "bound": 4, "workers": workers, "quorum": quorum}
    return describe(**{**known, **fields})


def joined(lane: SimLane, count: int, description: TableCall) -> list[TableWorker]:
    workers = []
    for number in range(count):
        worker = TableWorker(lane, number)
        worker.table(description)
        worker.values(ONES * 0)
        workers.append(worker)
    for worker in workers:
        worker.read()
        worker.frames.clear()
    return workers


def contribute(worker: TableWorker, step: int, value: float, weight: int = 1) -> None:
    worker.step_call("enter", step, weight=weight)
    worker.push_all(ONES * np.float32(value), step)


def news(worker: TableWorker) -> list[tuple[str, int, int]]:
    return [(each.call, each.step, each.generation) for each in worker.notices()]


def outcomes(worker: TableWorker) -> list[int]:
    return [header.flags for header in worker.take(MessageKind.RECEIPT)]


def test_a_step_is_the_mean_of_all_and_is_applied_at_the_commit() -> None:
    lane = SimLane()
    first, second = joined(lane, 2, step_table())
    contribute(first, 1, 3)
    assert news(first) == []
    contribute(second, 1, 5)
    assert news(first) == [("set", 1, 0), ("folded", 1, 0)]
    assert outcomes(first) == [Outcome.HELD] * 3
    assert np.array_equal(first.pull_all(), ONES * 0)  # nothing before the commit
    first.step_call("folded", 1)
    assert ("commit", 1, 0) in news(second)
    assert outcomes(second) == [Outcome.HELD] * 3 + [Outcome.APPLIED] * 3
    assert np.array_equal(first.pull_all(), ONES * -4)
    second.step_call("folded", 1)  # the second worker's, which comes later
    assert news(first) == [("commit", 1, 0)]


def test_the_mean_does_not_depend_on_the_order() -> None:
    values = [np.float32(1e8), np.float32(3.0), np.float32(-99_999_992)]
    found = set()
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        lane = SimLane()
        workers = joined(lane, 3, step_table(3, 3))
        for number in order:
            contribute(workers[number], 1, values[number])
        workers[0].step_call("folded", 1)
        found.add(workers[0].pull_all().tobytes())
    expected = -(((values[0] + values[1]) + values[2]) / np.float32(3))
    assert expected != -np.float32(11) / np.float32(3)  # rounding shows the order
    assert found == {(ONES * expected).astype(np.float32).tobytes()}


def test_k_of_n_takes_the_first_and_tells_the_late_one() -> None:
    lane = SimLane()
    workers = joined(lane, 3, step_table(3, 2))
    contribute(workers[2], 1, 4)
    workers[0].step_call("enter", 1)
    workers[0].push_all(ONES * 2, 1)
    assert news(workers[1]) == [("set", 1, 0), ("folded", 1, 0)]
    workers[1].step_call("enter", 1)
    assert news(workers[1]) == [("late", 1, 0)]
    workers[0].step_call("folded", 1)
    assert np.array_equal(workers[1].pull_all(), ONES * -3)
    workers[1].push_all(ONES, 1)  # too late: dropped, and nothing changes
    assert outcomes(workers[1]) == [Outcome.DROPPED] * 3
    workers[0].push_all(ONES, 1)  # a repeat of a member's
    assert outcomes(workers[0])[-3:] == [Outcome.APPLIED] * 3
    assert np.array_equal(workers[1].pull_all(), ONES * -3)


def test_weights_divide_the_sum() -> None:
    lane = SimLane()
    first, second = joined(lane, 2, step_table())
    contribute(first, 1, 6, weight=2)  # two gradients, added by the worker
    contribute(second, 1, 3)
    first.step_call("folded", 1)
    assert np.array_equal(first.pull_all(), ONES * -3)


def test_a_lost_member_makes_another_generation() -> None:
    lane = SimLane()
    first, second = joined(lane, 2, step_table())
    contribute(first, 1, 3)
    second.step_call("enter", 1)
    second.push(0, ONES[:16] * 5, 1)
    assert news(first) == [("set", 1, 0)]
    second.lose()
    lane.tick(0.7)
    assert news(first) == [("set", 1, 1), ("folded", 1, 1)]
    first.step_call("folded", 1, 0)  # of the generation before: void
    assert news(first) == []
    first.step_call("folded", 1, 1)
    assert np.array_equal(first.pull_all(), ONES * -3)
    assert outcomes(first) == [Outcome.HELD] * 3 + [Outcome.APPLIED] * 3


def test_a_member_that_folded_everywhere_stays_in_though_it_is_lost() -> None:
    lane = SimLane()
    first, second = joined(lane, 2, step_table())
    contribute(first, 1, 3)
    contribute(second, 1, 5)
    second.lose()
    first.step_call("folded", 1)
    lane.tick(0.7)
    assert np.array_equal(first.pull_all(), ONES * -4)


def test_a_late_worker_comes_in_where_a_member_is_lost() -> None:
    lane = SimLane()
    workers = joined(lane, 3, step_table(3, 2))
    for number in (0, 1, 2):
        contribute(workers[number], 1, number + 1)
    assert ("late", 1, 0) in news(workers[2])
    workers[1].lose()
    lane.tick(0.7)
    chosen = [each for each in workers[2].notices("set") if each.generation == 1]
    assert [each.members for each in chosen] == [(0, 2)]
    workers[0].step_call("folded", 1, 1)
    assert np.array_equal(workers[0].pull_all(), ONES * -2)


def test_a_worker_that_comes_back_is_told_where_the_step_stands() -> None:
    lane = SimLane()
    first, second = joined(lane, 2, step_table())
    contribute(first, 1, 3)
    contribute(second, 1, 5)
    first.step_call("folded", 1)
    contribute(first, 2, 1)
    contribute(second, 2, 1)
    again = TableWorker(lane, 1)
    again.table(second.description)
    again.call(again.description)
    told = again.notices()
    assert [(each.call, each.step) for each in told] == [
        ("table", 1), ("commit", 1), ("set", 2), ("folded", 2),
    ]  # fmt: skip
    assert told[1].members == (0, 1)


def test_the_first_step_waits_for_all_workers() -> None:
    lane = SimLane()
    first, second = joined(lane, 2, step_table(3, 1))
    contribute(first, 1, 1)
    contribute(second, 1, 1)
    assert news(first) == []
    third = TableWorker(lane, 2)
    third.table(first.description)
    third.step_call("enter", 1)
    assert [each.members for each in first.notices("set")] == [(0,)]


def test_a_joiner_takes_part_from_the_open_step_on() -> None:
    lane = SimLane()
    first, second = joined(lane, 2, step_table())
    contribute(first, 1, 1)
    contribute(second, 1, 1)
    first.step_call("folded", 1)
    joiner = TableWorker(lane, 7)
    assert joiner.table(first.description).step == 1
    contribute(first, 2, 1)
    contribute(second, 2, 1)
    assert not [each for each in first.notices("set") if each.step == 2]
    contribute(joiner, 2, 4)
    first.step_call("folded", 2)
    assert np.array_equal(first.pull_all(), ONES * -3)


def test_lanes_apply_what_the_owner_has_committed_and_nothing_else() -> None:
    """A lane that does not decide steps: workers bring the set and the commit."""
    lane = SimLane()
    partition = (key_id("net") + 1) % 2  # has shard 1 alone
    description = step_table(partitions=2, partition=partition, count=32)
    worker = TableWorker(lane, 0, partition=partition, partitions=2)
    worker.table(description)
    worker.push(1, ONES[:16] * 0, 0, flags=32)
    worker.push(1, ONES[:16] * 3, 1)
    worker.step_call("enter", 1)
    assert worker.notices()[-1].code == ErrorCode.PROTOCOL  # not the owner
    worker.step_call("commit", 1)
    assert "has not folded it" in worker.notices()[-1].message
    worker.step_call("set", 1, members=(0,), weights=(1,))
    assert news(worker) == [("folded", 1, 0)]
    worker.step_call("set", 1, members=(0,), weights=(1,))  # another worker's copy
    assert news(worker) == []
    worker.step_call("commit", 1)
    worker.step_call("commit", 1)
    worker.pull(1, version=1)
    (value,) = worker.take_frames(MessageKind.VALUE)
    assert value.header.count == 1
    assert np.array_equal(np.frombuffer(value.payload or b"", "<f4"), -3 * ONES[:16])


def test_pulls_wait_for_the_version_that_they_name() -> None:
    lane = SimLane()
    first, second = joined(lane, 2, step_table())
    first.pull(0, version=1)
    contribute(first, 1, 1)
    contribute(second, 1, 1)
    assert not first.take(MessageKind.VALUE)
    first.step_call("folded", 1)
    assert [header.count for header in first.take(MessageKind.VALUE)] == [1]


def test_the_last_worker_to_come_ends_the_wait_of_the_first_step() -> None:
    """It need not have a gradient itself, if the quorum has."""
    lane, description = SimLane(), step_table(3, 2)
    first, second = joined(lane, 2, description)
    for worker in (first, second):
        worker.step_call("enter", 1)
    assert not first.notices("set")
    last = TableWorker(lane, 2)
    last.table(description)
    assert [each.members for each in first.notices("set")] == [(0, 1)]


def test_a_learning_rate_travels_in_the_set() -> None:
    lane = SimLane()
    first, second = joined(lane, 2, step_table())
    first.call(TableCall("rate", name="net", rate=0.5, number=1))
    contribute(first, 1, 2)
    contribute(second, 1, 2)
    chosen: list[Notice] = second.notices("set")
    assert [each.rate for each in chosen] == [0.5]
    first.step_call("folded", 1)
    assert np.array_equal(first.pull_all(), -ONES)


@pytest.mark.parametrize("bad", [np.nan, 1e19])
def test_a_contribution_that_is_not_finite_ends_its_worker(bad: float) -> None:
    lane = SimLane()
    first, second = joined(lane, 2, step_table())
    contribute(first, 1, 3)
    second.step_call("enter", 1)
    second.push_all(ONES * np.float32(bad), 1)
    error = second.error()
    assert error is not None and error.code == ErrorCode.NUMERIC and error.rank == 1
    second.lose()
    lane.tick(0.7)
    first.step_call("folded", 1, 1)
    assert np.array_equal(first.pull_all(), ONES * -3)


def test_memory_is_given_back_with_the_step() -> None:
    lane = SimLane()
    first, second = joined(lane, 2, step_table())
    before = len(lane.held)
    for step in range(1, 4):
        contribute(first, step, 1)
        contribute(second, step, 1)
        first.step_call("folded", step)
    assert len(lane.held) == before


class TestOwner:
    """The decisions alone."""

    def owner(self, quorum: int = 3, workers: int = 4, bound: int = 4) -> StepOwner:
        owner = StepOwner(quorum, workers, bound)
        for worker in range(workers):
            owner.join(worker)
        return owner

    def test_nobody_is_left_out_more_often_than_the_bound(self) -> None:
        owner = self.owner(bound=4)
        left_out, longest = 0, 0
        for step in range(1, 40):
            for worker in (0, 1, 2):
                owner.enter(worker, step, 1)
            if owner.set is None:  # the step waits for the slow worker
                owner.enter(3, step, 1)
            assert owner.set is not None
            left_out = 0 if 3 in owner.set.members else left_out + 1
            longest = max(longest, left_out)
            assert owner.commit(step, owner.set.generation)
        assert longest == 4
        assert owner.excluded[3] == 32 and owner.taken[3] == 7

    def test_a_step_that_the_table_has_not_reached_is_refused(self) -> None:
        with pytest.raises(StaleBaseError, match="enters step 3, and the table is at step 1"):
            self.owner().enter(0, 3, 1)

    def test_a_stranger_may_not_enter(self) -> None:
        with pytest.raises(ProtocolError, match="takes no part"):
            self.owner().enter(9, 1, 1)

    def test_all_that_are_left_make_the_quorum(self) -> None:
        owner = self.owner()
        owner.enter(0, 1, 1)
        assert not owner.leave(1)
        assert not owner.leave(2)
        assert not owner.leave(3) or owner.set is not None
        assert owner.set is not None and owner.set.members == (0,)

    def test_a_set_that_loses_everybody_is_decided_again(self) -> None:
        owner = self.owner(quorum=1, workers=2)
        owner.enter(0, 1, 1)
        assert owner.set is not None and owner.set.members == (0,)
        assert not owner.leave(0)
        assert owner.enter(1, 1, 1)
        assert (owner.set.members, owner.set.generation) == ((1,), 1)
