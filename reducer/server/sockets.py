"""Listening sockets, and the options of accepted sockets and of those that connect."""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import struct
from collections.abc import Iterable

from reducer.cluster.addresses import join_address

logger = logging.getLogger("reducer.server")

BACKLOG = 1024
# Unix sockets do not tune their buffers. The kernel doubles this value, the largest that it allows
# without privileges.
LOCAL_SEND_BUFFER = 212_992
# The most unsent bytes that the kernel keeps for each TCP connection. Without this limit, up to 4
# MiB (tcp_wmem) wait in the kernel, uncounted, for a worker that does not read. Bytes above the
# limit wait in the lane, which counts them.
UNSENT_IN_KERNEL = 262_144
_LOCAL_PREFIX = "open-reduction-server/"  # PROTOCOL.md, section 1
_MARK_PREFIX = "open-reduction-server-at/"  # `reducer.status.here` looks for it
_SO_PASSRIGHTS = 83  # asm-generic/socket.h; Python does not define it


class ListenError(Exception):
    """No socket can listen on the address; the text gives address, reason and what to try."""


def listen(host: str, port: int, what: str, congestion: str = "") -> list[socket.socket]:
    """Open non-blocking listeners on every address of ``host``; all have the same port.

    Port 0 takes any free port. Accepted sockets inherit ``congestion``. Raises ListenError.
    """
    listeners: list[socket.socket] = []
    refusal: Exception | None = None
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _, address in dict.fromkeys(found):
            bound = listeners[0].getsockname()[1] if listeners else port
            try:
                listeners.append(_listen_on(family, kind, protocol, (address[0], bound)))
            except OSError as error:
                # "localhost" names ::1 even where the machine has no IPv6.
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                refusal = error
    except OSError as error:
        refusal = error
        for listener in listeners:
            listener.close()
        listeners = []
    if not listeners:
        raise ListenError(_explain(host, port, what, refusal))
    for listener in listeners if congestion else ():
        try:
            _set_congestion(listener, congestion)
        except OSError as error:
            for other in listeners:
                other.close()
            raise ListenError(
                f"congestion control {congestion!r}: {error.strerror}; expected one of those in "
                "/proc/sys/net/ipv4/tcp_allowed_congestion_control"
            ) from None
    return listeners


def _listen_on(family: int, kind: int, protocol: int, address: tuple[object, int]) -> socket.socket:
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _set_tcp_options(listener)
        if family == socket.AF_INET6:
            only = 0 if address[0] == "::" else 1
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def listen_local(listeners: Iterable[socket.socket]) -> list[socket.socket]:
    """Open an abstract Unix socket for each TCP listener; workers on this machine try it first.

    If the name is taken, this is logged and the socket left out: TCP serves these workers as well.
    """
    found = []
    for listener in listeners:
        name = local_name(listener)
        local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            refuse_descriptors(local)
            local.bind(f"\0{name}")
            local.listen(BACKLOG)
            local.setblocking(False)
            found.append(local)
        except OSError as error:
            local.close()
            logger.warning(
                "no local socket @%s: %s; workers on this machine use TCP (its owner: ss -lxp)",
                name,
                error.strerror,
            )
    return found


def announce(listener: socket.socket) -> socket.socket:
    """A Unix socket whose abstract name has the address of the port for workers.

    `reducer status` on this machine finds the names of all reducers in /proc/net/unix. Nobody
    listens on the socket. The name goes away with the process, however the process ends.
    """
    marker = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.suppress(OSError):  # the name is taken: `reducer status ADDRESS` works as well
        host, port = listener.getsockname()[:2]
        marker.bind(f"\0{_MARK_PREFIX}{join_address(host, port)}")
    return marker


def refuse_descriptors(local: socket.socket) -> bool:
    """Refuse descriptors over this Unix socket and over the sockets accepted from it.

    Any user of the machine could stop the reducer by passing a descriptor whose close waits
    (SO_LINGER): the kernel closes an unwanted descriptor in the process that reads the bytes beside
    it. Returns False on Linux before 6.16, which does not have the option.
    """
    try:
        local.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise
        return False
    return True


def local_name(listener: socket.socket) -> str:
    """The abstract name, without the leading zero byte, of a TCP listener's Unix socket."""
    host, port = listener.getsockname()[:2]
    return f"{_LOCAL_PREFIX}[{host}]:{port}" if ":" in host else f"{_LOCAL_PREFIX}{host}:{port}"


def peer_name(sock: socket.socket, address: object) -> str:
    """The peer's name for log lines; ``address`` is as ``accept`` returns it."""
    if isinstance(address, tuple):
        return f"{address[0]}:{address[1]}"
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", credentials)
    return f"local process {pid} (uid {uid})"


def _explain(host: str, port: int, what: str, error: Exception | None) -> str:
    text = f"cannot listen on {host}:{port} for {what}: {error}"
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        flag = "--port" if what == "workers" else "--metrics-port"
        text += (
            f". Another process has this port: 'ss -ltnp sport = :{port}' names it. Stop it, or "
            f"choose another with {flag} ({flag} 0 takes any free port)"
        )
    return text


def _set_tcp_options(sock: socket.socket) -> None:
    """Set options of TCP, which accepted sockets inherit from their listener. A peer without power
    is found after 3 s (1 + 1 x 2).

    There is no TCP_USER_TIMEOUT: it kills a live peer that merely stops reading.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_IN_KERNEL)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)


def _set_congestion(sock: socket.socket, name: str) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())


def tune(sock: socket.socket) -> None:
    """Set the options that an accepted socket does not inherit from its listener."""
    sock.setblocking(False)
    if sock.family == socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LOCAL_SEND_BUFFER)


def to_connect(family: int, congestion: str = "") -> socket.socket:
    """A TCP socket that is to connect to another reducer, with the options of accepted sockets."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        _set_tcp_options(sock)
        if congestion:
            _set_congestion(sock, congestion)
    except Exception:
        sock.close()
        raise
    return sock
