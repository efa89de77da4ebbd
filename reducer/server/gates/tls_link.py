"""TLS between a socket and a Connection, after the handshake.

`writelines` encrypts at once, into TLS's own memory, so the buffers of a frame are free when it
returns. Each slow reader therefore has its own copy of the frames, up to its limit of unread bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Iterable
from typing import Any

from reducer.server.data.connection import READ_SECONDS, Connection, clock
from reducer.server.gates.tls_errors import is_ours

# Nothing else runs between get_buffer and buffer_updated, so one buffer serves all connections.
# Bytes that may not be delivered yet stay encrypted, this many at most.
_RECEIVED = memoryview(bytearray(64 << 10))
# Reads are small until a chunk has come: undelivered bytes are then the connection's own memory.
_FIRST_RECEIVED = _RECEIVED[: 4 << 10]
# How many bytes TLS is given at once to encrypt: its memory grows with that, and never shrinks.
WRITTEN_AT_ONCE = 128 << 10
# How many records TLS is given between two looks at the clock. A read works on all records until
# one has data; a record without data, such as a KeyUpdate, takes 10 to 25 us.
RECORDS_AT_ONCE = 16
# Type, version, and in the last two bytes the length of the rest.
RECORD_HEADER = 5
# The most records in a row without data, as OpenSSL limits empty records. A key is good for
# millions of records, so a worker rarely sends a KeyUpdate.
MOST_WITHOUT_DATA = 32
# The most bytes of TLS's own answers that a worker may leave unread: 300 key updates.
MOST_UNREAD_ANSWERS = 8 << 10


class TlsLink(asyncio.BufferedProtocol, asyncio.Transport):
    """The protocol of a socket's transport, and the transport of a Connection.

    An end without TLS's close_notify is accepted: a BYE frame tells a clean end, and a frame that
    is cut off does not count.
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
        self._received: bytes | memoryview = b""  # TLS was not given these bytes yet
        self._missing = 0  # bytes of the record that TLS was given last
        self._without_data = 0  # records in a row
        self._answers = 0  # bytes of TLS's own answers since everything was sent

    def begin(self) -> None:
        """Start the connection, and give it the bytes that came with the end of the handshake."""
        self._connection.connection_made(self)
        self._received = self._incoming.read()
        self._deliver()

    # --- the protocol of the socket ---

    def get_buffer(self, sizehint: int) -> memoryview:
        try:
            return self._room()
        except Exception as error:
            self._connection.fail(error)
            return _RECEIVED

    def _room(self) -> memoryview:
        self._connection.reads_since = clock()
        if self._connection.is_closing():
            return memoryview(self._connection.get_buffer(-1))
        kept = len(self._received)  # of a record's header; with more, reading is held
        if self._connection.turn.is_over:
            return _RECEIVED[kept : kept + 1]
        return _RECEIVED[kept:] if self._connection.has_chunks else _FIRST_RECEIVED[kept:]

    def buffer_updated(self, nbytes: int) -> None:
        try:
            self._take_bytes(nbytes)
        except Exception as error:
            self._connection.fail(error)

    def _take_bytes(self, nbytes: int) -> None:
        if self._connection.is_closing():
            self._connection.buffer_updated(nbytes)  # discards the bytes
            return
        kept = len(self._received)
        _RECEIVED[:kept] = self._received
        self._received = _RECEIVED[: kept + nbytes]
        seconds = READ_SECONDS + (clock() - self._connection.reads_since)
        self._connection.spend(seconds)  # may hold the connection
        self._deliver()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(self._error or exc)

    def _deliver(self) -> None:
        """Decrypt the bytes that were read, and pass them on until the turn is over."""
        more = True
        try:
            while more and not self._is_held():
                room = memoryview(self._connection.get_buffer(-1))
                got = self._decrypt(room)
                if got:
                    self._connection.reads_since = clock()  # decryption is charged already
                    self._connection.buffer_updated(got)
                more = 0 < got == len(room)
            self._answer()
            self._received = bytes(self._received)
        except ssl.SSLError as error:
            self._error = error.with_traceback(None)  # the traceback's frames refer to this object
            self._transport.abort()
            if is_ours(error):
                context = {"message": "TLS has failed, the worker dials again", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)
        except Exception as bug:  # the decrypted bytes are lost
            self._connection.fail(bug)

    def _is_held(self) -> bool:
        closing = self._connection.is_closing() or self._transport.is_closing()
        return self._paused or closing

    def _decrypt(self, room: memoryview) -> int:
        """Fill `room` from the records that have come, a few at a time, until the turn is over."""
        got, size = 0, len(room)
        started = clock()
        while self._incoming.pending or self._tls.pending() or self._give():
            try:
                got += self._read(room[got:])
            finally:  # failed decryption is charged as well
                now = clock()
                self._connection.spend(now - started)
                started = now
            if got == size or self._is_held():
                break
        return got

    def _give(self) -> bool:
        """Give TLS the next bytes that have arrived. Returns False if there are none."""
        received = self._received
        have, end, count = len(received), self._missing, 0
        most = 1 if self._connection.turn.is_over else RECORDS_AT_ONCE
        while count < most and end + RECORD_HEADER <= have:
            end += RECORD_HEADER + (received[end + 3] << 8) + received[end + 4]
            count += 1
        if not end or not have:
            return False
        self._incoming.write(received[:end])
        self._received = received[end:]
        self._missing = max(0, end - have)
        self._without_data += count
        return True

    def _read(self, room: memoryview) -> int:
        """Read decrypted bytes until `room` is full. One call of TLS gives one record at most."""
        got, size = 0, len(room)
        try:
            while got < size:
                more = int(self._tls.read(size - got, room[got:]))
                got += more
                if not more:  # close_notify: the peer sends no more
                    self._transport.close()
                if not more or not self._incoming.pending:
                    break
        except ssl.SSLWantReadError:
            pass
        if got:
            self._without_data = 0
        elif self._without_data > MOST_WITHOUT_DATA:
            self._connection.refuse(
                f"{self._without_data} TLS records in a row without data (KeyUpdate, or empty); "
                f"expected {MOST_WITHOUT_DATA} at most"
            )
        return got

    def _answer(self) -> None:
        """Send TLS's own messages. Refuse a peer that requests more of them than it reads."""
        size = self._outgoing.pending
        if not size:
            return
        if not self._transport.get_write_buffer_size():
            self._answers = 0
        self._answers += size
        if self._answers > MOST_UNREAD_ANSWERS:
            self._connection.refuse(
                f"it asks for new keys (KeyUpdate) and leaves {self._answers:,} bytes of the "
                f"answers unread; expected {MOST_UNREAD_ANSWERS:,} at most"
            )
        self._send()

    # --- the transport of the connection ---

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        plain = 0
        encrypted = []
        for data in list_of_data:
            rest = memoryview(data)
            plain += len(rest)
            while rest:
                free = WRITTEN_AT_ONCE - self._outgoing.pending
                rest = rest[self._tls.write(rest[:free]) :]
                if self._outgoing.pending >= WRITTEN_AT_ONCE:
                    encrypted.append(self._outgoing.read())
        if self._outgoing.pending:
            encrypted.append(self._outgoing.read())
        if encrypted and not self._transport.is_closing():
            self._connection.overhead += sum(map(len, encrypted)) - plain
            self._transport.writelines(encrypted)

    def pause_reading(self) -> None:
        self._paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Deliver the bytes that were read, then resume reading unless they used up the turn."""
        if self._paused:
            self._paused = False
            asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._paused or self._transport.is_closing():
            return
        self._deliver()
        try:
            if not self._paused and not self._transport.is_closing():
                self._transport.resume_reading()
        except Exception as error:
            self._connection.fail(error)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        with contextlib.suppress(ssl.SSLError):  # it does not wait for the worker's close_notify
            self._tls.unwrap()
        self._send()
        self._transport.write_eof()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def abort(self) -> None:
        self._transport.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def _send(self) -> None:
        self.writelines([])
