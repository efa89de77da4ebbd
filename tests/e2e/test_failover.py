"""Reducers that die, freeze and restart under a job: no step lost, the same bits, no hang.

The whole table of faults and tests: tests/faults/README.md.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from reducer_client import PeerLostError, ReducerUnavailableError
from tests.support.certs import Files
from tests.support.ranks import Tell, join, start_ranks
from tests.support.reducers import Reducers

WORKERS = 4
COUNT = 300_007  # elements: several chunks for each reducer
KEYS = ("a", "b", "c")


def values(rank: int, turn: int) -> np.ndarray:
    rng = np.random.default_rng((rank, turn))
    return rng.standard_normal(COUNT, dtype=np.float32)


def oracle(turn: int, world: int) -> np.ndarray:
    """The sum in rank order, by NumPy."""
    total = values(0, turn)
    for rank in range(1, world):
        total += values(rank, turn)
    return total


def _train(rank: int, world: int, addresses: list[str], job: str, tell: Tell) -> dict[str, Any]:
    """All-reduce three keys a turn until rank 0 hears "stop". Rank 0 checks every result; all ranks
    return a digest of the results."""
    slowest, turn, wrong = 0.0, 0, 0
    digest = hashlib.blake2b()
    with join(rank, world, addresses, job) as group:
        go_on = True
        while go_on:
            began = time.monotonic()
            mine = values(rank, turn)
            works = [group.all_reduce(mine.copy(), key=key) for key in KEYS]
            results = [work.wait(60) for work in works]
            slowest = max(slowest, time.monotonic() - began)
            for result in results:
                digest.update(result.data)
            if rank == 0:
                expected = oracle(turn, world).tobytes()
                wrong += sum(result.tobytes() != expected for result in results)
            turn += 1
            stop = np.zeros(1, np.int32)
            if rank == 0:
                tell(turn)
                stop[0] = tell.hear() == "stop"
            go_on = not group.broadcast(stop, root=0, key="stop").wait(60)[0]
    return {"turns": turn, "wrong": wrong, "slowest": slowest, "digest": digest.hexdigest()}


class Training:
    """Ranks that all-reduce, driven by `turn`, while the test injects faults."""

    def __init__(self, reducers: Reducers, job: str, world: int = WORKERS) -> None:
        self.ranks = start_ranks(world, _train, reducers.addresses, job, talk=True)
        self.turns = 0

    def turn(self, count: int = 1) -> None:
        for _ in range(count):
            self.turns = self.ranks.receive(0, 60)
            self.ranks.send(0, "on")

    def finish(self) -> list[dict[str, Any]]:
        self.turns = self.ranks.receive(0, 60)
        self.ranks.send(0, "stop")
        outcomes = self.ranks.collect(60)
        for outcome in outcomes:
            assert outcome.error is None and outcome.reported, outcome
            assert outcome.value["wrong"] == 0, outcome
            assert outcome.value["turns"] == self.turns
            assert outcome.value["digest"] == outcomes[0].value["digest"]
        return [outcome.value for outcome in outcomes]


@pytest.fixture
def reducers() -> Iterator[Reducers]:
    with Reducers(3) as started:
        yield started


def test_a_killed_reducer_costs_no_step_and_comes_back(reducers: Reducers, job: str) -> None:
    training = Training(reducers, job)
    with training.ranks:
        training.turn(3)
        reducers.kill(1)
        training.turn(5)
        reducers.start(1)
        deadline = time.monotonic() + 20
        while not reducers.contributions(1):
            assert time.monotonic() < deadline, "the reducer was not taken in again"
            training.turn()
        training.finish()


@pytest.mark.parametrize("mode", [pytest.param("psk", marks=pytest.mark.long), "tls"])
def test_with_a_proof_kills_cost_no_step_either(
    job: str, mode: str, key_file: str, certs: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags, environment = certs.flags, certs.environment
    if mode == "psk":
        flags, environment = ("--key-file", key_file), {"REDUCER_KEY_FILE": key_file}
    for name, value in environment.items():  # for the ranks
        monkeypatch.setenv(name, value)
    with Reducers(2, *flags) as reducers:
        training = Training(reducers, job, world=2)
        with training.ranks:
            for victim in (0, 1):
                training.turn(3)
                reducers.kill(victim)
                training.turn(2)
                reducers.start(victim)
            training.turn(3)
            training.finish()


def test_in_tls_a_reducer_may_freeze_and_another_drain(
    job: str, certs: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in certs.environment.items():
        monkeypatch.setenv(name, value)
    with Reducers(3, *certs.flags) as reducers:
        training = Training(reducers, job, world=2)
        with training.ranks:
            training.turn(2)
            reducers.freeze(2)
            training.turn(3)
            assert reducers.terminate(1) == 0
            training.turn(2)
            reducers.thaw(2)
            training.turn(5)
            for value in training.finish():
                assert value["slowest"] < 10


def test_all_reducers_may_restart_at_once(job: str) -> None:
    with Reducers(2) as reducers:
        training = Training(reducers, job)
        with training.ranks:
            training.turn(2)
            for index in range(2):
                reducers.kill(index)
            for index in range(2):
                reducers.start(index)
            training.turn(3)
            training.finish()


def test_a_frozen_reducer_is_left_behind_and_harms_nothing_when_it_wakes(
    reducers: Reducers, job: str
) -> None:
    training = Training(reducers, job)
    with training.ranks:
        training.turn(2)
        reducers.freeze(2)
        training.turn(3)
        reducers.thaw(2)
        training.turn(10)
        for value in training.finish():
            assert value["slowest"] < 10


@pytest.mark.parametrize(("count", "lanes"), [(2, 1), (1, 2)])
def test_killed_lanes_cost_no_step(job: str, count: int, lanes: int) -> None:
    """The daemons keep running, and restart their lanes."""
    with Reducers(count, lanes=lanes) as reducers:
        training = Training(reducers, job, world=2)
        with training.ranks:
            for index in range(count):
                for lane in range(lanes):
                    training.turn(3)
                    reducers.kill_lane(index, lane)
                    training.turn(3)
            for value in training.finish():
                assert value["slowest"] < 10
        for index in range(count):
            daemon = reducers.daemon(index)
            assert daemon.stats()["restarts"] == {str(lane): 1 for lane in range(lanes)}
            assert reducers.terminate(index) == 0


def test_a_drained_reducer_costs_no_step(reducers: Reducers, job: str) -> None:
    training = Training(reducers, job)
    with training.ranks:
        for index in (0, 2):
            training.turn(2)
            assert reducers.terminate(index) == 0
            training.turn(2)
            reducers.start(index)
            training.turn(2)
        training.finish()


def test_the_only_reducer_may_restart(job: str) -> None:
    with Reducers(1) as reducers:
        training = Training(reducers, job, world=2)
        with training.ranks:
            training.turn(2)
            reducers.kill(0)
            reducers.start(0)
            training.turn(2)
            training.finish()


def _wait_in_vain(rank: int, world: int, addresses: list[str], job: str, tell: Tell) -> float:
    with join(rank, world, addresses, job, reducer_wait=3.0) as group:
        group.barrier()
        tell("ready")
        tell.hear()
        began = time.monotonic()
        with pytest.raises(ReducerUnavailableError) as caught:
            group.all_reduce(np.ones(COUNT)).wait(60)
        assert any(address in str(caught.value) for address in addresses)
        return time.monotonic() - began


def test_without_any_reducer_the_job_ends_after_the_wait(job: str) -> None:
    with (
        Reducers(2) as reducers,
        start_ranks(2, _wait_in_vain, reducers.addresses, job, talk=True) as ranks,
    ):
        for rank in range(2):
            ranks.receive(rank)
        for index in range(2):
            reducers.kill(index)
        for rank in range(2):
            ranks.send(rank)
        for outcome in ranks.collect(30):
            assert outcome.error is None, outcome.trace
            assert 2.0 < outcome.value < 8


def _be_killed(rank: int, world: int, addresses: list[str], job: str, tell: Tell) -> float:
    with join(rank, world, addresses, job) as group:
        group.barrier()
        tell("ready")
        if rank == 2:
            time.sleep(60)
        with pytest.raises(PeerLostError) as caught:
            while True:
                group.all_reduce(np.ones(COUNT), key="x").wait(60)
        assert caught.value.rank == 2
        return time.monotonic()


def test_a_killed_worker_is_named_on_every_survivor(addresses: list[str], job: str) -> None:
    with start_ranks(WORKERS, _be_killed, addresses, job, talk=True) as ranks:
        for rank in range(WORKERS):
            ranks.receive(rank)
        time.sleep(0.3)
        killed = time.monotonic()
        ranks.kill(2)
        outcomes = ranks.collect(30)
        for rank in (0, 1, 3):
            assert outcomes[rank].error is None, outcomes[rank].trace
            assert outcomes[rank].value - killed < 5
