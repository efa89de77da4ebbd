"""Listening and socket options."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from reducer.server.sockets import (
    LOCAL_SEND_BUFFER,
    UNSENT_IN_KERNEL,
    ListenError,
    listen,
    listen_local,
    local_name,
    peer_name,
    refuse_descriptors,
    tune,
)


def test_options_of_an_accepted_socket() -> None:
    (listener,) = listen("127.0.0.1", 0, "workers")
    with listener, socket.create_connection(listener.getsockname(), 5):
        listener.settimeout(5)
        with listener.accept()[0] as sock:
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            for option, value in (
                (socket.TCP_NODELAY, 1),
                (socket.TCP_KEEPIDLE, 1),
                (socket.TCP_KEEPINTVL, 1),
                (socket.TCP_KEEPCNT, 2),
                (socket.TCP_USER_TIMEOUT, 0),
                (socket.TCP_NOTSENT_LOWAT, UNSENT_IN_KERNEL),
            ):
                assert sock.getsockopt(socket.IPPROTO_TCP, option) == value


def test_all_addresses_of_a_name_share_one_port() -> None:
    listeners = listen("localhost", 0, "workers")
    ports = {listener.getsockname()[1] for listener in listeners}
    for listener in listeners:
        listener.close()
    assert len(ports) == 1


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_that_is_not_ours(host: str) -> None:
    with pytest.raises(ListenError, match=f"cannot listen on {host}:0 for workers"):
        listen(host, 0, "workers")


def test_accepted_sockets_inherit_the_congestion_control() -> None:
    known = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control").read_text(encoding="ascii")
    for name in known.split():
        (listener,) = listen("127.0.0.1", 0, "workers", name)
        with listener, socket.create_connection(listener.getsockname(), 5):
            listener.settimeout(5)
            with listener.accept()[0] as sock:
                found = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
                assert found.rstrip(b"\0") == name.encode()


def test_an_unknown_congestion_control_is_explained() -> None:
    with pytest.raises(ListenError, match="tcp_allowed_congestion_control"):
        listen("127.0.0.1", 0, "workers", "carrier-pigeon")


def test_a_local_socket_beside_each_listener() -> None:
    (listener,) = listen("127.0.0.1", 0, "workers")
    (local,) = listen_local([listener])
    with listener, local, socket.socket(socket.AF_UNIX) as peer:
        peer.connect(f"\0{local_name(listener)}")
        local.settimeout(5)
        with local.accept()[0] as sock:
            tune(sock)
            assert not sock.getblocking()
            assert peer_name(sock, "") == f"local process {os.getpid()} (uid {os.geteuid()})"
            # The kernel doubles the requested size.
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 2 * LOCAL_SEND_BUFFER
            assert not listen_local([listener])  # the name is taken: logged, and not used


def test_nobody_can_pass_a_descriptor_over_the_local_socket() -> None:
    """Regression: the sender could make close() of the descriptor block the process that got it."""
    (listener,) = listen("127.0.0.1", 0, "workers")
    (local,) = listen_local([listener])
    with listener, local, socket.socket(socket.AF_UNIX) as peer:
        with socket.socket(socket.AF_UNIX) as another:
            if not refuse_descriptors(another):
                pytest.skip("Linux before 6.16 takes descriptors from anybody")
        peer.connect(f"\0{local_name(listener)}")
        with pytest.raises(PermissionError):  # before the connection is accepted
            socket.send_fds(peer, [b"x"], [0])
        local.settimeout(5)
        with local.accept()[0] as sock:
            with pytest.raises(PermissionError):
                socket.send_fds(peer, [b"x"], [0])
            peer.sendall(b"y")
            assert sock.recv(2) == b"y"
