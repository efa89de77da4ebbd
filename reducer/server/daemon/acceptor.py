"""Accepts connections, reads the 16-byte preface of each, and passes the socket to its lane.

Everything before the preface is untrusted: at most 16 bytes are read, within 2 s. Up to 4,096 such
sockets are held, and at most a quarter of the descriptors; then the oldest makes room. A stranger
that is held costs a socket. A stranger that is cut off and connects again costs 50 us of the main
process's time.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import select
import socket
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, cast

from google_crc32c import value as crc32c

from reducer.core.surface.control_frames import control_frame
from reducer.log import RateLimit
from reducer.server import file_descriptors
from reducer.server.sockets import peer_name
from reducer.status import redirect
from reducer.wire import messages
from reducer.wire.codes import ErrorCode
from reducer.wire.errors import BadFrameError, ProtocolVersionError
from reducer.wire.header import (
    PREFACE_MAGIC,
    PREFACE_SIZE,
    Preface,
    PrefaceFlag,
    pack_preface,
    unpack_preface,
)

logger = logging.getLogger("reducer.acceptor")

PREFACE_SECONDS = 2.0  # the same as in NATS
_SWEEP_SECONDS = 0.05  # deadlines closer than this are handled together
# The most bytes that a refused peer may still send while it reads the answer.
_MAX_DISCARDED = 1 << 20
_REST_SECONDS = 0.1  # for a listener that can neither accept nor refuse
_AT_ONCE = 64  # connections and sockets with bytes, before the rest of the process has its turn

_MODE_FLAGS = {"open": 0, "psk": PrefaceFlag.PSK, "tls": PrefaceFlag.TLS}
# The text for a worker in mode open, which needs no proof of the reducer.
_NEEDS = {
    "psk": (
        "this reducer wants proof of a key (mode psk), and this worker has none: give the worker "
        "the reducer's key file by connect(key_file=...) or REDUCER_KEY_FILE"
    ),
    "tls": (
        "this reducer wants TLS and a certificate (mode tls), and this worker has none: give "
        "the worker connect(tls_cert=..., tls_key=..., tls_ca=...), or REDUCER_TLS_CERT, _KEY and "
        "_CA"
    ),
}

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

# Gets lane, socket and preface. Returns False if the lane takes no more; the socket is then still
# the acceptor's.
PassSocket = Callable[[int, socket.socket, bytes], bool]


class _Waiting:
    """A socket whose preface is not complete, or that was refused and still reads the reason."""

    __slots__ = ("address", "data", "discarded", "over", "refused", "sock", "until")

    def __init__(self, sock: socket.socket, address: object, until: float) -> None:
        self.sock = sock
        self.address = address
        self.until = until
        self.data = b""
        self.discarded = 0
        self.refused = False
        self.over = False


class Acceptor:
    """Accepts on ``listeners`` until `stop`. ``refused`` counts refusals by cause.

    A worker in another mode than ``mode`` is sent the reason and refused. An HTTP client is told
    ``metrics_address``, where the metrics are.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        lanes: int,
        pass_socket: PassSocket,
        mode: str,
        metrics_address: str,
    ) -> None:
        self.refused: Counter[str] = Counter()
        self.passed = 0
        self._listeners = {listener.fileno(): listener for listener in listeners}
        self._lanes = lanes
        self._pass_socket = pass_socket
        self._mode = mode
        self._redirect = redirect.redirect_to(metrics_address)
        # The oldest first. A plain dict finds its first entry only after a walk over removed ones.
        self._waiting: OrderedDict[int, _Waiting] = OrderedDict()
        self._room = file_descriptors.room_for_waiting()
        self._limit = RateLimit(1.0)
        self._reserve = _open_reserve()
        self._resting: dict[int, asyncio.TimerHandle] = {}  # listeners, by descriptor
        # One reader and one timer of the loop for all sockets: strangers may come by the thousand,
        # and a reader and a timer for each would cost more than its connection.
        self._epoll = select.epoll()
        self._deadline: asyncio.TimerHandle | None = None

    def start(self) -> None:
        for fd in self._listeners:
            self._epoll.register(fd, select.EPOLLIN)
        asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._on_ready)

    def stop(self) -> None:
        """Close the listeners and every socket that was not passed to a lane."""
        asyncio.get_running_loop().remove_reader(self._epoll.fileno())
        if self._deadline is not None:
            self._deadline.cancel()
        for waiting in list(self._waiting.values()):
            self._end(waiting)
        for timer in self._resting.values():
            timer.cancel()
        self._epoll.close()
        for listener in self._listeners.values():
            listener.close()
        if self._reserve is not None:
            os.close(self._reserve)

    def _on_ready(self) -> None:
        for fd, _ in self._epoll.poll(0, _AT_ONCE):
            listener = self._listeners.get(fd)
            waiting = self._waiting.get(fd)
            if listener is not None:
                self._on_connections(listener)
            elif waiting is not None:  # None: it has just made room for another socket
                self._on_bytes(waiting)

    def _on_connections(self, listener: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, address = _accept(listener)
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._refuse_one(listener, error)
                return
            self._welcome(sock, address)

    def _refuse_one(self, listener: socket.socket, error: OSError) -> None:
        """Accept one connection on the reserve descriptor, and close it.

        Otherwise the pending connection would wake the loop forever.
        """
        self._note("descriptors", None, os.strerror(error.errno or 0))
        if self._reserve is None:
            self._rest(listener.fileno())
            return
        os.close(self._reserve)
        self._reserve = None  # a client may get this number
        try:
            sock = listener.accept()[0]
        except OSError:  # something other than descriptors is exhausted
            self._rest(listener.fileno())
        else:
            with contextlib.suppress(OSError), sock:
                sock.setblocking(False)
                text = f"this reducer cannot accept: {error.strerror}; raise its limit (ulimit -n)"
                sock.send(_error(ErrorCode.UNAVAILABLE, text))
        self._reserve = _open_reserve()

    def _rest(self, fd: int) -> None:
        """Leave the connections of a listener to its backlog for a moment."""
        self._epoll.unregister(fd)
        loop = asyncio.get_running_loop()
        self._resting[fd] = loop.call_later(_REST_SECONDS, self._resume, fd)

    def _resume(self, fd: int) -> None:
        try:
            self._reserve = _open_reserve() if self._reserve is None else self._reserve
            self._epoll.register(fd, select.EPOLLIN)
        except (OSError, MemoryError):  # the kernel has no memory for this either
            loop = asyncio.get_running_loop()
            self._resting[fd] = loop.call_later(_REST_SECONDS, self._resume, fd)
        else:
            del self._resting[fd]

    def _welcome(self, sock: socket.socket, address: object) -> None:
        now = asyncio.get_running_loop().time()
        waiting = _Waiting(sock, address, now + PREFACE_SECONDS)
        self._on_bytes(waiting)  # most workers have sent their preface by now
        if not waiting.over:
            try:
                self._wait_for(waiting)
            except Exception:  # no event or timer would close it
                self._waiting.pop(sock.fileno(), None)
                sock.close()
                raise

    def _wait_for(self, waiting: _Waiting) -> None:
        if len(self._waiting) >= self._room:
            oldest = next(iter(self._waiting.values()))
            self._note("crowded", oldest, "no preface came, and another connection needs the place")
            self._end(oldest)
        fd = waiting.sock.fileno()
        self._waiting[fd] = waiting
        self._epoll.register(fd, select.EPOLLIN)
        if self._deadline is None:
            self._on_deadline()

    def _on_bytes(self, waiting: _Waiting) -> None:
        try:
            if waiting.refused:
                self._discard(waiting)
                return
            data = waiting.sock.recv(PREFACE_SIZE - len(waiting.data), socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._end(waiting)
            return
        waiting.data += data
        if waiting.data.startswith(redirect.REQUEST):
            self._refuse(waiting, self._redirect)
        elif redirect.REQUEST.startswith(waiting.data):
            return
        elif not waiting.data.startswith(PREFACE_MAGIC[: len(waiting.data)]):
            self._note("garbage", waiting, _guess(waiting.data))
            self._end(waiting)
        elif len(waiting.data) == PREFACE_SIZE:
            self._on_preface(waiting)

    def _on_preface(self, waiting: _Waiting) -> None:
        try:
            preface = unpack_preface(waiting.data)
        except ProtocolVersionError as error:
            self._note("version", waiting, str(error))
            self._refuse(waiting, pack_preface(0))
            return
        except BadFrameError as error:
            self._note("garbage", waiting, str(error))
            self._refuse(waiting, _error(ErrorCode.PROTOCOL, str(error)))
            return
        if not self._same_mode(waiting, preface):
            return
        if preface.lane >= self._lanes:
            text = f"lane {preface.lane} was asked for, this reducer has {self._lanes}"
            self._note("lane", waiting, text)
            self._refuse(waiting, _error(ErrorCode.PROTOCOL, text))
            return
        if self._pass_socket(preface.lane, self._forget(waiting), waiting.data):
            self.passed += 1
        else:
            self._note("busy", waiting, f"lane {preface.lane} takes no more connections")
            waiting.sock.close()

    def _same_mode(self, waiting: _Waiting, preface: Preface) -> bool:
        """Whether the worker has the reducer's mode; if not, it is refused.

        A worker that requires proof does not trust an ERROR, so it gets the preface of the
        reducer's mode.
        """
        ours = _MODE_FLAGS[self._mode]
        if preface.flags == ours:
            return True
        if not preface.flags:
            what = "key" if self._mode == "psk" else "certificate"
            self._note("plain", waiting, f"it has no {what}, and this reducer requires one")
            self._refuse(waiting, _error(ErrorCode.AUTHENTICATION, _NEEDS[self._mode]))
        elif preface.flags == PrefaceFlag.PSK:
            text = f"it asks for mode psk, and this reducer has no key (mode {self._mode})"
            self._note("keyless", waiting, text)
            self._refuse(waiting, pack_preface(preface.lane, ours))
        else:
            text = f"it asks for mode tls, and this reducer has no certificate (mode {self._mode})"
            self._note("uncertified", waiting, text)
            self._refuse(waiting, pack_preface(preface.lane, ours))
        return False

    def _refuse(self, waiting: _Waiting, answer: bytes) -> None:
        """Answer, then wait for the peer's end.

        Closing at once would send RST, which destroys an answer that the peer has not read.
        """
        waiting.refused = True
        try:
            waiting.sock.send(answer, socket.MSG_DONTWAIT)
            waiting.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._end(waiting)

    def _discard(self, waiting: _Waiting) -> None:
        data = waiting.sock.recv(65_536, socket.MSG_DONTWAIT)
        waiting.discarded += len(data)
        if not data or waiting.discarded > _MAX_DISCARDED:
            self._end(waiting)

    def _on_deadline(self) -> None:
        """End the sockets whose time is over, and set the timer for the oldest of the others."""
        loop = asyncio.get_running_loop()
        self._deadline = None
        until = loop.time() + _SWEEP_SECONDS
        while self._waiting:
            oldest = next(iter(self._waiting.values()))
            if oldest.until > until:
                self._deadline = loop.call_at(oldest.until, self._on_deadline)
                return
            if not oldest.refused:
                text = f"{len(oldest.data)} of {PREFACE_SIZE} bytes came in {PREFACE_SECONDS:g} s"
                self._note("slow", oldest, text)
            self._end(oldest)

    def _forget(self, waiting: _Waiting) -> socket.socket:
        waiting.over = True
        fd = waiting.sock.fileno()
        if self._waiting.pop(fd, None) is not None:
            self._epoll.unregister(fd)  # epoll would keep it after close(), as the lane has a copy
        return waiting.sock

    def _end(self, waiting: _Waiting) -> None:
        self._forget(waiting).close()

    def _note(self, cause: str, waiting: _Waiting | None, text: str) -> None:
        self.refused[cause] += 1
        held = self._limit.admit(asyncio.get_running_loop().time())
        if held is not None:
            peer = "a connection" if waiting is None else peer_name(waiting.sock, waiting.address)
            more = f" ({held} more since the last such line)" if held else ""
            logger.warning("refused %s (%s): %s%s", peer, cause, text, more)


def _error(code: ErrorCode, text: str) -> bytes:
    return control_frame(messages.Error(code=code, message=text), crc32c)


def _accept(listener: socket.socket) -> tuple[socket.socket, object]:
    """Like `socket.accept`, but closes the descriptor if there is no memory for the object."""
    fd, address = cast(Any, listener)._accept()  # this method has no public name
    try:
        return socket.socket(listener.family, listener.type, listener.proto, fileno=fd), address
    except Exception:
        os.close(fd)
        raise


def _open_reserve() -> int | None:
    """Open the reserve descriptor, to be closed for one more connection; None on failure."""
    try:
        return os.open(os.devnull, os.O_RDONLY)
    except OSError as error:
        if error.errno not in _EXHAUSTED:
            raise
        return None


def _guess(data: bytes) -> str:
    if data.startswith((b"POST", b"HEAD", b"PUT ", b"OPTI")):
        return "this is HTTP; the metrics have their own port (--metrics-port)"
    if data.startswith(b"\x16\x03"):
        return "this is TLS without a preface: not a worker"
    return f"no preface: the first bytes are {data[:8]!r}"
