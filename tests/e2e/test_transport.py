"""What carries the bytes."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tests.support.ranks import join

ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")


@pytest.mark.parametrize("name", ALLOWED.read_text(encoding="ascii").split())
def test_the_congestion_control_is_that_of_every_connection(
    addresses: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = {int(address.rpartition(":")[2]) for address in addresses}
    with join(0, 1, addresses, "congestion", congestion=name) as group:
        assert group.all_reduce(np.ones(3)).wait(30).tolist() == [1] * 3
        assert own_congestion_controls(ports) == [name, name]
    monkeypatch.setenv("REDUCER_CONGESTION", name)
    with join(0, 1, addresses, "congestion"):
        assert own_congestion_controls(ports) == [name, name]


def own_congestion_controls(ports: set[int]) -> list[str]:
    """As the kernel says of each TCP socket of this process that is connected to a port."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        if not entry.is_socket():
            continue
        with socket.socket(fileno=os.dup(int(entry.name))) as sock, suppress(OSError):
            if sock.family == socket.AF_INET and sock.getpeername()[1] in ports:
                name = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
                found.append(name.rstrip(b"\0").decode())
    return found
