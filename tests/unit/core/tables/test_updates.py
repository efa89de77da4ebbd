"""Updates of the modes async and ssp on one lane: exactly once, receipts, refusals."""

from __future__ import annotations

from dataclasses import replace

import msgpack
import numpy as np
import pytest

from reducer.kernels import load
from reducer.optimizers import (
    SGD,
    Adagrad,
    Adam,
    AdamW,
    NoOptimizer,
    Optimizer,
    to_fields,
)
from reducer.wire.codes import ErrorCode, Flag, MessageKind, Outcome
from reducer.wire.table_messages import TableCall
from tests.support.simlane import InjectedError, SimLane
from tests.support.table_worker import TableWorker, describe

ZEROS = np.zeros(40, np.float32)
ONES = np.ones(40, np.float32)


def table_of(lane: SimLane, description: TableCall | None = None) -> TableWorker:
    worker = TableWorker(lane, 0)
    worker.table(description)
    worker.values(ZEROS)
    worker.frames.clear()
    worker.read()
    worker.frames.clear()
    return worker


def outcomes(worker: TableWorker) -> list[tuple[int, int, int, int, int]]:
    """(shard, seq, outcome, version, staleness) of the receipts."""
    return [
        (header.chunk, header.round, header.flags, header.count, header.done)
        for header in worker.take(MessageKind.RECEIPT)
    ]


def test_values_come_once_and_make_the_table_ready() -> None:
    lane = SimLane()
    first, second = TableWorker(lane, 0), TableWorker(lane, 1)
    assert first.table().missing
    assert second.table(first.description).missing
    first.values(ONES)
    second.values(ONES * 2)  # the first values win; the digests are another matter
    assert [header.flags for header in second.take(MessageKind.RECEIPT)] == [Outcome.APPLIED] * 3
    assert second.notices("table")[-1].ready
    assert not TableWorker(lane, 2).table(first.description).missing
    assert np.array_equal(second.pull_all(), ONES)


@pytest.mark.parametrize(
    "optimizer",
    [
        NoOptimizer(),
        SGD(0.1, convention="torch", momentum=0.9, weight_decay=0.01),
        Adagrad(0.1, convention="tf"),
        Adam(0.1, convention="torch"),
        AdamW(0.1, convention="keras"),
    ],
    ids=lambda each: each.NAME,
)
def test_updates_have_the_bits_of_the_numpy_kernels(optimizer: Optimizer) -> None:
    numpy = load("numpy")
    rng = np.random.default_rng(3)
    start = rng.normal(size=40).astype(np.float32)
    lane = SimLane()
    worker = TableWorker(lane, 0)
    worker.table(describe(optimizer))
    worker.values(start)
    parameters, slots = (
        start.copy(),
        [np.full(40, slot.initial, np.float32) for slot in optimizer.slots],
    )
    for step in range(1, 6):
        gradient = rng.normal(size=40).astype(np.float32)
        worker.push_all(gradient, step, step - 1)
        numpy.apply(optimizer.rule, 40, parameters, gradient, slots, optimizer.scalars(step))
        assert worker.pull_all().tobytes() == parameters.tobytes(), step
    worker.pull(0, flags=int(Flag.ALL))
    arrays = {
        each.header.root: np.frombuffer(each.payload or b"", "<f4")
        for each in worker.take_frames(MessageKind.VALUE)
    }
    assert sorted(arrays) == list(range(1 + len(slots)))
    for number, slot in enumerate(slots, 1):
        assert arrays[number].tobytes() == slot[:16].tobytes()


def test_a_repeat_is_answered_by_its_first_outcome_and_changes_nothing() -> None:
    worker = table_of(SimLane())
    worker.push_all(ONES, 1)
    first = outcomes(worker)
    assert first == [(shard, 1, Outcome.APPLIED, 1, 0) for shard in range(3)]
    worker.push_all(ONES, 2, 1, done=0)
    outcomes(worker)
    worker.push_all(ONES, 1)
    assert outcomes(worker) == first
    worker.push_all(ONES, 3, 2, done=2)
    outcomes(worker)
    worker.push_all(ONES, 1)  # its receipt was confirmed: nobody waits for another
    assert outcomes(worker) == []
    assert np.array_equal(worker.pull_all(), -3 * ONES)


def test_a_gap_ends_the_connection_and_names_the_mark() -> None:
    worker = table_of(SimLane())
    worker.push(0, ONES[:16], 1)
    worker.push(0, ONES[:16], 3)
    error = worker.error()
    assert error is not None and "seen the worker's updates up to 1: expected 2" in error.message
    assert "worker 0 sent update 3" in error.message and "'net' shard 0" in error.message


def test_another_connection_of_the_worker_goes_on_where_it_was() -> None:
    lane = SimLane()
    worker = table_of(lane)
    worker.push_all(ONES, 1)
    again = TableWorker(lane, 0)
    assert worker.session.closed
    again.table(worker.description)
    again.push_all(ONES, 1)
    assert [each[2] for each in outcomes(again)] == [Outcome.APPLIED] * 3
    again.push_all(ONES, 2, 1)
    assert np.array_equal(again.pull_all(), -2 * ONES)


def test_another_start_begins_anew_and_seals_the_one_before() -> None:
    lane = SimLane()
    worker = table_of(lane)
    worker.push_all(ONES, 1)
    other = TableWorker(lane, 0, start=1)
    other.table(worker.description)
    other.push_all(ONES, 1, 1)  # seq 1 of another incarnation is another update
    assert np.array_equal(other.pull_all(), -2 * ONES)
    old = TableWorker(lane, 0, start=0)
    error = old.error()
    assert error is not None and error.code == ErrorCode.JOIN
    assert "another process is worker 0 now" in error.message


def test_stale_updates_are_dropped_with_a_receipt() -> None:
    worker = table_of(SimLane(), describe(bound=1))
    for seq in (1, 2):
        worker.push_all(ONES, seq, 0)
    assert [each[2:] for each in outcomes(worker)][-1] == (Outcome.APPLIED, 2, 1)
    worker.push_all(ONES, 3, 0)
    assert [each[2:] for each in outcomes(worker)] == [(Outcome.DROPPED, 2, 2)] * 3
    worker.push_all(ONES, 4, 2)
    assert [each[2:] for each in outcomes(worker)] == [(Outcome.APPLIED, 3, 0)] * 3
    assert np.array_equal(worker.pull_all(), -3 * ONES)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e19])
def test_updates_that_are_not_finite_are_refused(bad: float) -> None:
    lane = SimLane()
    worker = table_of(lane, describe(Adagrad(0.1, convention="torch")))
    worker.push(0, np.where(np.arange(16) == 5, np.float32(bad), ONES[:16]), 1)
    worker.push(1, ONES[16:32], 1)
    worker.push(2, ONES[32:], 1)
    assert [each[2:4] for each in outcomes(worker)] == [
        (Outcome.REFUSED, 0), (Outcome.APPLIED, 1), (Outcome.APPLIED, 1),
    ]  # fmt: skip
    assert np.array_equal(worker.pull_all()[:16], ZEROS[:16])
    assert any("an update of worker 0 is not finite" in line for line in lane.logs)


def test_a_base_that_the_shard_has_not_reached_is_refused() -> None:
    worker = table_of(SimLane())
    worker.push(0, ONES[:16], 1, base=5)
    error = worker.error()
    assert error is not None and error.code == ErrorCode.STALE_BASE
    assert "from version 5, and the shard is at version 0" in error.message


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("count", 41, "count 41, worker 0 with 40"),
        ("optimizer", msgpack.packb(to_fields(NoOptimizer())), "'optimizer': 'none'"),
        ("mode", "ssp", "mode 'ssp', worker 0 with 'async'"),
        ("tensors", b"\x00", "tensors"),
        ("digest", b"y" * 32, "other first values"),
    ],
)
def test_workers_must_describe_a_table_alike(field: str, value: object, text: str) -> None:
    lane = SimLane()
    worker = table_of(lane, describe(digest=b"x" * 32))
    other = TableWorker(lane, 1)
    wanted = replace(worker.description, bound=3 if field == "mode" else -1, **{field: value})  # type: ignore[arg-type]
    answer = other.table(wanted)
    assert answer.code == ErrorCode.MISMATCH and text in answer.message
    assert "worker 1" in answer.message and other.session.closed is None
    assert other.table(replace(worker.description, digest=b"")).ready


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"optimizer": b"\xc1"}, "no msgpack map"),
        ({"optimizer": msgpack.packb({"optimizer": "sgd", "lr": 1.0})}, "needs the field"),
        ({"optimizer": msgpack.packb({"optimizer": "sgd", "code": "x"})}, "no field 'code'"),
        ({"count": 0}, "at least one element"),
        ({"shard": 0}, "at least one element"),
        ({"partitions": 2, "partition": 2}, "partition 2 of 2"),
        ({"mode": "ssp"}, "needs a bound"),
        ({"mode": "step", "bound": 4, "workers": 2, "quorum": 3}, "a quorum of 3 of 2"),
        ({"mode": "step", "workers": 2, "quorum": 2}, "needs a bound from 1 on"),
        ({"count": 1 << 38, "shard": 1 << 20}, "needs"),
    ],
)
def test_a_table_that_cannot_be_is_refused(fields: dict[str, object], text: str) -> None:
    lane = SimLane()
    worker = TableWorker(lane, 0)
    before = lane.snapshot()["reserved_bytes"]
    answer = worker.table(describe(**fields))
    assert answer.code and text in answer.message
    assert lane.snapshot()["reserved_bytes"] == before and worker.session.closed is None


def test_a_table_larger_than_the_lane_names_the_bytes() -> None:
    lane = SimLane(budget=32 << 20)
    worker = TableWorker(lane, 0)
    adam = Adam(0.1, convention="torch")
    answer = worker.table(describe(adam, count=1 << 22, shard=1 << 18))
    assert answer.code == ErrorCode.QUOTA
    assert "table 'net' needs 50,364,416 bytes" in answer.message
    assert "raise --memory" in answer.message


@pytest.mark.parametrize("what", ["length", "shard", "table", "array", "early"])
def test_frames_that_fit_no_shard_end_the_connection(what: str) -> None:
    lane = SimLane()
    worker = table_of(lane) if what != "early" else TableWorker(lane, 0)
    if what == "length":
        worker.push(0, ONES[:15], 1)
    elif what == "shard":
        worker.push(3, ONES[:16], 1)
    elif what == "table":
        worker.description = describe(count=40)
        worker.description = replace(worker.description, name="other")
        worker.push(0, ONES[:16], 1)
    elif what == "array":
        worker.push(0, ONES[:16], 0, flags=int(Flag.VALUES), root=2)
    else:
        worker.table()
        worker.push(0, ONES[:16], 1)
    error = worker.error()
    assert error is not None
    assert not [each for each in lane.held if not each.freed] or what != "early"


def test_a_reader_pulls_and_may_change_nothing() -> None:
    lane = SimLane()
    worker = table_of(lane)
    worker.push_all(ONES, 1)
    reader = TableWorker(lane, -1)
    assert np.array_equal(reader.pull_all(), -ONES)
    reader.push(0, ONES[:16], 1)
    error = reader.error()
    assert error is not None and "a reader sent an update" in error.message


def test_a_learning_rate_holds_from_its_number_on() -> None:
    worker = table_of(SimLane())
    worker.call(TableCall("rate", name="net", rate=0.5, number=2))
    assert worker.notices("rate")[0].rate == 0.5
    worker.push_all(ONES, 1)
    worker.call(TableCall("rate", name="net", rate=0.25, number=2))  # a repeat
    worker.push_all(ONES, 2, 1)
    assert np.array_equal(worker.pull_all(), -ONES)


def test_a_learning_rate_changes_in_the_middle_of_a_push() -> None:
    worker = table_of(SimLane())
    first, *others = worker.shards()
    worker.call(TableCall("rate", name="net", rate=0.5, number=1))
    worker.push(0, ONES[first], 1)
    worker.call(TableCall("rate", name="net", rate=0.25, number=2))
    for number, place in enumerate(others, 1):
        worker.push(number, ONES[place], 1)
    expected = -0.25 * ONES
    expected[first] = -0.5
    assert np.array_equal(worker.pull_all(), expected)


def test_restored_slots_and_versions() -> None:
    lane = SimLane()
    worker = TableWorker(lane, 0)
    momentum = SGD(1.0, convention="torch", momentum=0.5)
    worker.table(describe(momentum))
    worker.values(ONES * 8, root=1)
    worker.values(ONES, version=7)
    worker.take(MessageKind.RECEIPT)
    worker.push_all(ONES, 1, base=7)
    assert [each[3] for each in outcomes(worker)] == [8] * 3
    assert np.array_equal(worker.pull_all(), ONES - (0.5 * 8 + 1))


def test_a_dropped_table_gives_its_memory_back() -> None:
    lane = SimLane()
    worker = TableWorker(lane, 0)
    before = lane.snapshot()["reserved_bytes"]
    worker.table()
    worker.values(ZEROS)
    worker.call(TableCall("drop", name="net"))
    assert worker.notices("evicted")[-1].name == "net"
    assert not lane.held and lane.snapshot()["reserved_bytes"] == before
    worker.push(0, ONES[:16], 1)  # it was on its way
    assert worker.session.closed is None and not lane.held


def test_the_end_of_all_connections_keeps_the_tables() -> None:
    lane = SimLane()
    worker = table_of(lane)
    worker.push_all(ONES, 1)
    worker.lose()
    lane.tick(10)
    other = TableWorker(lane, 1)
    assert other.table(worker.description).version == 1
    assert np.array_equal(other.pull_all(), -ONES)


def test_memory_that_fails_loses_no_update() -> None:
    lane = SimLane()
    worker = table_of(lane)

    def inject(what: object) -> None:
        if type(what).__name__ == "Inspect":
            raise InjectedError("no memory")

    lane.inject = inject
    worker.push(0, ONES[:16], 1)
    assert worker.session.closed
    lane.inject = lambda what: None
    again = TableWorker(lane, 0)
    again.table(worker.description)
    again.push_all(ONES, 1)
    assert np.array_equal(again.pull_all(), -ONES)
