"""TLS between a socket and a Connection, after the handshake.

What is written is encrypted at once, into memory of TLS's own: the buffers of a frame are free when
`writelines` returns. Each reader that lags has a copy of its own, up to what it may leave unread.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Iterable
from typing import Any

from reducer.server.protocol import Connection, clock

# Between get_buffer and buffer_updated nothing else runs: one buffer serves every connection. What
# is read and may not be delivered yet stays encrypted, so much at most.
_RECEIVED = memoryview(bytearray(64 << 10))
# Until a chunk has come. TLS's memory grows with what it is given at once, and stays as large.
_FIRST_RECEIVED = _RECEIVED[: 4 << 10]


class TlsLink(asyncio.BufferedProtocol, asyncio.Transport):
    """The protocol of a socket's transport, and the transport of a Connection.

    An end without TLS's close_notify is an end like any other: frames say what matters (BYE), and
    one that is cut off counts for nothing.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        tls: ssl.SSLObject,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        connection: Connection,
    ) -> None:
        super().__init__()
        self._transport = transport
        self._tls = tls
        self._incoming = incoming
        self._outgoing = outgoing
        self._connection = connection
        self._error: Exception | None = None
        self._paused = False

    def begin(self) -> None:
        """Tell the connection, and give it what came with the end of the handshake."""
        self._connection.connection_made(self)
        self._deliver()

    # --- the protocol of the socket ---

    def get_buffer(self, sizehint: int) -> memoryview:
        return _RECEIVED if self._connection.has_chunks else _FIRST_RECEIVED

    def buffer_updated(self, nbytes: int) -> None:
        if not self._connection.is_closing():
            self._incoming.write(_RECEIVED[:nbytes])
            self._deliver()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(self._error or exc)

    def _deliver(self) -> None:
        more = True
        while more and not self._paused and not self._connection.is_closing():
            room = memoryview(self._connection.get_buffer(-1))
            started = clock()
            try:
                got = self._decrypt(room)
            except ssl.SSLError as error:
                self._error = error.with_traceback(None)  # whose frames know this object
                self._transport.abort()
                return
            self._connection.spend(clock() - started)
            if got:
                self._connection.buffer_updated(got)
            more = got == len(room)
        self._send()  # what TLS itself has to answer

    def _decrypt(self, room: memoryview) -> int:
        """Fill it as far as whole records have come: each call gives one at most."""
        got = 0
        with contextlib.suppress(ssl.SSLWantReadError):
            while got < len(room):
                size = int(self._tls.read(len(room) - got, room[got:]))
                if not size:  # close_notify
                    break
                got += size
        return got

    # --- the transport of the connection ---

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        plain = 0
        for data in list_of_data:
            rest = memoryview(data)
            plain += len(rest)
            while rest:
                rest = rest[self._tls.write(rest) :]
        self._send(plain)

    def pause_reading(self) -> None:
        self._paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Deliver what has been read; then read on, unless that was too much again."""
        if self._paused:
            self._paused = False
            asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._paused or self._transport.is_closing():
            return
        self._deliver()
        if not self._paused and not self._transport.is_closing():
            self._transport.resume_reading()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        with contextlib.suppress(ssl.SSLError):  # it would wait for the worker's close_notify
            self._tls.unwrap()
        self._send()
        self._transport.write_eof()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def abort(self) -> None:
        self._transport.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def _send(self, plain: int = 0) -> None:
        if self._outgoing.pending and not self._transport.is_closing():
            data = self._outgoing.read()
            self._connection.overhead += len(data) - plain
            self._transport.write(data)
