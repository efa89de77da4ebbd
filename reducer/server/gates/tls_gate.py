"""The gate of mode tls: handshakes, until a certificate has shown what the worker may join.

Threads run OpenSSL's part of the handshakes. The loop does the cheap part: it reads bytes, and
sends what OpenSSL has written.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import cast

from reducer.server.gates.gate import Admit, Gate, Newcomer
from reducer.server.gates.handshake_threads import THREADS, HandshakeThreads
from reducer.server.gates.tls import permit_of
from reducer.server.gates.tls_errors import explain, is_ours
from reducer.server.gates.tls_link import RECORD_HEADER, RECORDS_AT_ONCE, TlsLink

# The most bytes that a newcomer may send. A ClientHello and a chain of three certificates need 6
# KiB.
RECEIVED_BYTES = 16_384
# Nothing else runs between get_buffer and buffer_updated, so one buffer serves all newcomers. It is
# small because TLS's memory grows with the bytes that it is given at once, and never shrinks.
_RECEIVED = memoryview(bytearray(4_096))
# RFC 8446, section 5: the types of a record of TLS 1.3, and its greatest length.
_RECORD_TYPES = range(20, 24)
_RECORD_MAJOR = 3
_RECORD_BYTES = 16_384 + 256


def whole_records(data: bytes | bytearray) -> int:
    """The length of the first complete records, RECORDS_AT_ONCE at most.

    The length of all bytes if they are not records of TLS.
    """
    end = 0
    for _ in range(RECORDS_AT_ONCE):
        if end == len(data):
            break
        record = data[end : end + RECORD_HEADER]
        if record[0] not in _RECORD_TYPES:
            return len(data)
        if len(record) < RECORD_HEADER:
            break
        size = int.from_bytes(record[3:], "big")
        if record[1] != _RECORD_MAJOR or size > _RECORD_BYTES:
            return len(data)
        if end + RECORD_HEADER + size > len(data):
            break
        end += RECORD_HEADER + size
    return end


class TlsGate(Gate):
    """Runs the TLS handshakes of one lane, a few steps at a time, in threads."""

    def __init__(self, context: ssl.SSLContext, admit: Admit) -> None:
        super().__init__(admit)
        self._context = context
        self._threads = HandshakeThreads()
        self._ready: dict[Newcomer, TlsNewcomer] = {}  # newcomers that wait for a thread, in order
        self._running: list[TlsNewcomer] = []

    def newcomer(self, preface: bytes) -> TlsNewcomer:
        return TlsNewcomer(self, self._context, preface)

    def leave(self, newcomer: Newcomer) -> bool:
        waiting = self._ready.pop(newcomer, None)
        if waiting is not None:
            waiting.is_stepping = False
        return super().leave(newcomer)

    def begin_step(self, newcomer: TlsNewcomer) -> None:
        """Run the next step of the handshake as soon as a thread is free."""
        self._ready[newcomer] = newcomer
        self._use_threads()

    def end_steps(self) -> None:
        for newcomer in [one for one in self._running if one.has_stepped]:
            self._running.remove(newcomer)
            newcomer.ask()
        self._use_threads()

    def _use_threads(self) -> None:
        while self._ready and len(self._running) < THREADS:
            newcomer = self._ready.pop(next(iter(self._ready)))
            self._threads.do(newcomer.step)
            self._running.append(newcomer)

    def tick(self) -> None:
        self.end_steps()
        super().tick()

    def close(self) -> None:
        super().close()
        self._threads.close()


class TlsNewcomer(Newcomer):
    """A newcomer in mode tls.

    A worker that fails is sent TLS's alert with the reason, and has the rest of the 2 seconds to
    read it. Closing at once would send a RST, which destroys bytes in flight.

    From `begin_step` to `has_stepped`, the TLS object and its two BIOs belong to a thread.
    """

    __slots__ = (
        "_ends", "_error", "_incoming", "_loop", "_outgoing", "_pending", "_preface", "_received",
        "_steps", "_tls", "_told", "_waits", "has_stepped", "is_stepping",
    )  # fmt: skip

    def __init__(self, gate: TlsGate, context: ssl.SSLContext, preface: bytes) -> None:
        super().__init__(gate)
        self._steps = gate
        self._loop = asyncio.get_running_loop()
        self.is_stepping = False
        self.has_stepped = False
        self._error: Exception | None = None  # of the last step
        self._waits = False
        self._ends = False  # the peer has sent EOF
        self._preface = preface
        self._received = 0
        self._pending = bytearray()  # bytes that TLS was not given yet
        self._told = False
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _RECEIVED[: RECEIVED_BYTES - self._received]

    def _take_bytes(self, nbytes: int) -> None:
        self._received += nbytes
        if not self._told:
            self._pending += _RECEIVED[:nbytes]
            if not self.is_stepping:
                self.ask()
        if self._received == RECEIVED_BYTES:
            self.refuse(
                "oversized", f"{RECEIVED_BYTES} bytes came without the end of the handshake"
            )

    def ask(self) -> None:
        """Ask the gate, once, to continue this handshake."""
        if not self._waits:
            self._waits = True
            self._gate.work_for(self)

    def _go_on(self) -> None:
        self._waits = False
        if self.is_stepping:
            self.is_stepping = False
            self._end_step()
        else:
            self._begin_step()

    def _begin_step(self) -> None:
        """Begin a step once a complete record has come.

        Until then its bytes are collected, which costs the loop less than a step.
        """
        end = whole_records(self._pending)
        if end:
            self._incoming.write(self._pending[:end])
            del self._pending[:end]
            self.has_stepped, self.is_stepping = False, True
            self._steps.begin_step(self)
        elif self._ends:
            self._transport.close()

    def eof_received(self) -> bool:
        """Keep the connection until the bytes are decrypted: an alert may give the reason."""
        self._ends = True
        return self.is_stepping or self._waits

    def step(self) -> None:
        """Go on with the handshake, in one of the handshake threads."""
        try:
            self._tls.do_handshake()
        except Exception as error:
            self._error = error.with_traceback(None)  # the traceback's frames refer to this object
        else:
            self._error = None
        self.has_stepped = True
        try:  # noqa: SIM105  # suppress() takes memory, which may be what has ended
            self._loop.call_soon_threadsafe(self._steps.end_steps)
        except Exception:  # the tick finds finished steps too
            pass

    def _end_step(self) -> None:
        error, self._error = self._error, None
        try:
            if error is None:
                self._hand_over()
            elif isinstance(error, ssl.SSLWantReadError):
                self._send()
                self._begin_step()
            elif isinstance(error, ssl.SSLError) and not is_ours(error):
                self._tell(*explain(error))
            else:
                raise error
        finally:
            del error  # else the error and its traceback would be a cycle

    def _why_it_left(self) -> str:
        return "it closed the connection before the end of the TLS handshake"

    def _send(self) -> None:
        if self._outgoing.pending:
            self._transport.write(self._outgoing.read())

    def _tell(self, cause: str, text: str) -> None:
        self._told = True
        self._gate.note(cause, self._peer, text)
        self._send()
        if self._ends:
            self._transport.close()
        else:
            self._transport.write_eof()

    def refuse(self, cause: str, text: str) -> None:
        if self._told:
            self._end()
            self._transport.abort()
        else:
            super().refuse(cause, text)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._told:
            self._end()
        super().connection_lost(exc)

    def forget(self) -> None:
        if self.has_stepped or not self.is_stepping:  # else the thread still uses them
            del self._tls, self._incoming, self._outgoing

    def _hand_over(self) -> None:
        self._end()
        self._incoming.write(self._pending)
        permit = permit_of(self._tls.getpeercert() or {})
        connection = self._gate.admit(permit)
        link = TlsLink(self._transport, self._tls, self._incoming, self._outgoing, connection)
        self._transport.set_protocol(cast(asyncio.BufferedProtocol, link))
        # The preface came in the clear. Sent back inside TLS, it shows the worker that nobody
        # changed it.
        link.write(self._preface)
        link.begin()
        if self._ends:
            self._transport.close()
