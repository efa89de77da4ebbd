"""Transports: Unix sockets to reducers on this machine, TCP to all others."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reducer.server.sockets import refuse_descriptors
from reducer_client import Group, PeerLostError, ReducerError
from tests.support.cluster import Daemon
from tests.support.ranks import Tell, join, start_ranks
from tests.support.wait import wait_until

TRANSPORTS = ("auto", "tcp")
OTHER_UID = 65534
ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")


def carried(group: Group) -> tuple[int, int]:
    """(number of connections, number over Unix sockets), after a right sum."""
    values = np.arange(300_000, dtype=np.float32)
    np.testing.assert_array_equal(group.all_reduce(values).wait(30), values * group.world_size)
    stats = group.stats()
    return stats["connections"], stats["local_connections"]


def carried_alone(addresses: list[str], **options: Any) -> tuple[int, int]:
    with join(0, 1, addresses, "transport", **options) as group:
        return carried(group)


def local_names() -> set[str]:
    """The names of listening abstract Unix sockets."""
    lines = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()[1:]
    words = [line.split(maxsplit=7) for line in lines]
    listening = "00010000"  # __SO_ACCEPTCON in the column of flags
    return {w[7] for w in words if len(w) == 8 and w[3] == listening}


def connect_locally(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(10)
    sock.connect(f"\0open-reduction-server/{address}")
    return sock


@pytest.mark.parametrize(
    ("host", "name", "reached"),
    [
        ("127.0.0.1", "127.0.0.1", ["127.0.0.1"]),
        ("localhost", "127.0.0.1", ["localhost"]),
        ("::1", "[::1]", ["[::1]"]),
        ("0.0.0.0", "0.0.0.0", ["127.0.0.1", "127.0.0.2"]),
        ("::", "[::]", ["127.0.0.1", "[::1]"]),
    ],
)
def test_a_reducer_on_this_machine_is_reached_over_a_unix_socket(
    host: str, name: str, reached: list[str]
) -> None:
    with Daemon("--host", host, "--insecure", lanes=2) as daemon:
        local = f"@open-reduction-server/{name}:{daemon.port}"
        assert local in local_names()
        for address in reached:
            assert carried_alone([f"{address}:{daemon.port}"]) == (2, 2)
    assert local not in local_names()


def test_tcp_on_request(addresses: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert carried_alone(addresses) == (2, 2)
    assert carried_alone(addresses, transport="tcp") == (2, 0)
    monkeypatch.setenv("REDUCER_TRANSPORT", "tcp")
    assert carried_alone(addresses) == (2, 0)
    assert carried_alone(addresses, transport="auto") == (2, 2)


def test_tcp_to_a_reducer_without_a_local_socket() -> None:
    with Daemon("--no-local-socket") as daemon:
        assert not any(f":{daemon.port}" in name for name in local_names())
        assert carried_alone([daemon.address]) == (1, 0)


def test_reducers_on_one_port_of_two_addresses_are_two_reducers() -> None:
    with Daemon("--host", "127.0.0.1") as first:
        port = str(first.port)
        with Daemon("--host", "127.0.0.2", "--port", port) as second:
            assert carried_alone([f"127.0.0.1:{port}", f"127.0.0.2:{port}"]) == (2, 2)
            assert [daemon.stats()["accepted"] for daemon in (first, second)] == [1, 1]
            # Neither reducer listens on this address over TCP.
            assert f"@open-reduction-server/127.0.0.3:{port}" not in local_names()


_SQUAT = """
import os, socket, sys
os.setuid(int(sys.argv[2]))
s = socket.socket(socket.AF_UNIX)
s.bind("\\0" + sys.argv[1])
s.listen()
print("listening", flush=True)
sys.stdin.read()
"""


@contextmanager
def squatted(name: str, uid: int) -> Iterator[None]:
    """A process of another user listens on an abstract name and never answers."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", _SQUAT, name, str(uid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"listening\n"
        yield


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a process of another user")
def test_another_users_socket_under_our_name_is_not_trusted() -> None:
    with Daemon() as daemon:  # leaves its port free
        port = daemon.port
    with (
        squatted(f"open-reduction-server/127.0.0.1:{port}", OTHER_UID),
        Daemon("--port", str(port)) as daemon,
    ):
        daemon.wait_for_log("Address already in use; workers on this machine use TCP")
        assert carried_alone([daemon.address]) == (1, 0)


def test_a_worker_takes_no_descriptor_from_who_sits_on_the_name() -> None:
    """close() of a received descriptor may block, and would block the worker's engine."""
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as local:
        if not refuse_descriptors(local):
            pytest.skip("Linux before 6.16 takes descriptors from anybody")
        address = f"127.0.0.1:{tcp.getsockname()[1]}"
        local.bind(f"\0open-reduction-server/{address}")
        local.listen()
        local.settimeout(10)
        with ThreadPoolExecutor(1) as pool:
            joining = pool.submit(carried_alone, [address], connect_timeout=1)
            with local.accept()[0] as worker, pytest.raises(PermissionError):
                socket.send_fds(worker, [b"x"], [0])
            local.close()
            with pytest.raises(ReducerError):
                joining.result(30)


def _wait_for_rank_1(
    rank: int, world: int, addresses: list[str], transport: Any, tell: Tell
) -> Any:
    with join(rank, world, addresses, "kill", transport=transport) as group:
        tell(carried(group))
        if rank == 1:
            tell.hear()
        return group.all_reduce(np.ones(1 << 20), key="grad").wait(60)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_killed_worker_is_named_over_either(addresses: list[str], transport: str) -> None:
    local = len(addresses) if transport == "auto" else 0
    with start_ranks(3, _wait_for_rank_1, addresses, transport, talk=True) as ranks:
        for rank in range(3):
            assert ranks.receive(rank) == (len(addresses), local)
        killed = time.monotonic()
        ranks.kill(1)
        outcomes = [ranks.collect_one(rank, 30) for rank in (0, 2)]
        took = time.monotonic() - killed
    for outcome in outcomes:
        assert isinstance(outcome.error, PeerLostError), outcome
        assert outcome.error.rank == 1
    assert took < 5  # less than the timeout of silence


def test_ranks_may_be_mixed(addresses: list[str]) -> None:
    with start_ranks(2, _join_by_rank, addresses) as ranks:
        outcomes = ranks.collect(60)
    assert [outcome.value for outcome in outcomes] == [(2, 2), (2, 0)], outcomes


def _join_by_rank(rank: int, world: int, addresses: list[str]) -> tuple[int, int]:
    with join(rank, world, addresses, "mixed", transport=TRANSPORTS[rank]) as group:
        return carried(group)


def test_strangers_on_the_local_socket_are_named_and_cut_off() -> None:
    with Daemon() as daemon:
        with connect_locally(daemon.address) as sock:
            sock.sendall(b"POST / HTTP/1.1\r\n\r\n")
            with pytest.raises(ConnectionResetError):  # our bytes were unread
                sock.recv(1)
        who = f"refused local process {os.getpid()} (uid {os.geteuid()}) (garbage): this is HTTP"
        wait_until(lambda: who in daemon.log, 5, "the refusal is logged")


def test_a_lanes_last_words_wait_for_a_local_peer_and_not_for_ever() -> None:
    with Daemon() as daemon, connect_locally(daemon.address) as sock:
        sock.sendall(struct.pack("<4sBBHH6x", b"ORSP", 1, 0, 0, 0) + b"no frame" * 20)
        wait_until(lambda: daemon.lane_total("protocol_errors") == 1, 5, "the lane has answered")
        assert daemon.lane_total("connections") == 1
        wait_until(lambda: daemon.lane_total("connections") == 0, 10, "it was cut off")
        said = b"".join(iter(lambda: sock.recv(4096), b""))
        assert said.startswith(b"ORSF") and b"a frame begins with" in said


@pytest.mark.parametrize("name", ALLOWED.read_text(encoding="ascii").split())
def test_the_congestion_control_is_that_of_every_connection(
    addresses: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = {int(address.rpartition(":")[2]) for address in addresses}
    with join(0, 1, addresses, "congestion", transport="tcp", congestion=name) as group:
        assert carried(group) == (2, 0)
        assert own_congestion_controls(ports) == [name, name]
    monkeypatch.setenv("REDUCER_CONGESTION", name)
    with join(0, 1, addresses, "congestion", transport="tcp"):
        assert own_congestion_controls(ports) == [name, name]


def own_congestion_controls(ports: set[int]) -> list[str]:
    """The congestion control of each TCP socket of this process connected to one of the ports."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        if not entry.is_socket():
            continue
        with socket.socket(fileno=os.dup(int(entry.name))) as sock, suppress(OSError):
            if sock.family == socket.AF_INET and sock.getpeername()[1] in ports:
                name = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
                found.append(name.rstrip(b"\0").decode())
    return found
