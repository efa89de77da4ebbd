"""How a worker connects to reducers: source address, IPv6, back-off, addresses of a name."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from reducer.wire.codes import PROTOCOL_MAJOR, PROTOCOL_MINOR
from reducer.wire.header import PREFACE_SIZE
from reducer_client import Group, ProtocolVersionError, ReducerUnavailableError
from tests.support.cluster import Daemon, environment
from tests.support.impostor import Impostor
from tests.support.ranks import join, run_ranks
from tests.support.reducers import Reducers

NAME = "reducer-by-name"


def sources(group: Group, ports: set[int]) -> set[str]:
    """The source addresses of this process's TCP connections to the ports, after a right sum."""
    assert group.all_reduce(np.ones(300_000, np.float32)).wait(30).tolist() == [1] * 300_000
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        if not entry.is_socket():
            continue
        with socket.socket(fileno=os.dup(int(entry.name))) as sock, suppress(OSError):
            if sock.getpeername()[1] in ports:
                found.add(sock.getsockname()[0])
    return found


@pytest.mark.parametrize(
    ("source", "expected"), [("127.0.0.5", "127.0.0.5"), ("lo", "127.0.0.1"), ("", "127.0.0.1")]
)
def test_connections_come_from_the_source(
    addresses: list[str], job: str, source: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = {int(address.rpartition(":")[2]) for address in addresses}
    with join(0, 1, addresses, job, transport="tcp", source=source) as group:
        assert sources(group, ports) == {expected}
    monkeypatch.setenv("REDUCER_SOURCE", source)
    with join(0, 1, addresses, job, transport="tcp") as group:
        assert sources(group, ports) == {expected}


def test_a_source_outlives_its_connection(job: str) -> None:
    with Reducers(1) as reducers:
        port = reducers.daemon(0).port
        options = {"transport": "tcp", "source": "127.0.0.5"}
        with join(0, 1, reducers.addresses, job, **options) as group:
            assert sources(group, {port}) == {"127.0.0.5"}
            reducers.kill(0)
            reducers.start(0)
            assert sources(group, {port}) == {"127.0.0.5"}


def _sum_over_tcp(rank: int, world: int, addresses: list[str], job: str) -> float:
    with join(rank, world, addresses, job, transport="tcp", source="::1") as group:
        assert group.stats()["local_connections"] == 0
        return float(group.all_reduce(np.full(100_000, rank + 1.0)).wait(30)[-1])


def test_ipv6(job: str) -> None:
    with Daemon("--host", "::1", lanes=2) as daemon:
        address = f"[::1]:{daemon.port}"
        assert run_ranks(2, _sum_over_tcp, [address], job) == [3.0, 3.0]
        options = {"transport": "tcp", "source": "127.0.0.1", "connect_timeout": 1.5}
        with pytest.raises(ReducerUnavailableError) as caught:
            join(0, 1, [address], job, **options)
    assert f"{address} (source 127.0.0.1 has no IPv6 address)" in str(caught.value)


def test_attempts_come_later_each_time_and_by_chance(job: str) -> None:
    """In the end 0.5 to 1 s lie between attempts, and the intervals differ."""
    times: list[float] = []

    def act(sock: socket.socket, number: int) -> None:
        times.append(time.monotonic())

    with Impostor(act) as impostor, pytest.raises(ReducerUnavailableError):
        join(0, 1, [impostor.address], job, transport="tcp", connect_timeout=7)
    gaps = [after - before for before, after in pairwise(times)]
    assert len(gaps) >= 8
    for gap, least in zip(gaps, (0.025, 0.05, 0.1, 0.2, 0.4, 0.5, 0.5), strict=False):
        assert gap >= least - 0.005
    assert min(gaps[5:]) < 0.97  # without jitter it would be 1 s


def test_another_protocol_version_names_both_and_the_address(job: str) -> None:
    def act(sock: socket.socket, number: int) -> None:
        impostor.read(sock, PREFACE_SIZE)
        sock.sendall(b"ORSP\x09\x02" + bytes(10))

    with Impostor(act) as impostor, pytest.raises(ProtocolVersionError) as caught:
        join(0, 1, [impostor.address], job, transport="tcp")
    text = str(caught.value)
    assert f"this client speaks {PROTOCOL_MAJOR}.{PROTOCOL_MINOR}, got 9.2" in text
    assert impostor.address in text


_NAMED = """
import sys
import numpy as np
import reducer_client

with reducer_client.connect([sys.argv[1]], job="named", rank=0, world_size=1) as group:
    for line in sys.stdin:
        print(group.all_reduce(np.full(3, float(line))).wait(30).tolist()[0], flush=True)
"""


@contextmanager
def _client_with_hosts(hosts: Path, address: str) -> Iterator[subprocess.Popen[str]]:
    """A client process that sees the file as its /etc/hosts."""
    script = f'mount --bind "{hosts}" /etc/hosts && exec "$@"'
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]
    process = subprocess.Popen(
        [*command, sys.executable, "-c", _NAMED, address],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=environment({"REDUCER_CONNECT_TIMEOUT": "20"}),
    )  # fmt: skip
    with process:
        try:
            yield process
        finally:
            process.kill()


def _may_mount() -> bool:
    probe = ["unshare", "--mount", "--propagation", "private", "mount", "--bind", "/tmp", "/tmp"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _may_mount(), reason="needs a mount namespace of its own (root)")
def test_a_name_is_resolved_anew_at_each_reconnect(tmp_path: Path) -> None:
    """The reducer dies and comes back under its name at another address, as a pod does."""
    hosts = tmp_path / "hosts"
    hosts.write_text(f"127.0.0.1 {NAME}\n")
    with Daemon("--host", "127.0.0.1") as old:
        port = str(old.port)
        with _client_with_hosts(hosts, f"{NAME}:{port}") as client:
            assert client.stdin is not None and client.stdout is not None

            def reduce(value: float) -> float:
                assert client.stdin is not None and client.stdout is not None
                client.stdin.write(f"{value}\n")
                client.stdin.flush()
                return float(client.stdout.readline())

            assert reduce(1.0) == 1.0
            hosts.write_text(f"127.0.0.2 {NAME}\n")
            old.kill()
            with Daemon("--host", "127.0.0.2", "--port", port) as new:
                assert reduce(2.0) == 2.0
                assert new.stats()["accepted"] >= 1
                client.stdin.close()
                assert client.wait(30) == 0


@contextmanager
def _black_hole() -> Iterator[int]:
    """The port of a listener whose queue is full, so that the kernel drops every SYN."""
    with ExitStack() as sockets:
        listener = sockets.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        for _ in range(4):
            filler = sockets.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(address)
        yield address[1]


@pytest.mark.skipif(not _may_mount(), reason="needs a mount namespace of its own (root)")
def test_an_address_that_answers_nothing_makes_room_for_the_next(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text(f"127.0.0.1 {NAME}\n127.0.0.2 {NAME}\n")
    with (
        _black_hole() as port,
        Daemon("--host", "127.0.0.2", "--port", str(port)),
        _client_with_hosts(hosts, f"{NAME}:{port}") as client,
    ):
        answer, _ = client.communicate("1.0\n", timeout=40)
    assert answer == "1.0\n"
