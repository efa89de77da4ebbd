"""Hosted reducers on several machines: namespaces with NICs of their own (root only)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from reducer_tools.netlab import Lab, LabError, Nic, run_tool
from tests.support.cluster import ROOT
from tests.support.counts import LONG

MACHINES = ("m0", "m1", "m2")
PORT = 29_400


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    try:
        with Lab(dict.fromkeys((*MACHINES, "r0"), Nic())) as built:
            yield built
    except LabError as error:
        pytest.skip(f"no network namespaces here: {error}")


class Job:
    """Workers of `tests.support.hosted_worker`, one on each machine."""

    def __init__(
        self, lab: Lab, arguments: Sequence[str], env: dict[str, str], machines: Sequence[str]
    ) -> None:
        self.workers = []
        size = len(machines)
        for rank, machine in enumerate(machines):
            ranks = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
            own = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'client'}"}
            own |= {name: str(number) for name, number in ranks.items()}
            own |= {"MASTER_ADDR": lab.address(machines[0]), "MASTER_PORT": str(PORT)}
            command = [sys.executable, "-m", "tests.support.hosted_worker", *arguments]
            pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
            self.workers.append(lab.popen(machine, command, env=own | env, **pipes))

    def line(self, rank: int) -> dict[str, Any]:
        stdout = self.workers[rank].stdout
        assert stdout is not None
        text = stdout.readline()
        assert text, self.workers[rank].communicate()[1]
        return dict(json.loads(text))

    def lines(self) -> list[dict[str, Any]]:
        """The next line of each worker: the first when it has joined, the second at its end."""
        return [self.line(rank) for rank in range(len(self.workers))]

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.communicate()


@contextmanager
def job(
    lab: Lab,
    how: str = "connect",
    seconds: float = 0.0,
    until: str = "",
    machines: Sequence[str] = MACHINES,
    **env: str,
) -> Iterator[Job]:
    started = Job(lab, [how, str(seconds), *filter(None, [until])], env, machines)
    try:
        yield started
    finally:
        started.close()


@contextmanager
def dedicated(lab: Lab, count: int) -> Iterator[str]:
    """`count` reducers on the host r0, and their addresses for REDUCER_ADDRS."""
    with ExitStack() as stack:
        addresses = []
        for _ in range(count):
            serve = [sys.executable, "-m", "reducer", "serve", "--host", lab.address("r0")]
            serve += ["--port", "0", "--metrics-port", "0", "--insecure", "--lanes", "1"]
            daemon = lab.popen("r0", serve, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            stack.callback(daemon.communicate)
            stack.callback(daemon.terminate)
            assert daemon.stdout is not None
            port = json.loads(daemon.stdout.readline())["port"]
            addresses.append(f"{lab.address('r0')}:{port}")
        yield ",".join(addresses)


# torch takes 11 CPU seconds.
@pytest.mark.parametrize("how", ["connect", pytest.param("torch", marks=pytest.mark.long)])
def test_machines_with_nothing_configured_host_their_reducers(lab: Lab, how: str) -> None:
    if how == "torch":
        pytest.importorskip("torch")
    with job(lab, how) as running:
        lines = running.lines()
        expected = [lab.address(machine) for machine in MACHINES]
        for line in lines:
            assert [address.rpartition(":")[0] for address in line["addresses"]] == expected
            assert (line["hosted"], line["local"]) == (3, 1)
            assert isinstance(line["pid"], int)
        ends = running.lines()
    assert len({end["digest"] for end in ends}) == 1
    assert any("3 machines: 0 dedicated and 3 hosted" in text for text in ends[0]["logs"])
    for end in ends:  # a rank that leaves takes its reducer along, which is no news
        assert not [text for text in end["logs"] if "is out" in text or "drains" in text]


def test_results_have_the_same_bits_with_any_number_of_dedicated_reducers(lab: Lab) -> None:
    digests, weights = set(), []
    counts = (0, 1, 2, 3) if LONG else (1, 3)
    for count in counts:
        with (
            dedicated(lab, count) as addresses,
            job(lab, REDUCER_ADDRS=addresses, REDUCER_JOB="j") as running,
        ):
            lines = running.lines()
            weights.append(lines[0]["weights"])
            assert len(lines[0]["addresses"]) == count + (3 if count < 3 else 0)
            digests |= {end["digest"] for end in running.lines()}
    assert len(digests) == 1
    expected = [[], [2, 1, 1, 1], [4, 4, 1, 1, 1], []]
    assert weights == [expected[count] for count in counts]


def test_a_hosted_reducer_that_is_killed_starts_again(lab: Lab) -> None:
    with job(lab, seconds=60.0, until="is in again") as running:
        running.lines()
        stdin = running.workers[1].stdin
        assert stdin is not None
        print("kill", file=stdin, flush=True)
        ends = running.lines()
    assert len({end["digest"] for end in ends}) == 1, ends
    assert all(end["slowest"] < 3.0 for end in ends)
    assert any("the hosted reducer at" in text for text in ends[1]["logs"])
    assert ends[0]["heard"], ends[0]["logs"]


@pytest.mark.parametrize("lost", [0, pytest.param(2, marks=pytest.mark.long)])
def test_a_machine_that_dies_is_named_as_the_lost_rank(lab: Lab, lost: int) -> None:
    """The worker and its reducer are gone at the same moment, without a word."""
    link = ("ip", "-n", lab.namespace(MACHINES[lost]), "link", "set", "eth0")
    with job(lab, seconds=60.0, REDUCER_WORKER_SILENCE="2") as running:
        running.lines()
        run_tool(*link, "down")
        try:
            ends = [running.line(rank) for rank in range(3) if rank != lost]
        finally:
            run_tool(*link, "up")
    for end in ends:
        assert end["error"] == "PeerLostError", end
        assert f"rank {lost} of job 'training' is lost" in end["text"]


@contextmanager
def cut(lab: Lab, one: str, other: str) -> Iterator[None]:
    """Neither machine reaches the other."""
    routes = [(lab.namespace(one), lab.address(other)), (lab.namespace(other), lab.address(one))]
    for space, address in routes:
        run_tool("ip", "-n", space, "route", "add", "unreachable", address)
    try:
        yield
    finally:
        for space, address in routes:
            run_tool("ip", "-n", space, "route", "del", "unreachable", address)


def test_machines_that_do_not_reach_each_other_are_named(lab: Lab) -> None:
    with cut(lab, "m1", "m2"), job(lab) as running:
        ends = running.lines()
    for end in ends:
        assert end["error"] == "JoinError"
        assert "rank 1 on" in end["text"]
        assert f"does not reach the hosted reducer at {lab.address('m2')}:" in end["text"]
        assert "REDUCER_HOSTED_PORTS" in end["text"]


def test_dedicated_reducers_go_on_without_hosted_ones(lab: Lab) -> None:
    with (
        cut(lab, "m1", "m2"),
        dedicated(lab, 1) as addresses,
        job(lab, REDUCER_ADDRS=addresses, REDUCER_JOB="j") as running,
    ):
        lines = running.lines()
        ends = running.lines()
    assert all(line["addresses"] == [addresses] for line in lines)
    assert any("only the 1 dedicated reducers: rank 1" in text for text in ends[0]["logs"])
    assert len({end["digest"] for end in ends}) == 1


def test_the_interface_decides_the_address(lab: Lab) -> None:
    with job(lab, REDUCER_SOCKET_IFNAME="eth0", MASTER_ADDR=lab.address("m0")) as running:
        lines = running.lines()
        running.lines()
    assert lines[0]["addresses"][2].startswith(lab.address("m2"))
    with job(lab, REDUCER_SOCKET_IFNAME="lo", machines=MACHINES[:2]) as running:
        ends = running.lines()
    assert all("set REDUCER_SOCKET_IFNAME" in end["text"] for end in ends), ends
