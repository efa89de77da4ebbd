"""Accepts, reads the 16-byte preface of each connection, and passes the socket to its lane.

Everything before the preface is untrusted: at most 16 bytes are read for a deadline of 2 s, and
at most 256 such sockets are held, the oldest making room.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections import Counter
from collections.abc import Callable, Sequence

from reducer.errors import BadFrameError, ProtocolVersionError
from reducer.log import RateLimit
from reducer.server.listening import peer_name, tune
from reducer.wire import messages
from reducer.wire.codes import ErrorCode, MessageKind
from reducer.wire.header import (
    PREFACE_MAGIC,
    PREFACE_SIZE,
    Crc,
    Header,
    Preface,
    PrefaceFlag,
    pack_header,
    pack_preface,
    unpack_preface,
)

logger = logging.getLogger("reducer.acceptor")

PREFACE_SECONDS = 2.0  # the value of NATS
MAX_WAITING = 256
# Bytes that a refused peer may still send while it reads our answer; then it is cut off.
_MAX_DISCARDED = 1 << 20

_MODE_FLAGS = {"open": 0, "psk": PrefaceFlag.PSK, "tls": PrefaceFlag.TLS}
# What a worker of mode open is told, which believes us; for the log, what it lacks.
_NEEDS = {
    "psk": (
        "this reducer wants proof of a key (mode psk), and this worker has none: give it the key "
        "file of the reducer by connect(key_file=...) or REDUCER_KEY_FILE"
    ),
    "tls": (
        "this reducer wants TLS and a certificate (mode tls), and this worker has none: give it "
        "connect(tls_cert=..., tls_key=..., tls_ca=...) or REDUCER_TLS_CERT, _KEY and _CA"
    ),
}

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

# (lane, socket, the preface that was read from it): False if the lane takes no more.
PassSocket = Callable[[int, socket.socket, bytes], bool]


class _Waiting:
    """A socket whose preface is not complete, or that has been refused and still reads why."""

    __slots__ = ("data", "discarded", "peer", "refused", "sock", "timer")

    def __init__(self, sock: socket.socket, peer: str, timer: asyncio.TimerHandle) -> None:
        self.sock = sock
        self.peer = peer
        self.timer = timer
        self.data = b""
        self.refused = False
        self.discarded = 0


class Acceptor:
    """Accepts on ``listeners`` until `stop`. ``refused`` counts refusals by cause.

    A worker of another mode than ``mode`` is told and refused.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        lanes: int,
        pass_socket: PassSocket,
        crc32c: Crc,
        mode: str,
    ) -> None:
        self.refused: Counter[str] = Counter()
        self.passed = 0
        self._listeners = listeners
        self._lanes = lanes
        self._pass_socket = pass_socket
        self._crc32c = crc32c
        self._mode = mode
        self._waiting: dict[int, _Waiting] = {}
        self._limit = RateLimit(1.0)
        self._reserve = os.open(os.devnull, os.O_RDONLY)

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            loop.add_reader(listener.fileno(), self._on_connections, listener)

    def stop(self) -> None:
        """Close the listeners and every socket that no lane has."""
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            loop.remove_reader(listener.fileno())
            listener.close()
        for waiting in list(self._waiting.values()):
            self._end(waiting)
        os.close(self._reserve)

    def _on_connections(self, listener: socket.socket) -> None:
        for _ in range(64):  # then the other sockets get their turn
            try:
                sock = listener.accept()[0]
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._refuse_one(listener, error)
                return
            self._welcome(sock)

    def _refuse_one(self, listener: socket.socket, error: OSError) -> None:
        """Without this a pending connection that cannot be accepted would wake us for ever."""
        os.close(self._reserve)
        with contextlib.suppress(OSError), listener.accept()[0] as sock:
            sock.setblocking(False)
            text = f"this reducer cannot accept: {error.strerror}; raise its limit (ulimit -n)"
            sock.send(self._error(ErrorCode.UNAVAILABLE, text))
        self._note("descriptors", "a connection", os.strerror(error.errno or 0))
        self._reserve = os.open(os.devnull, os.O_RDONLY)

    def _welcome(self, sock: socket.socket) -> None:
        try:
            peer = peer_name(sock)
            tune(sock)
        except OSError:  # the peer is gone already
            sock.close()
            return
        if len(self._waiting) >= MAX_WAITING:
            oldest = next(iter(self._waiting.values()))
            self._note("crowded", oldest.peer, "no preface came, and others wait for the place")
            self._end(oldest)
        loop = asyncio.get_running_loop()
        fd = sock.fileno()
        timer = loop.call_later(PREFACE_SECONDS, self._on_deadline, fd)
        self._waiting[fd] = _Waiting(sock, peer, timer)
        loop.add_reader(fd, self._on_bytes, fd)

    def _on_bytes(self, fd: int) -> None:
        waiting = self._waiting[fd]
        try:
            if waiting.refused:
                self._discard(waiting)
                return
            data = waiting.sock.recv(PREFACE_SIZE - len(waiting.data))
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._end(waiting)
            return
        waiting.data += data
        if not waiting.data.startswith(PREFACE_MAGIC[: len(waiting.data)]):
            self._note("garbage", waiting.peer, _guess(waiting.data))
            self._end(waiting)
        elif len(waiting.data) == PREFACE_SIZE:
            self._on_preface(waiting)

    def _on_preface(self, waiting: _Waiting) -> None:
        try:
            preface = unpack_preface(waiting.data)
        except ProtocolVersionError as error:
            self._note("version", waiting.peer, str(error))
            self._refuse(waiting, pack_preface(0))
            return
        except BadFrameError as error:
            self._note("garbage", waiting.peer, str(error))
            self._refuse(waiting, self._error(ErrorCode.PROTOCOL, str(error)))
            return
        if not self._same_mode(waiting, preface):
            return
        if preface.lane >= self._lanes:
            text = f"lane {preface.lane} was asked for, this reducer has {self._lanes}"
            self._note("lane", waiting.peer, text)
            self._refuse(waiting, self._error(ErrorCode.PROTOCOL, text))
            return
        sock = self._forget(waiting)
        if self._pass_socket(preface.lane, sock, waiting.data):
            self.passed += 1
        else:
            self._note("busy", waiting.peer, f"lane {preface.lane} takes no more connections")

    def _same_mode(self, waiting: _Waiting, preface: Preface) -> bool:
        """Else the worker is told what is missing: one that wants proof believes no words, and
        gets the preface of our own mode."""
        ours = _MODE_FLAGS[self._mode]
        if preface.flags == ours:
            return True
        if not preface.flags:
            what = "key" if self._mode == "psk" else "certificate"
            self._note("plain", waiting.peer, f"it came without a {what}, and this reducer has one")
            self._refuse(waiting, self._error(ErrorCode.AUTHENTICATION, _NEEDS[self._mode]))
        elif preface.flags == PrefaceFlag.PSK:
            text = f"it asks for mode psk, and this reducer has no key (mode {self._mode})"
            self._note("keyless", waiting.peer, text)
            self._refuse(waiting, pack_preface(preface.lane, ours))
        else:
            text = f"it asks for mode tls, and this reducer has no certificate (mode {self._mode})"
            self._note("uncertified", waiting.peer, text)
            self._refuse(waiting, pack_preface(preface.lane, ours))
        return False

    def _refuse(self, waiting: _Waiting, answer: bytes) -> None:
        """Answer, then wait for the peer's end: closing at once would send RST, and RST
        destroys an answer that the peer has not read."""
        waiting.refused = True
        try:
            waiting.sock.send(answer)
            waiting.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._end(waiting)

    def _discard(self, waiting: _Waiting) -> None:
        data = waiting.sock.recv(65_536)
        waiting.discarded += len(data)
        if not data or waiting.discarded > _MAX_DISCARDED:
            self._end(waiting)

    def _on_deadline(self, fd: int) -> None:
        waiting = self._waiting[fd]
        if not waiting.refused:
            text = f"{len(waiting.data)} of {PREFACE_SIZE} bytes came in {PREFACE_SECONDS:g} s"
            self._note("slow", waiting.peer, text)
        self._end(waiting)

    def _forget(self, waiting: _Waiting) -> socket.socket:
        fd = waiting.sock.fileno()
        waiting.timer.cancel()
        asyncio.get_running_loop().remove_reader(fd)
        del self._waiting[fd]
        return waiting.sock

    def _end(self, waiting: _Waiting) -> None:
        self._forget(waiting).close()

    def _note(self, cause: str, peer: str, text: str) -> None:
        self.refused[cause] += 1
        held = self._limit.admit(asyncio.get_running_loop().time())
        if held is not None:
            more = f" ({held} more since the last such line)" if held else ""
            logger.warning("refused %s (%s): %s%s", peer, cause, text, more)

    def _error(self, code: ErrorCode, text: str) -> bytes:
        payload = messages.encode(messages.Error(code=code, message=text))
        header = Header(MessageKind.ERROR, length=len(payload), payload_crc=self._crc32c(payload))
        return pack_header(header, self._crc32c) + payload


def _guess(data: bytes) -> str:
    if data.startswith((b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI")):
        return "this is HTTP; the metrics have a port of their own (--metrics-port)"
    if data.startswith(b"\x16\x03"):
        return "this is TLS without our preface: no worker of ours"
    return f"no preface: the first bytes are {data[:8]!r}"
