"""Actions of strangers at a daemon's port, and the checks after them."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from typing import Any

import numpy as np

from tests.support.cluster import Daemon
from tests.support.wait import wait_until
from tests.support.worker import Worker


def check_it_lives_on(daemon: Daemon, **proof: Any) -> None:
    """Assert that no connection is left, no bug has shown, and a worker with ``proof`` gets its
    sum.
    """
    assert daemon.get("/healthz")[0] == 200
    values = np.arange(100_000, dtype=np.float32)
    with Worker(daemon.port, "after", 0, 1, **proof) as worker:
        assert worker.join().all_reduce("k", 0, values) == values.tobytes()
        worker.bye()
    wait_until(lambda: daemon.lane_total("connections") == 0, 5, "no connection is left")
    wait_until(lambda: daemon.lane_total("unproven") == 0, 5, "no newcomer is left")
    assert daemon.lane_total("internal_errors") == 0


def refused(daemon: Daemon, cause: str) -> int:
    found: int = daemon.stats()["refused"].get(cause, 0)
    return found


def total_refused(daemon: Daemon) -> int:
    return sum(daemon.stats()["refused"].values())


def client_hello(context: ssl.SSLContext) -> bytes:
    """The first message of an honest worker of mode tls."""
    outgoing = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1")
    with suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def opened(port: int, *data: bytes) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), 10)
    sock.settimeout(10)
    for piece in data:
        sock.sendall(piece)
    return sock


def read_to_end(sock: socket.socket) -> bytes:
    """The bytes that the daemon sends before it closes the connection in any way."""
    data = b""
    with suppress(ConnectionError):
        while got := sock.recv(65_536):
            data += got
    return data
