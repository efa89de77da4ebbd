"""Tables with a backup of each partition, while reducers die and come back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest

import reducer_client
from reducer.wire.keys import key_id
from reducer_client.errors import JoinError, StateLostError
from reducer_client.registry.daemon import DaemonRegistry
from reducer_client.tables import ParameterServer, Push, Table
from tests.support.cluster import Daemon
from tests.support.reducers import Reducers
from tests.support.table_places import Places
from tests.support.tables import LEDGER, flat, integers, ledger, zeros
from tests.support.wait import wait_until

SECONDS = 30.0


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a reducer that has the registry, and no tables."""
    path = tmp_path_factory.mktemp("registry") / "file"
    with Daemon("--registry", str(path)) as daemon:
        yield daemon.address


@pytest.fixture
def reducers() -> Iterator[Reducers]:
    """Three reducers that a test may kill."""
    with Reducers(3) as started:
        yield started


@pytest.fixture
def places(reducers: Reducers, registry: str, job: str) -> Iterator[Places]:
    client = DaemonRegistry(registry, job)
    yield Places(client, job, reducers.addresses)
    client.close()


def connect(
    reducers: Reducers, registry: str, job: str, worker: int, **options: Any
) -> ParameterServer:
    return reducer_client.parameter_server(
        reducers.addresses,
        job=job,
        worker=worker,
        replicas=1,
        registry=registry,
        timeout=SECONDS,
        **options,
    )


def push_until(table: Table, worker: int, stop: threading.Event) -> int:
    """Push integers, one after the other; returns how many were applied."""
    pushes: list[Push] = []
    while not stop.is_set():
        pushes.append(table.push(integers(10_000 * worker + len(pushes))))
        if len(pushes) % 4 == 0:
            assert pushes[-4].wait().outcome == "applied"
            table.pull()
    assert {push.wait().outcome for push in pushes} == {"applied"}
    return len(pushes)


def _has_applied(table: Table, pushes: int) -> bool:
    return table.counts.applied >= pushes


def test_no_push_is_lost_or_doubled_while_primaries_die(
    reducers: Reducers, registry: str, job: str, places: Places
) -> None:
    stop = threading.Event()
    with (
        connect(reducers, registry, job, 0) as one,
        connect(reducers, registry, job, 1) as two,
        ThreadPoolExecutor(2) as pool,
    ):
        both = [ps.table("net", zeros(), optimizer=LEDGER) for ps in (one, two)]
        running = [pool.submit(push_until, table, n, stop) for n, table in enumerate(both)]
        try:
            for victim in (0, 1):
                wait_until(places.have_backups, SECONDS, "full backups")
                reducers.kill(victim)
                enough = both[0].counts.applied + 3
                wait_until(partial(_has_applied, both[0], enough), SECONDS)
                reducers.start(victim)
                places.started(victim)
        finally:
            stop.set()
        counts = [each.result(SECONDS) for each in running]
        seeds = [10_000 * n + i for n, count in enumerate(counts) for i in range(count)]
        expected = ledger(zeros(), map(integers, seeds))
        for table in both:
            assert np.array_equal(flat(table.pull()), expected)


def test_steps_go_on_when_their_owner_dies(
    reducers: Reducers, registry: str, job: str, places: Places
) -> None:
    """A worker that does not come back in time is left out of a step, and told so."""
    with (
        connect(reducers, registry, job, 0, workers=2) as one,
        connect(reducers, registry, job, 1, workers=2) as two,
    ):
        both = [ps.table("net", zeros(), optimizer=LEDGER, mode="sync") for ps in (one, two)]
        total = np.zeros_like(flat(zeros()))
        for step in range(20):
            if step == 5:
                wait_until(places.have_backups, SECONDS, "full backups")
                reducers.kill(key_id("net") % 3)
            pushes = [table.push(integers(2 * step + n)) for n, table in enumerate(both)]
            for table in both:
                table.pull()
            outcomes = [push.wait().outcome for push in pushes]
            members = [2 * step + n for n, each in enumerate(outcomes) if each == "applied"]
            total -= sum(map(flat, map(integers, members))) / np.float32(len(members))
        assert np.array_equal(flat(both[0].pull()), total)
        assert all(table.counts.applied > 15 for table in both)


def test_a_primary_that_is_silent_is_replaced_and_takes_no_more_updates(
    reducers: Reducers, registry: str, job: str, places: Places
) -> None:
    with connect(reducers, registry, job, 0) as ps:
        table = ps.table("net", zeros(), optimizer=LEDGER)
        table.push(integers(0)).wait()
        reducers.freeze(0)
        try:
            assert table.push(integers(1)).wait().outcome == "applied"
            assert all(entry.primary.slot != 0 for entry in places.entries)
        finally:
            reducers.thaw(0)
        wait_until(places.have_backups, SECONDS, "full backups")
        table.push(integers(2)).wait()
        assert np.array_equal(flat(table.pull()), ledger(zeros(), map(integers, range(3))))


def test_a_table_whose_primary_and_backup_die_is_lost(
    reducers: Reducers, registry: str, job: str
) -> None:
    with connect(reducers, registry, job, 0) as ps:
        table = ps.table("net", zeros(), optimizer=LEDGER)
        table.push(integers(1)).wait()
        for victim in (0, 1):
            reducers.kill(victim)
        for victim in (0, 1):
            reducers.start(victim)
        with pytest.raises(StateLostError, match="Begin a new run"):
            while True:
                table.push(integers(1)).wait()


def test_another_list_of_reducers_is_refused(reducers: Reducers, registry: str, job: str) -> None:
    others = reducers.addresses[::-1]
    with (
        connect(reducers, registry, job, 0),
        pytest.raises(JoinError, match="the same list on all workers"),
    ):
        reducer_client.parameter_server(others, job=job, worker=1, replicas=1, registry=registry)


def test_backups_need_two_reducers(job: str) -> None:
    with pytest.raises(ValueError, match="replicas=1 with one reducer"):
        reducer_client.parameter_server("127.0.0.1:1", job=job, worker=0, replicas=1)
