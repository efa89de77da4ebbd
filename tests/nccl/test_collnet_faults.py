"""The CollNet half of the NCCL plugin when ranks, reducers or settings go wrong."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reducer import keyfile
from reducer_tools.nccl import structs
from reducer_tools.nccl.tables import NcclError
from tests.soak import communicators, hush
from tests.support.nccl_job import enter, exchange, meet, run, run_rank, start, values
from tests.support.nccl_tables import CollNet
from tests.support.plugin import NCCL_PLUGIN
from tests.support.ranks import Tell, start_ranks
from tests.support.reducers import Reducers
from tests.support.wait import wait_until


@pytest.fixture(scope="module")
def addresses() -> Iterator[list[str]]:
    with Reducers(2) as started:
        yield started.addresses


def _on_and_on(coll: CollNet, comm: Any, rank: int, world: int, tell: Tell) -> tuple[int, float]:
    """Sum until the parent says stop; returns the number of turns and the longest call."""
    send, receive = np.full(262_144, rank + 1, np.float32), np.empty(262_144, np.float32)
    longest, turns = 0.0, 0
    while True:
        begun = time.perf_counter()
        request = coll.all_reduce(comm, send, receive, "float32", "sum")
        longest = max(longest, time.perf_counter() - begun)
        assert request is not None
        coll.wait(request)
        assert (receive == sum(range(1, world + 1))).all()
        turns += 1
        if turns == 3:
            tell("going")
        if rank == 0 and tell.heard():
            send = np.zeros(1, np.float32)
        stop = np.array([1 if rank or send.size > 1 else 0], np.int32)
        agreed = np.empty_like(stop)
        request = coll.all_reduce(comm, stop, agreed, "int32", "min")
        assert request is not None
        coll.wait(request)
        if agreed[0] == 0:
            return turns, longest


def test_a_reducer_that_is_killed_costs_no_bit_and_no_request() -> None:
    with Reducers(3) as reducers, start(3, reducers.addresses, _on_and_on) as ranks:
        for rank in range(3):
            ranks.receive(rank)
        reducers.kill(1)
        before = reducers.contributions(0)
        wait_until(lambda: reducers.contributions(0) > before + 100, 30)
        ranks.send(0)
        turns = values(ranks.collect(60))
    assert turns[0][0] > 4


def _until_error(coll: CollNet, comm: Any, rank: int, world: int, tell: Tell) -> tuple[int, float]:
    tell("going")
    send, receive = np.ones(262_144, np.float32), np.empty(262_144, np.float32)
    while True:
        begun = time.monotonic()
        try:
            request = coll.all_reduce(comm, send, receive, "float32", "sum")
            assert request is not None
            coll.wait(request)
            assert (receive == world).all()  # a request that is done has the sum
            receive[:] = 0
        except NcclError as error:
            text = "\n".join(text for level, text in coll.lines if level == "WARN")
            assert "rank 1" in text, text
            return error.result, time.monotonic() - begun


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_is_killed_or_stopped_is_an_error_on_all_others(
    addresses: list[str], signum: int
) -> None:
    with start(3, addresses, _until_error) as ranks:
        for rank in range(3):
            ranks.receive(rank)
        ranks.kill(1, signum)
        outcomes = [ranks.collect_one(rank) for rank in (0, 2)]
    for outcome in outcomes:
        result, seconds = outcome.value
        assert result == structs.REMOTE_ERROR
        assert seconds < 20


def _stays_away(coll: CollNet, comm: Any, rank: int, world: int, tell: Tell) -> None:
    raise AssertionError("nobody can connect")


def test_ranks_that_do_not_meet_fail_alike(addresses: list[str]) -> None:
    args = (addresses, 12, {"REDUCER_CONNECT_TIMEOUT": "2"}, _stays_away, ())
    with start_ranks(3, run_rank, *args, talk=True) as ranks:
        handles = [ranks.receive(rank) for rank in range(3)]
        for rank in (0, 2):  # rank 1 never connects
            ranks.send(rank, handles)
        outcomes = [ranks.collect_one(rank) for rank in (0, 2)]
    for outcome in outcomes:
        assert isinstance(outcome.error, NcclError) and outcome.error.result == structs.REMOTE_ERROR


def test_ranks_with_other_reducers_fail_alike(addresses: list[str]) -> None:
    with start_ranks(2, _either_way, addresses, addresses[::-1], talk=True) as ranks:
        exchange(ranks, 2)
        outcomes = ranks.collect(30)
    for outcome in outcomes:
        assert isinstance(outcome.error, NcclError)
        assert outcome.error.result == structs.INVALID_USAGE


def _either_way(rank: int, world: int, right: list[str], turned: list[str], tell: Tell) -> None:
    run_rank(rank, world, turned if rank else right, 12, {}, _stays_away, (), tell)


def _closes_early(coll: CollNet, comm: Any, rank: int, world: int, tell: Tell) -> float:
    send, receive = np.ones(1_000_000, np.float32), np.zeros(1_000_000, np.float32)
    if rank == 0:
        assert coll.all_reduce(comm, send, receive, "float32", "sum") is not None
    begun = time.monotonic()
    coll.close(comm)
    return time.monotonic() - begun


def _and_then_no_more(rank: int, world: int, addresses: list[str], tell: Tell) -> float:
    """Like `run_rank`, but `_closes_early` closes the communicator."""
    enter(addresses)
    coll = CollNet(NCCL_PLUGIN, 12)
    coll.init()
    seconds = _closes_early(coll, meet(coll, rank, tell), rank, world, tell)
    coll.finalize()
    return seconds


def test_a_communicator_closes_with_requests_in_flight() -> None:
    with (
        Reducers(1) as reducers,
        start_ranks(2, _and_then_no_more, reducers.addresses, talk=True) as ranks,
    ):
        exchange(ranks, 2)
        assert max(values(ranks.collect(30))) < 10


def _against_a_stopped_reducer(
    coll: CollNet, comm: Any, rank: int, world: int, tell: Tell
) -> float:
    """The longest call while the reducer is stopped; its results are right afterwards."""
    sends = [np.full(500_000, rank + n, np.float32) for n in range(8)]
    receives = [np.empty_like(send) for send in sends]
    tell("ready")
    tell.hear()
    longest, requests = 0.0, []
    for send, receive in zip(sends, receives, strict=True):
        begun = time.perf_counter()
        requests.append(coll.all_reduce(comm, send, receive, "float32", "sum"))
        longest = max(longest, time.perf_counter() - begun)
    until = time.monotonic() + 0.4
    while time.monotonic() < until:
        begun = time.perf_counter()
        assert coll.test(requests[0]) is None
        longest = max(longest, time.perf_counter() - begun)
    tell("waiting")
    for n, request in enumerate(requests):
        assert request is not None
        coll.wait(request)
        assert (receives[n] == sum(r + n for r in range(world))).all()
    return longest


def test_no_call_waits_for_a_reducer_that_stands_still() -> None:
    with (
        Reducers(1) as reducers,
        start(2, reducers.addresses, _against_a_stopped_reducer, REDUCER_SILENCE="30") as ranks,
    ):
        for rank in range(2):
            ranks.receive(rank)
        reducers.freeze(0)
        for rank in range(2):
            ranks.send(rank)
        for rank in range(2):
            ranks.receive(rank)
        reducers.thaw(0)
        longest = values(ranks.collect(60))
    assert max(longest) < 0.1  # a call that blocks would take 0.4 s


def test_communicators_come_and_go_without_a_trace() -> None:
    communicators.run(30, 1, hush)


def _sums_to_six(coll: CollNet, comm: Any, rank: int, world: int, tell: Tell) -> None:
    send, receive = np.full(1000, 3, np.float32), np.empty(1000, np.float32)
    request = coll.all_reduce(comm, send, receive, "float32", "sum")
    assert request is not None
    coll.wait(request)
    assert (receive == 6).all()


def test_a_key_is_proven_and_a_wrong_one_is_refused_alike(tmp_path: Path) -> None:
    right, wrong, shared = tmp_path / "right", tmp_path / "wrong", tmp_path / "shared"
    for path in (right, wrong, shared):
        keyfile.make(str(path))
    shared.chmod(0o644)
    of_job = tmp_path / "job"
    keyfile.make_for_job(str(of_job), "nccl", str(right))
    with Reducers(1, "--key-file", str(right)) as reducers:
        for key in (right, of_job):
            run(2, reducers.addresses, _sums_to_six, REDUCER_KEY_FILE=str(key))
        for key, text in ((wrong, "key"), (shared, "others can read")):
            settings = {"REDUCER_KEY_FILE": str(key), "REDUCER_CONNECT_TIMEOUT": "5"}
            args = (reducers.addresses, 12, settings, _stays_away, ())
            with start_ranks(2, _run_and_quote, *args, talk=True) as ranks:
                exchange(ranks, 2)
                for lines in values(ranks.collect(30)):
                    assert text in lines


def _run_and_quote(rank: int, world: int, addresses: list[str], *rest: Any) -> str:
    """The warnings of a rank that cannot connect."""
    *_, tell = rest
    enter(addresses, **rest[1])
    coll = CollNet(NCCL_PLUGIN, 12)
    coll.init()
    with pytest.raises(NcclError):
        meet(coll, rank, tell)
    return "\n".join(text for level, text in coll.lines if level == "WARN")
