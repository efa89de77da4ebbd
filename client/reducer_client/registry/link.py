"""The connection of a `DaemonRegistry`: one thread that connects, sends calls and reads answers.

Laws:

- The thread alone touches the socket. Callers hand in calls and wait for their ends.
- A call stays until it is answered or its caller gives it up. After a lost connection all calls are
  sent again, in their order. So every call must be one that may be carried out twice.
- Leases are renewed three times in their time, and at once after each connection.
"""

from __future__ import annotations

import contextlib
import logging
import random
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from google_crc32c import extend

from reducer.wire import errors as wire
from reducer.wire import messages
from reducer.wire.codes import MessageKind
from reducer.wire.decoder import Decoder, Frame
from reducer.wire.header import HEADER_SIZE, Buffer, Header, pack_header
from reducer_client.errors import ClosedError, ProtocolError, ReducerError, from_engine
from reducer_client.registry.dial import Dialer

logger = logging.getLogger("reducer_client.registry")

FIRST_WAIT = 0.05  # before the next attempt to connect; doubled each time
LONGEST_WAIT = 1.0
# Without an answer for this long beyond what the call may wait, the connection counts as dead.
MOST_SILENCE = 5.0
CLOSE_SECONDS = 1.0  # for the ends of the leases
RENEWALS = 3  # in the time of a lease
_IDLE_SECONDS = 60.0


class Call:
    """One call, until its last answer or an error. ``waits``: seconds that it may wait there.

    ``is_renewal``: the thread has made the call, and makes another one for the next connection.
    """

    def __init__(
        self, message: messages.RegistryCall, waits: float = 0.0, is_renewal: bool = False
    ) -> None:
        self.message = message
        self.waits = waits
        self.is_renewal = is_renewal
        self.parts: list[messages.RegistryRecord] = []
        self.error: ReducerError | None = None
        self.ended = threading.Event()
        self.sent_at: float | None = None
        self.was_repeated = False

    def fail(self, error: ReducerError) -> None:
        self.error = error
        self.ended.set()


@dataclass
class HeldLease:
    """A lease that the thread renews."""

    name: str
    holder: str
    value: bytes
    seconds: float
    due: float = field(default=0.0)

    def call(self, seconds: float) -> messages.RegistryCall:
        return messages.RegistryCall(
            "lease",
            name=self.name,
            holder=self.holder,
            value=self.value,
            milliseconds=round(seconds * 1000),
        )


class Link:
    """``cause``: why there is no connection, for the text of an error; "" while there is one."""

    def __init__(self, dialer: Dialer, timeout: float) -> None:
        self.cause = ""
        self.is_connected = False
        self._dialer = dialer
        self._timeout = timeout
        self._silence = min(MOST_SILENCE, timeout / 2)
        self._lock = threading.Lock()
        self._calls: dict[int, Call] = {}
        self._unsent: list[int] = []
        self._leases: dict[tuple[str, str], HeldLease] = {}
        self._last_number = 0
        self._is_closing = False
        self._was_open = False  # an answer has come from this registry
        self._wait = 0.0  # before the next attempt to connect
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)
        self._far.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="registry", daemon=True)
        self._thread.start()

    # --- for callers ----------------------------------------------------------------------------

    def start(self, call: Call) -> int:
        """Send the call as soon as there is a connection. Returns its number."""
        with self._lock:
            if self._is_closing:
                raise ClosedError("this registry is closed", reason="closed")
            self._last_number += 1
            self._calls[self._last_number] = call
            self._unsent.append(self._last_number)
            number = self._last_number
        self._wake()
        return number

    def give_up(self, number: int) -> None:
        with self._lock:
            self._calls.pop(number, None)

    def hold(self, lease: HeldLease) -> None:
        """Renew the lease from now on, in place of another one of the same holder."""
        with self._lock:
            lease.due = time.monotonic() + lease.seconds / RENEWALS
            self._leases[lease.name, lease.holder] = lease
        self._wake()

    def release(self, lease: HeldLease) -> bool:
        """Renew the lease no more. Returns whether it was renewed until now."""
        with self._lock:
            if self._leases.get((lease.name, lease.holder)) is not lease:
                return False
            del self._leases[lease.name, lease.holder]
            return True

    def close(self, ends_leases: bool = True) -> None:
        with self._lock:
            if not ends_leases:
                self._leases.clear()
            self._is_closing = True
        self._fail_calls(ClosedError("this registry is closed", reason="closed"))
        self._wake()
        self._thread.join(2 * CLOSE_SECONDS)  # it may be connecting, and ends later then

    def _fail_calls(self, error: ReducerError) -> None:
        with self._lock:
            calls = list(self._calls.values())
            self._calls.clear()
            self._unsent.clear()
        for call in calls:
            call.fail(error)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # enough wakes wait, or the thread has ended
            self._near.send(b"\0")

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_closing:
                if not self._has_work():
                    self._sleep(_IDLE_SECONDS)
                    continue
                try:
                    self._talk(self._dialer.dial(self._silence))
                except (OSError, ReducerError, wire.ReductionError) as error:
                    self._note(error)
                    self._wait = min(LONGEST_WAIT, 2 * self._wait or FIRST_WAIT)
                    self._sleep(self._wait * random.uniform(0.5, 1.0))
        except Exception:
            logger.exception("internal error: the connection to the registry ends")
        finally:
            self._end()

    def _has_work(self) -> bool:
        with self._lock:
            return bool(self._calls or self._leases)

    def _sleep(self, seconds: float) -> None:
        """Wait for this time; if there is no work, only until a call comes."""
        until = time.monotonic() + seconds
        has_work = self._has_work()
        with selectors.DefaultSelector() as selector:
            selector.register(self._far, selectors.EVENT_READ)
            while not self._is_closing and (left := until - time.monotonic()) > 0:
                if selector.select(left):
                    self._drain_wakes()
                    if not has_work:
                        return

    def _drain_wakes(self) -> None:
        with contextlib.suppress(OSError):
            while self._far.recv(4096):
                pass

    def _note(self, error: Exception) -> None:
        """There is no connection. Before the first answer, some errors end the calls at once."""
        self.is_connected = False
        self.cause = str(error) or type(error).__name__
        if isinstance(error, wire.ReductionError):
            error = ProtocolError(f"{self._dialer.address}: {error}")
        if isinstance(error, ReducerError) and not self._was_open:
            self._fail_calls(error)

    def _end(self) -> None:
        self.is_connected = False
        with self._lock:
            self._is_closing = True
        self._fail_calls(ClosedError("this registry is closed", reason="closed"))
        self._near.close()
        self._far.close()

    def _talk(self, sock: socket.socket) -> None:
        """Use the connection until it ends. Raises an error unless nobody needs it any more."""
        with sock, selectors.DefaultSelector() as selector:
            talk = _Talk(sock, selector, self._far, self._answered)
            talk.send(0, messages.RegistryCall("open", job=self._dialer.job))
            with self._lock:
                for number, call in list(self._calls.items()):
                    if call.is_renewal:
                        del self._calls[number]
                self._unsent = list(self._calls)
                now = time.monotonic()
                for lease in self._leases.values():
                    lease.due = now
            while True:
                self._send_all(talk)
                if self._is_closing:  # asked after the wakes were drained: none is lost
                    self._say_goodbye(talk)
                    return
                if not talk.step(self._next_due()):
                    if self._has_work():
                        raise ConnectionError("the reducer closed the connection")
                    self.is_connected = False
                    return
                if self._is_silent(talk):
                    raise ConnectionError(f"no answer came for {self._silence:g} s")

    def _send_all(self, talk: _Talk) -> None:
        self._drain_wakes()  # first: what comes from here on wakes the thread again
        now = time.monotonic()
        with self._lock:
            numbers, self._unsent = self._unsent, []
            for number in numbers:
                call = self._calls.get(number)
                if call is not None:
                    call.was_repeated = call.sent_at is not None
                    call.sent_at = now
                    call.parts.clear()
                    talk.send(number, call.message)
            for lease in self._leases.values():
                if lease.due <= now:
                    lease.due = now + lease.seconds / RENEWALS
                    self._last_number += 1
                    renewal = Call(lease.call(lease.seconds), is_renewal=True)
                    renewal.sent_at = now
                    self._calls[self._last_number] = renewal
                    talk.send(self._last_number, renewal.message)

    def _next_due(self) -> float:
        """Seconds until something is to be done without a wake."""
        now = time.monotonic()
        with self._lock:
            due = [lease.due for lease in self._leases.values()]
            due += [
                call.sent_at + call.waits + self._silence
                for call in self._calls.values()
                if call.sent_at is not None
            ]
        return max(0.0, min(due, default=now + _IDLE_SECONDS) - now)

    def _is_silent(self, talk: _Talk) -> bool:
        now = time.monotonic()
        with self._lock:
            return any(
                call.sent_at is not None
                and now > max(call.sent_at + call.waits, talk.heard_at) + self._silence
                for call in self._calls.values()
            )

    def _answered(self, number: int, answer: messages.RegistryRecord) -> None:
        self._was_open = self.is_connected = True
        self.cause = ""
        self._wait = 0.0
        with self._lock:
            call = self._calls.get(number)
            if call is None:
                return
            call.parts.append(answer)
            if not answer.more:
                del self._calls[number]
        if answer.more:
            return
        if answer.code:
            text = f"the registry at {self._dialer.address}: {answer.message}"
            call.error = from_engine((answer.code, text, -1, "", "", -1))
        call.ended.set()

    def _say_goodbye(self, talk: _Talk) -> None:
        """End the leases, and wait a moment for the answers."""
        with self._lock:
            leases = list(self._leases.values())
            first = self._last_number + 1
            for lease in leases:
                self._last_number += 1
                self._calls[self._last_number] = Call(lease.call(0.0))
                talk.send(self._last_number, lease.call(0.0))
            last = self._last_number
        until = time.monotonic() + CLOSE_SECONDS
        while any(n in self._calls for n in range(first, last + 1)):
            left = until - time.monotonic()
            if left <= 0 or not talk.step(left):
                return


class _Talk:
    """One connection: frames out, answers in."""

    def __init__(
        self,
        sock: socket.socket,
        selector: selectors.BaseSelector,
        wakes: socket.socket,
        answered: Callable[[int, messages.RegistryRecord], None],
    ) -> None:
        self.heard_at = time.monotonic()
        self._sock = sock
        self._selector = selector
        self._answered = answered
        self._decoder = Decoder(crc32c, _room)
        self._out = bytearray()
        sock.setblocking(False)
        selector.register(sock, selectors.EVENT_READ)
        selector.register(wakes, selectors.EVENT_READ)

    def send(self, number: int, message: messages.RegistryCall) -> None:
        payload = messages.encode(message)
        header = Header(
            kind=MessageKind.REGISTRY,
            key=number,
            length=len(payload),
            payload_crc=crc32c(payload),
        )
        self._out += pack_header(header, crc32c) + payload

    def step(self, seconds: float) -> bool:
        """Send and receive, for at most this time. Returns False if the connection has ended."""
        self._write()
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out else 0)
        self._selector.modify(self._sock, events)
        self._selector.select(seconds)
        return self._read()

    def _write(self) -> None:
        try:
            while self._out:
                del self._out[: self._sock.send(self._out)]
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass

    def _read(self) -> bool:
        while True:
            try:
                data = self._sock.recv(1 << 16)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return True
            if not data:
                return False
            self.heard_at = time.monotonic()
            for frame in self._decoder.feed(data):
                self._take(frame)

    def _take(self, frame: Frame) -> None:
        payload = frame.payload or b""
        if frame.header.kind == MessageKind.ERROR:
            error = messages.decode(messages.Error, payload)
            raise from_engine((error.code, error.message, -1, error.reason, "", -1))
        if frame.header.kind != MessageKind.RECORD:
            kind = MessageKind(frame.header.kind).name
            raise wire.BadFrameError(f"a registry sent {kind}, expected RECORD or ERROR")
        self._answered(frame.header.key, messages.decode(messages.RegistryRecord, payload))


def crc32c(data: Buffer, before: int = 0) -> int:
    return int(extend(before, bytes(data)))


def _room(header: Header) -> memoryview:
    return memoryview(bytearray(header.length + HEADER_SIZE))
