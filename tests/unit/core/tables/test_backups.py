"""Backups: logs, terms, promotions, spares. Several real lanes, whose links the test carries."""

from __future__ import annotations

import random

import numpy as np
import pytest

from reducer.core.surface.events import Copy
from reducer.optimizers import SGD, Adam
from reducer.wire.codes import ErrorCode, MessageKind, Outcome
from reducer.wire.table_messages import TableCall
from tests.support.simlane import InjectedError
from tests.support.table_lanes import TableLanes
from tests.support.table_worker import Array, TableWorker, describe

ONES = np.ones(40, np.float32)
A, B, C = "a:1", "b:1", "c:1"
MOMENTUM = SGD(1.0, convention="torch", momentum=0.5)


def pair(description: TableCall | None = None) -> tuple[TableLanes, TableWorker]:
    """Lane A leads in term 1, and B is its backup; a worker has made the table."""
    lanes = TableLanes(A, B, C)
    worker = lanes.lead(0, 1, A, B)
    worker.table(description)
    worker.values(ONES * 0)
    lanes.pump()
    worker.read()
    worker.frames.clear()
    return lanes, worker


def outcomes(worker: TableWorker) -> list[int]:
    return [header.flags for header in worker.take(MessageKind.RECEIPT)]


def pulled(lanes: TableLanes, worker: TableWorker) -> Array:
    lanes.pump()
    return worker.pull_all()


def test_a_receipt_means_that_the_backup_has_the_update() -> None:
    lanes, worker = pair()
    other = lanes.lead(1, 1, A, B)
    other.table()
    lanes.pump()
    lanes.cut.add(B)
    worker.push_all(ONES, 1)
    lanes.pump()
    assert outcomes(worker) == []
    assert np.array_equal(other.pull_all(), ONES * 0)  # nothing that could be lost
    lanes.cut.clear()
    lanes.pump()
    assert outcomes(worker) == [Outcome.APPLIED] * 3
    assert np.array_equal(worker.pull_all(), -ONES)


def test_a_pull_has_the_pushes_of_its_worker_that_came_before() -> None:
    lanes, worker = pair()
    worker.push_all(ONES, 1)
    for shard in range(3):
        worker.pull(shard)
    lanes.pump()
    values = worker.take_frames(MessageKind.VALUE)
    assert [each.header.count for each in values] == [1, 1, 1]


def test_the_backup_leads_when_the_primary_is_killed() -> None:
    lanes, worker = pair(describe(MOMENTUM))
    for seq in (1, 2):
        worker.push_all(ONES, seq, seq - 1)
        lanes.pump()
    before = worker.pull_all()
    worker.push_all(ONES, 3, 2)  # on the backup, and its receipts are on their way
    lanes.pump()
    lanes.kill(A)
    again = lanes.lead(0, 2, B)
    again.table(worker.description)
    for seq in (2, 3):  # the worker does not know what has come
        again.push_all(ONES, seq, seq - 1)
    assert outcomes(again) == [Outcome.APPLIED] * 6
    again.push_all(ONES, 4, 3)
    momentum, expected = 0.0, 0.0
    for _ in range(4):
        momentum = 0.5 * momentum + 1
        expected -= momentum
    assert np.array_equal(before, ONES * -2.5)
    assert np.array_equal(again.pull_all(), ONES * np.float32(expected))


def test_updates_that_the_backup_has_not_seen_are_sent_again_and_applied_once() -> None:
    lanes, worker = pair()
    worker.push_all(ONES, 1)
    lanes.pump()
    lanes.cut.add(B)
    worker.push_all(ONES, 2, 1)
    lanes.pump()
    lanes.kill(A)
    lanes.cut.clear()
    again = lanes.lead(0, 2, B)
    again.table(worker.description)
    again.push_all(ONES, 2, 1)
    assert np.array_equal(again.pull_all(), ONES * -2)


def test_outcomes_that_changed_nothing_are_known_to_the_backup() -> None:
    lanes, worker = pair(describe(bound=0))
    worker.push_all(ONES, 1)
    lanes.pump()
    worker.push_all(ONES, 2, 0)
    worker.push(0, ONES[:16] * np.float32(np.nan), 3, 1)
    lanes.pump()
    found = outcomes(worker)
    assert found == [1, 1, 1, 2, 2, 2, 3]
    lanes.kill(A)
    again = lanes.lead(0, 2, B)
    again.table(worker.description)
    for seq in (1, 2):
        again.push_all(ONES, seq, seq - 1)
    again.push(0, ONES[:16], 3, 1)
    assert outcomes(again) == found
    assert np.array_equal(again.pull_all(), -ONES)


def test_a_lost_backup_is_told_and_a_new_term_goes_on_without_it() -> None:
    lanes, worker = pair()
    lanes.kill(B)
    worker.push_all(ONES, 1)
    lanes.tick(0.3)
    (news, *_) = worker.notices("alone")
    assert (news.term, news.backup_reducer) == (1, (2).to_bytes(16, "little"))
    assert outcomes(worker) == []
    other = lanes.lead(1, 2, A)
    assert outcomes(worker) == [Outcome.APPLIED] * 3
    other.table(worker.description)
    assert np.array_equal(other.pull_all(), -ONES)


def test_a_frozen_backup_is_told_after_its_silence() -> None:
    lanes, worker = pair()
    lanes.tick(0.3)
    lanes.cut.add(B)
    lanes.tick(0.9)
    assert not worker.notices("alone")
    lanes.tick(0.5)
    assert worker.notices("alone")


@pytest.mark.parametrize("optimizer", [MOMENTUM, Adam(0.1, convention="torch")])
def test_a_spare_is_filled_and_becomes_the_backup(optimizer: SGD | Adam) -> None:
    lanes, worker = pair(describe(optimizer))
    worker.push_all(ONES, 1)
    lanes.pump()
    lanes.kill(B)
    lanes.tick(0.1)
    second = lanes.lead(0, 2, A, C, filling=True)
    second.table(worker.description)
    second.push_all(ONES * 2, 2, 1)  # before the spare has anything
    lanes.tick(0.1)
    second.push_all(ONES * 3, 3, 2)
    lanes.tick(0.3)
    (news, *_) = second.notices("filled")
    assert news.backup_reducer == lanes.lanes[C].settings.incarnation
    third = lanes.lead(0, 3, A, C)
    third.table(worker.description)
    third.push_all(ONES * 4, 4, 3)
    expected = pulled(lanes, third)
    lanes.kill(A)
    last = lanes.lead(0, 4, C)
    last.table(worker.description)
    last.push_all(ONES * 3, 3, 2)  # a repeat
    assert last.pull_all().tobytes() == expected.tobytes()
    third_outcomes = outcomes(last)
    assert third_outcomes == [Outcome.APPLIED] * 3
    reference = TableLanes(A)
    alone = reference.lead(0, 1, A)
    alone.table(worker.description)
    alone.values(ONES * 0)
    for seq in range(1, 6):
        alone.push_all(ONES * np.float32(seq), seq, seq - 1)
    last.push_all(ONES * 5, 5, 4)
    assert last.pull_all().tobytes() == alone.pull_all().tobytes()  # slots are equal too


def test_changes_wait_for_a_spare_that_has_everything() -> None:
    """A worker may name it the backup at any moment, and then another may promote it."""
    lanes, worker = pair()
    lanes.kill(B)
    lanes.tick(0.1)
    second = lanes.lead(0, 2, A, C, filling=True)
    second.table(worker.description)
    lanes.tick(0.6)
    assert second.notices("filled")
    lanes.cut.add(C)
    second.push_all(ONES, 1)
    lanes.tick(0.2)
    assert outcomes(second) == []


def test_a_primary_that_was_replaced_can_carry_out_nothing() -> None:
    lanes, worker = pair()
    lanes.cut.add(A)  # it lives, and only its own worker reaches it
    other = lanes.lead(1, 2, B)
    other.table(worker.description)
    other.push_all(ONES, 1)
    worker.push_all(ONES * 100, 1)
    lanes.tick(0.2)
    assert outcomes(worker) == []
    assert np.array_equal(other.pull_all(), -ONES)
    lanes.cut.clear()
    lanes.tick(2.0)
    error = worker.error()
    assert error is not None and error.code == ErrorCode.EVICTED
    assert not lanes.lanes[A].held


def test_calls_of_an_older_term_or_for_another_start_are_refused() -> None:
    lanes, _ = pair()
    lanes.lead(1, 3, A, B)
    old = lanes.lead(2, 2, A, B)
    error = old.error()
    assert error is not None and error.code == ErrorCode.EVICTED and "term 3" in error.message
    backup = lanes.lead(2, 1, B)
    error = backup.error()
    assert error is not None and error.code == ErrorCode.EVICTED
    lanes.kill(A)
    lanes.start(A)
    stranger = lanes.lead(2, 3, A)
    error = stranger.error()
    assert error is not None and error.code == ErrorCode.STATE_LOST


def test_a_confirmation_that_is_lost_with_its_link_comes_again() -> None:
    lanes, worker = pair()
    worker.push_all(ONES, 1)
    lanes.pump(backwards=False)
    lanes.break_links()
    lanes.tick(0.2)
    assert outcomes(worker) == [Outcome.APPLIED] * 3


def test_a_backup_that_was_given_up_is_filled_from_nothing() -> None:
    """What it has is of another log of the same primary, and says nothing about this one."""
    lanes, worker = pair()
    for seq in range(1, 9):
        worker.push_all(ONES, seq, seq - 1)
        lanes.pump()
    alone = lanes.lead(0, 2, A)
    alone.table(worker.description)
    alone.push_all(ONES, 9, 8)
    third = lanes.lead(0, 3, A, B, filling=True)
    third.table(worker.description)
    lanes.tick(0.3)
    assert third.notices("filled")
    third.push_all(ONES, 10, 9)
    lanes.pump()
    lanes.kill(A)
    again = lanes.lead(0, 4, B)
    again.table(worker.description)
    assert np.array_equal(again.pull_all(), ONES * -10)


def test_a_backup_that_is_taken_for_lost_and_is_not_has_everything() -> None:
    """The workers name it as the spare, because no other reducer answers them."""
    lanes, worker = pair()
    worker.push_all(ONES, 1)
    lanes.pump()
    held = lanes.held()
    second = lanes.lead(0, 2, A, B, filling=True)
    second.table(worker.description)
    second.push_all(ONES, 2, 1)
    lanes.tick(0.3)
    assert second.notices("filled") and lanes.held() == held
    lanes.lead(0, 3, A, B)
    lanes.pump()
    lanes.kill(A)
    again = lanes.lead(0, 4, B)
    again.table(worker.description)
    assert np.array_equal(again.pull_all(), ONES * -2)


def test_a_primary_that_connects_becomes_the_spare_of_another() -> None:
    lanes = TableLanes(A, B, C)
    lanes.cut.add(C)
    lanes.lead(0, 1, A, C)
    lanes.pump()
    lanes.lead(0, 1, B)
    lanes.lead(0, 2, B, A, filling=True)
    lanes.pump()
    lanes.cut.clear()
    lanes.tick(0.3)
    assert not lanes.links_of(C)


@pytest.mark.parametrize("copy", range(1, 7))
def test_a_spare_is_filled_when_there_is_memory_again(copy: int) -> None:
    lanes, worker = pair(describe(MOMENTUM))
    worker.push_all(ONES, 1)
    lanes.pump()
    second = lanes.lead(0, 2, A, C, filling=True)
    second.table(worker.description)
    copies = 0

    def fail(output: object) -> None:
        nonlocal copies
        copies += isinstance(output, Copy)
        if copies == copy and isinstance(output, Copy):
            raise InjectedError

    lanes.lanes[A].inject = fail
    lanes.tick(0.5)
    assert second.notices("filled") and copies > 6
    lanes.lead(0, 3, A, C)
    lanes.pump()
    lanes.kill(A)
    again = lanes.lead(0, 4, C)
    again.table(worker.description)
    assert np.array_equal(again.pull_all(), -ONES)
    lanes.kill(C)


def test_clocks_and_learning_rates_survive() -> None:
    lanes, worker = pair(describe(mode="ssp", bound=0, workers=1))
    worker.call(TableCall("rate", name="net", rate=0.5, number=3))
    worker.call(TableCall("rate", name="net", rate=0.0, number=0))  # asks only
    worker.clock(1)
    worker.clock(2)
    lanes.pump()
    lanes.kill(A)
    again = lanes.lead(0, 2, B)
    assert again.table(worker.description).clock == 2
    again.pull(0, clock=2)
    assert again.take(MessageKind.VALUE)
    again.call(TableCall("rate", name="net", rate=0.1, number=3))
    assert again.notices("rate")[0].rate == 0.5


def test_a_dropped_table_is_dropped_at_the_backup_too() -> None:
    lanes, worker = pair()
    worker.call(TableCall("drop", name="net"))
    lanes.pump()
    assert lanes.held() == 0


def test_another_start_of_a_worker_is_known_to_the_backup() -> None:
    lanes, worker = pair()
    worker.push_all(ONES, 1)
    lanes.pump()
    other = TableWorker(
        lanes.lanes[A], 0, start=1, term=1, partitions=1,
        reducer=lanes.lanes[A].settings.incarnation,
    )  # fmt: skip
    other.table(worker.description)
    lanes.pump()
    lanes.kill(A)
    again = TableWorker(
        lanes.lanes[B], 0, start=1, term=2, partitions=1,
        reducer=lanes.lanes[B].settings.incarnation,
    )  # fmt: skip
    again.table(worker.description)
    again.push_all(ONES, 1, 1)  # the first update of this start
    assert np.array_equal(again.pull_all(), ONES * -2)


STEPS = describe(mode="step", bound=4, workers=2, quorum=2)


def two(lanes: TableLanes, term: int, primary: str, backup: str = "") -> list[TableWorker]:
    workers = [lanes.lead(number, term, primary, backup) for number in (0, 1)]
    for worker in workers:
        worker.table(STEPS)
        worker.values(ONES * 0)
    lanes.pump()
    return workers


def contribute(worker: TableWorker, step: int, value: float) -> None:
    worker.step_call("enter", step)
    worker.push_all(ONES * np.float32(value), step)


@pytest.mark.parametrize("when", ["entered", "folded", "committed", "told"])
def test_a_step_ends_once_whenever_its_primary_is_killed(when: str) -> None:
    lanes = TableLanes(A, B)
    workers = two(lanes, 1, A, B)
    for step in (1, 2):
        for worker in workers:
            contribute(worker, step, step)
        if step == 2:
            break
        lanes.pump()
        workers[0].step_call("folded", 1, 1 << 16)
        lanes.pump()
    if when == "entered":
        lanes.cut.add(B)
    lanes.pump()
    if when == "committed":
        lanes.cut.add(B)
    if when in ("committed", "told"):
        workers[0].step_call("folded", 2, 1 << 16)
    lanes.pump()
    told = [each.step for each in workers[1].notices("commit")]
    assert (2 in told) == (when == "told")
    lanes.kill(A)
    lanes.cut.clear()
    again = two(lanes, 2, B)
    if when == "told":
        assert np.array_equal(again[0].pull_all(), ONES * -3)
    for worker in again:  # each sends what it has no final receipt of
        contribute(worker, 2, 2)
    for news in [each for worker in again for each in worker.notices("folded")]:
        again[0].step_call("folded", news.step, news.generation)
    assert np.array_equal(again[0].pull_all(), ONES * -3)
    assert outcomes(again[0])[-3:] == [Outcome.APPLIED] * 3


@pytest.mark.parametrize("seed", range(30))
def test_random_kills_lose_no_update_and_apply_none_twice(seed: int) -> None:
    """Integer updates of one worker, lanes killed at random moments: the sum is the ledger."""
    rng = random.Random(seed)
    lanes = TableLanes(A, B, C)
    term, primary, backup = 1, A, B
    worker = lanes.lead(0, term, primary, backup)
    worker.table()
    worker.values(ONES * 0)
    lanes.pump()
    sent = 0
    for _ in range(60):
        if rng.random() < 0.6:
            sent += 1
            for number, place in enumerate(worker.shards()):
                worker.push(number, ONES[place], sent, 0)
        lanes.pump(rng)
        if rng.random() < 0.3:
            lanes.pump()
        if rng.random() < 0.1:
            lanes.kill(primary)
            lanes.start(primary)
            spare = primary
            primary, term = backup, term + 1
            worker = lanes.lead(0, term, primary, spare, filling=True)
            worker.table(describe())
            for seq in range(1, sent + 1):  # the worker knows of no receipt
                for number, place in enumerate(worker.shards()):
                    worker.push(number, ONES[place], seq, 0)
            lanes.tick(0.7)
            assert worker.notices("filled")
            term, backup = term + 1, spare
            worker = lanes.lead(0, term, primary, backup)
            worker.table(describe())
            lanes.pump()
    lanes.pump()
    assert np.array_equal(worker.pull_all(), ONES * -np.float32(sent)), seed
