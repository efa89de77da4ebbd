"""Tables while connections are cut, reducers die, and frames are damaged."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import reducer_client
from reducer_client.errors import ReducerUnavailableError, StateLostError
from reducer_client.tables import KOfN, Receipt, Table
from tests.support.harms import Storm
from tests.support.proxy import Proxies
from tests.support.reducers import Reducers
from tests.support.tables import LEDGER, flat, integers, ledger, step_ledger, zeros

HARMS = ("cut", "flip", "end", "delay", "bytewise")
PUSHES = 40


@pytest.fixture(scope="module")
def addresses() -> Iterator[list[str]]:
    with reducer_client.local_reducers(2, lanes=2) as started:
        yield started


def _in_a_storm(
    addresses: list[str],
    job: str,
    workers: int,
    mode: Any,
    work: Callable[[Table, int], list[Receipt]],
) -> tuple[list[list[Receipt]], np.ndarray[Any, Any]]:
    """Each worker does its work while one frame in a hundred is harmed.

    Returns the receipts of each worker, and the parameters at the end.
    """
    storm = Storm(7, 0.01, HARMS)
    with Proxies(addresses, storm, framed=True) as proxies:

        def run(worker: int) -> list[Receipt]:
            with reducer_client.parameter_server(
                proxies.addresses, job=job, worker=worker, workers=workers, timeout=50.0
            ) as ps:
                table = ps.table("net", zeros(), optimizer=LEDGER, mode=mode)
                ready.wait(50)
                storm.active = True
                return work(table, worker)

        ready = threading.Barrier(workers)
        with ThreadPoolExecutor(workers) as pool:
            receipts = list(pool.map(run, range(workers)))
        storm.active = False
    assert storm.done["cut"] > 3
    with reducer_client.parameter_server(addresses, job=job, reader=True) as ps:
        return receipts, flat(ps.attach("net").pull())


def test_each_push_is_applied_once_while_connections_are_cut(
    addresses: list[str], job: str
) -> None:
    def work(table: Table, worker: int) -> list[Receipt]:
        seeds = range(worker * PUSHES, (worker + 1) * PUSHES)
        pushes = []
        for seed in seeds:
            pushes.append(table.push(integers(seed)))
            if seed % 3 == 0:
                table.pull()
        return [push.wait() for push in pushes]

    receipts, parameters = _in_a_storm(addresses, job, 3, "async", work)
    assert all(receipt.outcome == "applied" for each in receipts for receipt in each)
    assert np.array_equal(parameters, ledger(zeros(), map(integers, range(3 * PUSHES))))


@pytest.mark.parametrize("mode", ["sync", KOfN(1, late="drop")], ids=str)
def test_each_step_is_the_mean_of_the_applied_pushes_while_connections_are_cut(
    addresses: list[str], job: str, mode: Any
) -> None:
    def work(table: Table, worker: int) -> list[Receipt]:
        receipts = []
        for step in range(PUSHES):
            push = table.push(integers(step * 2 + worker))
            table.pull()
            receipts.append(push.wait())
        return receipts

    receipts, parameters = _in_a_storm(addresses, job, 2, mode, work)
    expected = step_ledger(receipts, lambda worker, number: 2 * number + worker)
    assert np.array_equal(parameters, expected)


def test_a_reducer_that_starts_again_has_lost_its_tables(job: str) -> None:
    with Reducers(2) as started:
        options: dict[str, Any] = {"job": job, "worker": 0, "timeout": 20.0}
        with reducer_client.parameter_server(started.addresses, **options) as ps:
            table = ps.table("net", zeros(), optimizer=LEDGER)
            table.push(integers(1)).wait()
            started.kill(0)
            push = table.push(integers(2))
            started.start(0)
            with pytest.raises(StateLostError, match=r"'net' is lost: .*version 1.*drop\('net'\)"):
                push.wait(2.0)
            with pytest.raises(StateLostError):
                table.pull()
            ps.drop("net")
            again = ps.table("net", integers(3), optimizer=LEDGER)
            assert np.array_equal(flat(again.pull()), flat(integers(3)))


def test_a_reducer_that_does_not_come_back_ends_the_parameter_server(job: str) -> None:
    with (
        Reducers(2) as started,
        reducer_client.parameter_server(
            started.addresses, job=job, worker=0, reducer_wait=1.0
        ) as ps,
    ):
        table = ps.table("net", zeros(), optimizer=LEDGER)
        started.kill(1)
        with pytest.raises(ReducerUnavailableError, match="cannot be reached for 1 s"):
            table.push(integers(1)).wait(10.0)
        with pytest.raises(ReducerUnavailableError):
            ps.tables()


def test_reducers_that_are_not_there_are_named(job: str) -> None:
    with pytest.raises(ReducerUnavailableError, match=r"127\.0\.0\.1:1, lane 0.*refused"):
        reducer_client.parameter_server(["127.0.0.1:1"], job=job, worker=0, connect_timeout=0.3)
