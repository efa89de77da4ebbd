"""`reducer status` of real reducers, while real workers are late."""

from __future__ import annotations

import json
import re
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reducer import keyfile
from reducer.status.here import addresses_in, find_here
from reducer_client import connect
from tests.support.cluster import Daemon, run_cli
from tests.support.ranks import Tell, join, start_ranks
from tests.support.wait import wait_until

WORLD = 3
LATE = 2
NAPS = 4
NAP = 0.5  # seconds


def _work(
    rank: int, world: int, addresses: list[str], job: str, options: dict[str, Any], tell: Tell
) -> None:
    """Rank LATE naps before each of NAPS rounds, then is absent until the test sends a word."""
    with join(rank, world, addresses, job, **options) as group:
        values = np.ones(200_000, np.float32)
        for _ in range(NAPS):
            if rank == LATE:
                time.sleep(NAP)
            group.all_reduce(values, key="grad").wait()
        tell("worked")
        if rank == LATE:
            tell.hear()
        group.all_reduce(values, key="grad").wait()


def _named(daemons: list[Daemon]) -> tuple[str, str]:
    return "--addresses", ",".join(daemon.address for daemon in daemons)


def test_who_is_late_is_plain_to_see(job: str, tmp_path: Path) -> None:
    """Two reducers of two lanes, in mode psk: the metrics port needs no key."""
    file = tmp_path / "reducer.key"
    keyfile.make(str(file))
    with ExitStack() as stack:
        daemons = [stack.enter_context(Daemon("--key-file", str(file), lanes=2)) for _ in range(2)]
        addresses = [daemon.address for daemon in daemons]
        options = {"key_file": str(file)}
        ranks = stack.enter_context(start_ranks(WORLD, _work, addresses, job, options, talk=True))
        for rank in range(WORLD):
            ranks.receive(rank, 60)
        wait_until(lambda: "absent for" in _table(daemons), 20, "the absent rank is shown")
        table = _table(daemons)
        found = json.loads(run_cli("status", "--json", *_named(daemons)).stdout)
        metrics = daemons[0].get("/metrics")[1]
        ranks.send(LATE)
        assert all(o.error is None and o.reported for o in ranks.collect(60))
        (run,) = found["runs"]
        assert (run["job"], run["world_size"], run["workers"]) == (job, WORLD, WORLD)
        assert run["rounds"] == NAPS
        assert run["bytes_in"] == (NAPS * WORLD + WORLD - 1) * 800_000
        assert [r["lanes"] for r in found["reducers"]] == [2, 2]
        assert all(r["memory_reserved"] < r["memory"] for r in found["reducers"])
        latest = run["ranks"][0]
        assert latest["rank"] == LATE
        assert latest["waited"] >= 0.7 * NAPS * NAP
        assert latest["waited"] <= run["seconds"]
        assert latest["absent_from"]["key"] == "grad"
        assert latest["absent_from"]["round"] == NAPS
        assert all(r["waited"] < latest["waited"] for r in run["ranks"][1:])
        assert f"job {job!r}" in table
        assert re.search(rf"^ +{LATE} .*absent for [\d.]+ s from 'grad' round {NAPS}$", table, re.M)
        assert _lateness(metrics, job)[LATE] >= 0.5 * NAPS * NAP
        wait_until(lambda: f"job {job!r} ended " in _table(daemons), 20, "the job has ended")
        assert f"after {NAPS + 1} rounds of {WORLD} workers: finished" in _table(daemons)


def _table(daemons: list[Daemon]) -> str:
    done = run_cli("status", *_named(daemons))
    assert done.returncode == 0, done.stderr
    return done.stdout


def _lateness(metrics: str, job: str) -> dict[int, float]:
    """By rank, the largest lateness over the lanes."""
    found: dict[int, float] = {}
    name = "reducer_rank_lateness_seconds_total"
    for line in re.findall(rf"^{name}\{{(.*)\}} (.*)$", metrics, re.M):
        labels = dict(re.findall(r'(\w+)="([^"]*)"', line[0]))
        assert labels["job_name"] == job
        rank = int(labels["rank"])
        found[rank] = max(found.get(rank, 0.0), float(line[1]))
    return found


def test_a_reducer_that_is_gone_is_named_and_the_others_are_shown() -> None:
    with Daemon() as here:
        with Daemon() as gone:
            daemons = [here, gone]
        done = run_cli("status", *_named(daemons))
    assert done.returncode == 1
    assert here.address in done.stdout
    assert "no job is running" in done.stdout
    assert f"Error: {gone.address}: Connection refused" in done.stderr
    assert here.address not in done.stderr


def test_the_metrics_port_works_as_well_as_the_port_for_workers(key_file: str) -> None:
    with Daemon("--key-file", key_file) as daemon:
        for port in (daemon.address, f"127.0.0.1:{daemon.metrics_port}"):
            done = run_cli("status", "--addresses", port)
            assert done.returncode == 0, done.stderr
            assert re.search(rf"^{port} ", done.stdout, re.M)


def test_metrics_on_another_address_of_the_machine_are_found() -> None:
    with Daemon("--metrics-host", "127.0.0.2") as daemon:
        done = run_cli("status", "--addresses", daemon.address)
    assert done.returncode == 0, done.stderr
    assert re.search(rf"^{daemon.address} ", done.stdout, re.M)


def test_the_environment_names_the_reducers() -> None:
    with Daemon() as one, Daemon() as other:
        done = run_cli("status", env={"REDUCER_ADDRS": one.address})
    assert one.address in done.stdout
    assert other.address not in done.stdout


def test_status_without_an_address_shows_all_reducers_of_the_machine() -> None:
    with Daemon() as one, Daemon() as other:
        result = run_cli("status")
        for daemon in (one, other):
            assert daemon.address in result.stdout
        assert {one.address, other.address} <= set(find_here())
    assert not {one.address, other.address} & set(find_here())


def test_a_marker_names_an_address_that_can_be_asked() -> None:
    mark = "ffff: 00000002 00000000 00000000 0001 01 77 @open-reduction-server-at/"
    names = f"{mark}not an address\n{mark}red:99\n{mark}10.0.0.0:7\n{mark}evil.example:80\n"
    names += f"{mark}0.0.0.0:2223\n{mark}[::]:2224\n{mark}10.0.0.1:9\nx: 1 @other\n{mark}10.0.0.1:9"
    assert addresses_in(names) == ["10.0.0.0:7", "10.0.0.1:9", "127.0.0.1:2223", "[::1]:2224"]


@pytest.mark.parametrize("count", [2, 1 << 20], ids=["one chunk", "many chunks"])
def test_each_round_is_the_own_round_of_one_lane(count: int, job: str) -> None:
    with Daemon(lanes=2) as one, Daemon() as other:
        group = connect([one.address, other.address], job=job, rank=0, world_size=1)
        with group:
            for number in range(12):
                group.all_reduce(np.ones(count, np.float32), key=f"k{number}").wait()
            lanes = [lane for daemon in (one, other) for lane in daemon.stats()["lanes"]]
            rounds = [run["own_rounds"] for lane in lanes for run in lane["report"]["runs"]]
    assert sum(rounds) == 12
    assert len(rounds) == 3 and max(rounds) < 12
