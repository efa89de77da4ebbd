"""Tables over real reducers: values, order, refusals."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reducer_client
from reducer.optimizers import SGD, Adagrad, Adam, AdamW, NoOptimizer, Optimizer
from reducer.wire.codes import MAX_WEIGHT
from reducer_client.errors import (
    AuthenticationError,
    ClosedError,
    JoinError,
    MismatchError,
    NumericError,
    QuotaExceededError,
    RoundTimeoutError,
    StateLostError,
)
from reducer_client.tables import SSP, Async, KOfN, ParameterServer, Table
from tests.support import tables
from tests.support.certs import Files
from tests.support.ranks import run_ranks
from tests.support.reducers import Reducers
from tests.support.tables import LEDGER, Arrays, flat, floats, integers, ledger, zeros
from tests.support.wait import wait_until

OPTIMIZERS = [
    NoOptimizer(),
    SGD(0.1, convention="torch"),
    SGD(0.1, convention="keras", momentum=0.9, nesterov=True, weight_decay=0.01),
    Adagrad(0.1, convention="tf"),
    Adam(0.01, convention="torch", weight_decay=0.1),
    AdamW(0.01, convention="keras"),
]
Connect = Callable[..., ParameterServer]


@pytest.fixture(scope="module")
def addresses() -> Iterator[list[str]]:
    with reducer_client.local_reducers(2, lanes=2) as started:
        yield started


@pytest.fixture
def connect(addresses: list[str], job: str) -> Iterator[Connect]:
    """Connects a worker, which is closed after the test."""
    with ExitStack() as stack:

        def make(worker: int = 0, workers: int | None = None, **options: Any) -> ParameterServer:
            if not options.get("reader"):
                options |= {"worker": worker, "workers": workers or worker + 1}
            options = {"timeout": 20.0, "job": job, **options}
            return stack.enter_context(
                reducer_client.parameter_server(options.pop("addresses", addresses), **options)
            )

        yield make


def values(table: Table) -> np.ndarray[Any, Any]:
    return flat(table.pull())


# --- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: f"{o.NAME}-{o.slots!r:.12}")
def test_a_table_has_the_bits_of_the_oracle(
    connect: Connect, optimizer: Optimizer, mode: Any
) -> None:
    first, gradients = floats(1), [floats(seed) for seed in range(2, 8)]
    table = connect().table("net", first, optimizer=optimizer, mode=mode)
    rates: list[float | None] = [None] * 3 + [0.5] * 3
    if isinstance(optimizer, NoOptimizer):
        rates = [None] * 6
    assert np.array_equal(values(table), flat(first))
    for number, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), 1):
        if rate is not None and table.lr != rate:
            table.lr = rate
        push = table.push(gradient)
        got = table.pull()
        assert push.wait().outcome == "applied" and push.wait().version == number
    expected = tables.stepped(optimizer, first, zip(gradients, rates, strict=True))
    assert flat(got).tobytes() == expected.tobytes()
    assert table.version == table.step == 6 and table.counts.applied == 6


def test_pushes_and_pulls_keep_their_order_without_waiting(connect: Connect) -> None:
    table = connect().table("net", zeros(), optimizer=LEDGER)
    gradients = [integers(seed) for seed in range(20)]
    for number, gradient in enumerate(gradients, 1):
        table.push(gradient)
        assert np.array_equal(values(table), ledger(zeros(), gradients[:number]))
    assert table.staleness.greatest == 0


def test_arrays_may_change_after_a_push_and_need_no_copy_without_one(connect: Connect) -> None:
    table = connect().table("net", zeros(), optimizer=LEDGER)
    gradient = integers(1)
    push = table.push(gradient)
    for array in gradient.values():
        array += 5
    push.wait()
    assert np.array_equal(values(table), ledger(zeros(), [integers(1)]))
    views = table.pull()  # lie behind each other
    table.push(views, copy=False).wait()  # p - p
    assert np.array_equal(values(table), np.zeros_like(flat(zeros())))


def test_out_is_written_wherever_it_lies(connect: Connect) -> None:
    table = connect().table("net", integers(1), optimizer=LEDGER)
    apart = zeros()
    apart["w"] = np.asfortranarray(apart["w"])
    assert table.pull(out=apart)["w"] is apart["w"]
    together = table.pull()
    for array in together.values():
        array[...] = 7
    table.pull(out=together)
    assert np.array_equal(flat(apart), flat(integers(1)))
    assert np.array_equal(flat(together), flat(integers(1)))


def test_first_values_are_those_of_one_worker(connect: Connect) -> None:
    one, two = connect(0, 2), connect(1, 2)
    waiting = two.table("net", zeros(), optimizer=LEDGER, initial=False)
    with pytest.raises(RoundTimeoutError, match="first values have not come"):
        waiting.pull(timeout=0.1)
    with pytest.raises(RoundTimeoutError, match="initial=True"):
        waiting.push(integers(1), timeout=0.1)
    one.table("net", integers(3), optimizer=LEDGER)
    assert np.array_equal(values(waiting), flat(integers(3)))
    waiting.push(integers(1)).wait()


def test_a_table_can_be_attached_to_listed_and_dropped(connect: Connect) -> None:
    one = connect()
    made = one.table("net", integers(3), optimizer=LEDGER, mode=Async(staleness=7))
    other, reader = connect(1).attach("net"), connect(reader=True).attach("net")
    assert (other.shapes, other.optimizer, other.mode) == (tables.SHAPES, LEDGER, made.mode)
    other.push(integers(1)).wait()
    assert np.array_equal(values(reader), values(made))
    with pytest.raises(ValueError, match="reader may only pull"):
        reader.push(integers(1))
    (info,) = one.tables()
    assert (info.name, info.version, info.ready, info.lr) == ("net", 1, True, None)
    assert info.shapes == tables.SHAPES and info.bytes >= 4 * flat(zeros()).size
    one.drop("net")
    assert one.tables() == []
    for gone in (made, other):
        with pytest.raises((ClosedError, StateLostError), match="dropped"):
            wait_until(lambda table=gone: table.push(integers(1)).wait() is None, 5)
    with pytest.raises(ValueError, match="no such table"):
        one.drop("net")
    assert np.array_equal(values(one.table("net", zeros(), optimizer=LEDGER)), flat(zeros()))


# --- several workers -----------------------------------------------------------------------------


def _push_all(table: Table, seeds: range) -> None:
    pushes = [table.push(integers(seed)) for seed in seeds]
    assert all(push.wait().outcome == "applied" for push in pushes)


def test_workers_in_threads_lose_nothing(connect: Connect) -> None:
    joined = [connect(worker, 3) for worker in range(3)]
    made = [ps.table("net", zeros(), optimizer=LEDGER) for ps in joined]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(_push_all, made, [range(30), range(30, 60), range(60, 90)]))
    expected = ledger(zeros(), map(integers, range(90)))
    for table in made:
        assert np.array_equal(values(table), expected)
    assert sum(table.counts.applied for table in made) == 90


def _worker_of_steps(rank: int, world: int, addresses: list[str], job: str) -> bytes:
    with reducer_client.parameter_server(addresses, job=job, worker=rank, workers=world) as ps:
        table = ps.table(
            "net", zeros(), optimizer=SGD(float(world), convention="torch"), mode="sync"
        )
        for step in range(10):
            push = table.push(integers(step * world + rank))
            got = table.pull()
            assert push.wait().version == step + 1
        return flat(got).tobytes()


def test_processes_take_common_steps(addresses: list[str], job: str) -> None:
    found = run_ranks(3, _worker_of_steps, addresses, job)
    expected = ledger(zeros(), map(integers, range(30)))
    assert found == [expected.tobytes()] * 3


def test_a_step_takes_the_first_workers_and_the_late_one_goes_on(connect: Connect) -> None:
    """With k = 2 of 3, one worker that is late in each step is dropped, and sees the versions."""
    optimizer = SGD(2.0, convention="torch")
    made = [
        connect(worker, 3).table("net", zeros(), optimizer=optimizer, mode=KOfN(2, bound=100))
        for worker in range(3)
    ]
    for step in range(1, 6):
        pushes = [table.push(integers(step)) for table in made[:2]]
        assert [push.wait().outcome for push in pushes] == ["applied"] * 2
    late = made[2].push(integers(99)).wait()
    assert (late.outcome, late.version) == ("dropped", 5)
    assert np.array_equal(values(made[2]), ledger(zeros(), [integers(s) for s in range(1, 6)] * 2))
    pushes = [table.push(integers(6)) for table in made[1:]]
    assert [push.wait().outcome for push in pushes] == ["applied"] * 2
    assert made[2].counts.dropped == 1 and made[2].step == 6


def test_a_late_gradient_is_carried_into_the_next(connect: Connect) -> None:
    optimizer = SGD(3.0, convention="torch")
    mode = KOfN(1, late="carry", bound=100)
    one, two = (
        connect(worker, 2).table("net", zeros(), optimizer=optimizer, mode=mode)
        for worker in range(2)
    )
    one.push(integers(1)).wait()
    assert two.push(integers(2)).wait().outcome == "carried"
    two.pull()
    receipt = two.push(integers(3)).wait()
    assert (receipt.outcome, receipt.weight) == ("applied", 2)
    # Step 1: 3 * g1. Step 2: 3 * (g2 + g3) / 2.
    mean = (flat(integers(2)) + flat(integers(3))) / np.float32(2)
    expected = flat(zeros()) - np.float32(3) * flat(integers(1)) - np.float32(3) * mean
    assert np.array_equal(values(two), expected)


def test_carried_weights_have_a_limit(connect: Connect) -> None:
    """A worker that comes back is late for steps that the bound does not count."""
    most = MAX_WEIGHT // 16
    one, two = (connect(worker, 2) for worker in range(2))
    known: dict[str, Any] = {"optimizer": NoOptimizer(), "mode": KOfN(1, "carry", bound=1)}
    table = one.table("net", zeros(), **known)
    two.table("net", zeros(), **known)
    two.close()
    for _ in range(20):
        assert table.push(integers(1)).wait().outcome == "applied"
    late = connect(1, 2).table("net", zeros(), **known)
    receipts = [late.push(integers(2), weight=most).wait() for _ in range(17)]
    assert [each.outcome for each in receipts] == [*["carried"] * 15, "dropped", "carried"]
    assert [each.weight for each in receipts] == [most * n for n in range(1, 17)] + [most]
    late.pull()
    receipt = late.push(integers(3)).wait()
    assert (receipt.outcome, receipt.weight) == ("applied", most + 1)
    many = connect(2).table("many", zeros(), **{**known, "mode": KOfN(1, "carry", bound=99)})
    with pytest.raises(ValueError, match="from 1 to 10,485: a push may carry 99 late ones"):
        many.push(integers(1), weight=10_486)


def test_a_table_goes_on_from_a_version(connect: Connect) -> None:
    ps = connect()
    known: dict[str, Any] = {"optimizer": LEDGER, "mode": Async(staleness=0)}
    assert ps.table("net", zeros(), **known, version=5).push(integers(1)).wait().version == 6
    wrong: list[tuple[Any, type[Exception]]] = [
        (-1, ValueError), (1 << 62, ValueError), (2.0, TypeError), (True, TypeError),
    ]  # fmt: skip
    for version, kind in wrong:
        with pytest.raises(kind, match=rf"table 'other': version={version}.*expected an int"):
            ps.table("other", zeros(), **known, version=version)
    assert ps.table("other", zeros(), **known).version == 0


def test_a_checkpoint_brings_no_values_that_never_were(
    connect: Connect, job: str, tmp_path: Path
) -> None:
    known: dict[str, Any] = {"optimizer": NoOptimizer(4), "mode": KOfN(1)}
    ps = connect()
    ps.table("net", zeros(), **known, version=7).push(integers(1)).wait()
    ps.save(tmp_path)
    table = connect(job=f"{job}-2").load(tmp_path)["net"]
    assert np.array_equal(flat(table.pull_version(8)), flat(integers(1)))
    assert np.array_equal(flat(table.pull_version(7)), flat(zeros()))
    for version, text in ((6, "has no version 6"), (5, "has no version 5"), (4, "any more")):
        with pytest.raises(StateLostError, match=text):
            table.pull_version(version)
    table.push(integers(2)).wait()
    assert np.array_equal(flat(table.pull_version(7)), flat(zeros()))


def test_a_pull_of_ssp_waits_for_the_slowest_worker(connect: Connect) -> None:
    fast, slow = (
        connect(worker, 2).table("net", zeros(), optimizer=LEDGER, mode=SSP(2))
        for worker in range(2)
    )
    for _ in range(2):
        fast.push(integers(1)).wait()
        fast.clock()
        fast.pull()
    assert fast.clock() == 3
    with pytest.raises(RoundTimeoutError, match=r"2 clocks behind this one \(clock 3\)"):
        fast.pull(timeout=0.2)
    slow.push(integers(5))
    with ThreadPoolExecutor(1) as pool:
        pulled = pool.submit(values, fast)
        slow.clock()
        expected = ledger(zeros(), [integers(1), integers(1), integers(5)])
        assert np.array_equal(pulled.result(10), expected)


def test_a_stale_push_is_dropped_and_told(connect: Connect) -> None:
    one, two = (
        connect(worker).table("net", zeros(), optimizer=LEDGER, mode=Async(staleness=1))
        for worker in range(2)
    )
    for seed in (1, 2):
        one.push(integers(seed)).wait()
        one.pull()
    receipt = two.push(integers(3)).wait()
    assert (receipt.outcome, receipt.staleness) == ("dropped", 2)
    assert two.counts.dropped == 1 and two.staleness.last == 2
    two.pull()
    assert two.push(integers(4)).wait().outcome == "applied"
    assert np.array_equal(values(one), ledger(zeros(), map(integers, (1, 2, 4))))


def test_a_push_can_be_awaited_and_calls_back(connect: Connect) -> None:
    table = connect().table("net", zeros(), optimizer=LEDGER)
    called = threading.Event()
    table.push(integers(1)).add_done_callback(lambda push: called.set())

    async def run() -> int:
        return (await table.push(integers(2))).version

    assert asyncio.run(run()) == 2
    assert called.wait(10)


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"optimizer": SGD(0.5, convention="torch")}, "optimizer"),
        ({"mode": SSP(3)}, "mode"),
        ({"mode": Async(staleness=3)}, "bound"),
        ({"tensors": {"w": np.zeros((64, 100), np.float32)}}, "count"),
        ({"tensors": integers(1)}, "first values"),
    ],
)
def test_another_description_is_refused_on_the_worker_that_brings_it(
    connect: Connect, change: dict[str, Any], text: str
) -> None:
    first = connect().table("net", zeros(), optimizer=LEDGER)
    other = connect(1)
    arguments = {"tensors": zeros(), "optimizer": LEDGER, **change}
    with pytest.raises(MismatchError, match=f"(?s)worker 1.*{text}.*worker 0"):
        other.table("net", arguments.pop("tensors"), **arguments)
    assert other.table("net", zeros(), optimizer=LEDGER).push(integers(1)).wait().version == 1
    assert np.array_equal(values(first), ledger(zeros(), [integers(1)]))


def test_a_gradient_that_is_not_finite_changes_nothing(connect: Connect) -> None:
    table = connect(3, 4).table("net", zeros(), optimizer=LEDGER)
    for bad in (np.nan, np.inf, -(2.0**63)):
        gradient = integers(1)
        gradient["v"][17] = bad
        with pytest.raises(
            NumericError, match=r"'net': the gradient of worker 3 .* in 'v'"
        ) as told:
            table.push(gradient)
        assert told.value.rank == 3
    assert table.counts.refused == 3
    assert np.array_equal(values(table), flat(zeros()))
    assert table.push(integers(1)).wait().version == 1


def test_a_table_that_nobody_made_is_named(connect: Connect) -> None:
    ps = connect()
    ps.table("net", zeros(), optimizer=LEDGER)
    with pytest.raises(RoundTimeoutError, match=r"attach\('nte'\).*'net'"):
        connect(1).attach("nte", timeout=0.2)


def test_a_table_beyond_the_memory_is_refused(connect: Connect) -> None:
    ps = connect()
    big = {"w": np.zeros((1 << 29,), np.float32)}  # 4 GiB with its slot, in reducers of 1 GiB
    with pytest.raises(QuotaExceededError, match="table 'big'"):
        ps.table("big", big, optimizer=SGD(1.0, convention="torch", momentum=0.9), initial=False)
    assert np.array_equal(values(ps.table("net", zeros(), optimizer=LEDGER)), flat(zeros()))


def test_two_objects_of_one_table_are_refused(connect: Connect) -> None:
    ps = connect()
    ps.table("net", zeros(), optimizer=LEDGER)
    with pytest.raises(ValueError, match="has it already"):
        ps.table("net", zeros(), optimizer=LEDGER)


def test_a_worker_that_starts_again_takes_the_place_of_the_first(connect: Connect) -> None:
    first = connect(timeout=10.0).table("net", zeros(), optimizer=LEDGER)
    first.push(integers(1)).wait()
    first.lr = 0.5
    first.push(integers(1)).wait()
    second = connect().table("net", zeros(), optimizer=LEDGER, initial=False)
    with pytest.raises(JoinError, match="another process is worker 0"):
        wait_until(lambda: first.push(integers(9)).wait() is None, 10)
    assert second.lr == 0.5
    second.lr = 0.25  # counts on from the changes of the first
    second.pull()
    assert second.push(integers(2)).wait().outcome == "applied"
    assert second.lr == 0.25 == connect(reader=True).tables()[0].lr


def test_an_address_that_comes_twice_is_refused(addresses: list[str], connect: Connect) -> None:
    with pytest.raises(JoinError, match="names a reducer twice"):
        connect(addresses=[addresses[0], addresses[0].replace("127.0.0.1", "localhost")])


def test_arrays_of_wrong_shapes_are_refused_before_anything_is_sent(connect: Connect) -> None:
    table = connect().table("net", zeros(), optimizer=LEDGER)
    gradient: Arrays = {**integers(1), "b": np.zeros(2, np.float32)}
    with pytest.raises(ValueError, match=r"'b': expected shape \(\), got \(2,\)"):
        table.push(gradient)
    read_only = zeros()
    read_only["w"].flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        table.pull(out=read_only)
    assert table.version == 0


# --- ends ----------------------------------------------------------------------------------------


def test_a_closed_parameter_server_has_the_receipts_of_its_pushes(connect: Connect) -> None:
    ps = connect()
    table = ps.table("net", zeros(), optimizer=LEDGER)
    pushes = [table.push(integers(seed)) for seed in range(6)]
    ps.close()
    ps.close()
    assert [push.wait().outcome for push in pushes] == ["applied"] * 6
    with pytest.raises(ClosedError, match="is closed"):
        table.push(integers(1))
    with pytest.raises(ClosedError, match="is closed"):
        ps.tables()


def test_pushes_that_nobody_answers_fail_when_the_parameter_server_closes(
    connect: Connect,
) -> None:
    ps = connect(0, 2)
    table = ps.table("net", zeros(), optimizer=LEDGER, mode="sync")
    push = table.push(integers(1))
    ps.close(timeout=0.1)
    with pytest.raises(ClosedError, match=r"outcome of a push .* is unknown"):
        push.wait()


def test_a_worker_that_leaves_holds_nobody_up(connect: Connect) -> None:
    leaver, stayer = connect(0, 2), connect(1, 2)
    tables_of = [ps.table("net", zeros(), optimizer=LEDGER, mode="sync") for ps in (leaver, stayer)]
    pushes = [table.push(integers(1)) for table in tables_of]
    assert [push.wait().outcome for push in pushes] == ["applied"] * 2
    leaver.close()
    assert tables_of[1].push(integers(2)).wait().outcome == "applied"
    assert np.array_equal(values(tables_of[1]), ledger(zeros(), map(integers, (1, 2))))


def test_an_interrupt_ends_a_wait_and_no_more(connect: Connect) -> None:
    waiting = connect(0, 2).table("net", zeros(), optimizer=LEDGER, mode="sync")
    push = waiting.push(integers(1))
    for wait in (push.wait, waiting.pull):
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            wait()
        timer.join()
    other = connect(1, 2).table("net", zeros(), optimizer=LEDGER, mode="sync")
    other.push(integers(1))
    assert push.wait().outcome == "applied"
    assert np.array_equal(values(waiting), ledger(zeros(), [integers(1)]))


def test_a_forked_child_never_touches_the_parents_tables(connect: Connect) -> None:
    ps = connect()
    table = ps.table("net", zeros(), optimizer=LEDGER)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:  # the child
        found = []
        for call in (lambda: table.push(integers(1)), table.pull, ps.tables):
            try:
                call()
            except ClosedError as error:
                found.append(error.reason)
        ps.close()
        os.write(writing, " ".join(found).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        assert answer.read() == "forked forked forked"
    os.waitpid(child, 0)
    assert table.push(integers(1)).wait().version == 1


# --- security ------------------------------------------------------------------------------------


def test_tables_over_psk(key_file: str, job: str) -> None:
    with reducer_client.local_reducers(1, lanes=2, key_file=key_file) as started:
        options: dict[str, Any] = {"job": job, "worker": 0}
        with reducer_client.parameter_server(started, key_file=key_file, **options) as ps:
            table = ps.table("net", zeros(), optimizer=LEDGER)
            table.push(integers(1)).wait()
            assert np.array_equal(values(table), ledger(zeros(), [integers(1)]))
        with pytest.raises(AuthenticationError):
            reducer_client.parameter_server(started, key=b"k" * 32, **options)


def test_tables_over_tls(certs: Files, job: str) -> None:
    with Reducers(1, *certs.flags, lanes=2) as started:
        options: dict[str, Any] = {"job": job, "worker": 0}
        with reducer_client.parameter_server(started.addresses, **options, **certs.arguments) as ps:
            big = {"w": np.zeros((1_000_003,), np.float32)}
            table = ps.table("net", big, optimizer=LEDGER)
            table.push({"w": np.ones((1_000_003,), np.float32)}).wait()
            assert np.all(table.pull()["w"] == -1)
