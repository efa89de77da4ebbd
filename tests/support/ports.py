"""Free ports, for programs that start to listen a little later."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> list[int]:
    """Different ports of 127.0.0.1."""
    found: list[int] = []
    ports = _ports()
    while len(found) < count:
        port = random.SystemRandom().choice(ports)
        if port not in found and _is_free(port):
            found.append(port)
    return found


def free_port() -> int:
    return free_ports(1)[0]


def _ports() -> range:
    """The longer range of ports outside Linux's ephemeral range, whose ports could be taken
    meanwhile.

    All ports if that range has fewer than a thousand.
    """
    low, high = map(int, _OUTGOING.read_text(encoding="ascii").split())
    longer = max(range(1024, low), range(high + 1, 65_536), key=len)
    return longer if len(longer) >= 1_000 else range(1024, 65_536)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
