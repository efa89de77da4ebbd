"""The metrics port against strangers: odd requests, DNS rebinding, slow clients, crowds."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from reducer.server.daemon.admin import MAX_CONNECTIONS
from tests.support.cluster import Daemon


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with Daemon() as running:
        yield running


def ask(daemon: Daemon, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", daemon.metrics_port), 5) as sock:
        sock.settimeout(10)
        sock.sendall(request)
        answer = b""
        while data := sock.recv(65_536):
            answer += data
    return answer


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
        (b"GET /healthz?a=b HTTP/1.0\r\n\r\n", 200),
        (b"POST /healthz HTTP/1.1\r\n\r\n", 405),
        (b"GET /../etc/passwd HTTP/1.1\r\n\r\n", 404),
        (b"GET /healthz\r\n\r\n", 400),
        (b"GET / SIP/2.0\r\n\r\n", 400),
        (b"\xff\xfe\r\n\r\n", 400),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n", 400),
    ],
)
def test_status(daemon: Daemon, request_: bytes, status: int) -> None:
    answer = ask(daemon, request_)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert b"Connection: close\r\n" in answer


def ask_of(daemon: Daemon, *hosts: str) -> bytes:
    fields = "".join(f"host: {host}\r\n" for host in hosts)
    return ask(daemon, f"GET /healthz HTTP/1.1\r\n{fields}\r\n".encode())


@pytest.mark.parametrize(
    "host", ["localhost", "LocalHost:2223", "127.0.0.1", "127.0.0.1:2223", "[::1]", "[::1]:8080"]
)
def test_on_loopback_an_address_may_be_asked_for(daemon: Daemon, host: str) -> None:
    assert ask_of(daemon, host).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "hosts",
    [
        ("evil.example",), ("evil.example:2223",), ("localhost.evil.example",), ("x",), ("",),
        ("[localhost]",), ("127.0.0.1.evil.example",), ("localhost:2223:1",), ("localhost", "x"),
    ],
)  # fmt: skip
def test_on_loopback_no_name_of_others_may(daemon: Daemon, hosts: tuple[str, ...]) -> None:
    """DNS rebinding: the browser would take our pages for pages of that host."""
    assert ask_of(daemon, *hosts).startswith(b"HTTP/1.1 403 ")


def test_beyond_loopback_any_name_may() -> None:
    with Daemon("--metrics-host", "0.0.0.0") as running:
        assert ask_of(running, "reducer-0.example:2223").startswith(b"HTTP/1.1 200 ")


def test_head_has_no_body(daemon: Daemon) -> None:
    answer = ask(daemon, b"HEAD /healthz HTTP/1.1\r\n\r\n")
    assert answer.endswith(b"\r\n\r\n")
    assert b"Content-Length: 3\r\n" in answer


def test_the_status_page_loads_nothing_from_elsewhere(daemon: Daemon) -> None:
    answer = ask(daemon, b"GET / HTTP/1.1\r\n\r\n").decode()
    head, _, page = answer.partition("\r\n\r\n")
    policy = re.search("Content-Security-Policy: (.*)\r", head)
    assert policy is not None
    assert "default-src 'none'; connect-src 'self'; img-src data:; " in policy[1]
    assert "unsafe" not in policy[1] and "http" not in policy[1]
    assert "X-Frame-Options: DENY" in head
    links = set(re.findall(r"""(?:src|href|url|fetch)[=(]["']?([^"')>]+)""", page))
    assert {link for link in links if not link.startswith("data:")} == {
        "api/history", "api/status", "metrics"
    }  # fmt: skip
    assert "innerHTML" not in page


@pytest.mark.parametrize("path", ["/api/status", "/api/stats", "/metrics", "/nothing"])
def test_what_is_no_page_may_load_nothing_at_all(daemon: Daemon, path: str) -> None:
    answer = ask(daemon, f"GET {path} HTTP/1.1\r\n\r\n".encode())
    assert b"Content-Security-Policy: default-src 'none'; frame-ancestors 'none'\r\n" in answer
    assert b"X-Content-Type-Options: nosniff\r\n" in answer


def dropped(daemon: Daemon) -> dict[str, int]:
    found: dict[str, int] = daemon.stats()["metrics_dropped"]
    return found


def call(daemon: Daemon, stack: ExitStack) -> socket.socket:
    return stack.enter_context(socket.create_connection(("127.0.0.1", daemon.metrics_port), 10))


def is_cut_off(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_crowd_that_asks_nothing_keeps_no_probe_out(daemon: Daemon) -> None:
    before = dropped(daemon)
    with ExitStack() as stack:
        crowd = [call(daemon, stack) for _ in range(MAX_CONNECTIONS + 36)]
        assert daemon.get("/healthz")[0] == 200
        after = dropped(daemon)
        assert after["crowded"] > before["crowded"]
        assert sum(after.values()) >= sum(before.values()) + 36
        assert is_cut_off(crowd[0])


def test_who_is_slow_is_cut_off_and_counted(daemon: Daemon) -> None:
    before = dropped(daemon)["slow"]
    with ExitStack() as stack:
        slow = [call(daemon, stack) for _ in range(2)]
        slow[1].sendall(b"GET /healthz HTTP/1.1\r\nX-Never: ends")
        assert all(map(is_cut_off, slow))
    assert dropped(daemon)["slow"] >= before + 2
