"""Ports that nobody listens on, for those who start to listen a little later."""

from __future__ import annotations

import random
import socket

# Below those that Linux gives to outgoing connections (net.ipv4.ip_local_port_range): one of those
# could be taken meanwhile.
_PORTS = range(20_000, 32_768)


def free_ports(count: int) -> list[int]:
    """Different ports of 127.0.0.1."""
    found: list[int] = []
    while len(found) < count:
        port = random.SystemRandom().choice(_PORTS)
        if port not in found and _is_free(port):
            found.append(port)
    return found


def free_port() -> int:
    return free_ports(1)[0]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
