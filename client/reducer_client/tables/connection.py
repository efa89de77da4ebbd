"""One connection to a lane: frames out, frames in, without blocking. Owned by one thread."""

from __future__ import annotations

import selectors
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from itertools import islice

from reducer.kernels import load
from reducer.wire.decoder import Decoder, Frame, Target
from reducer.wire.header import Buffer, Header, pack_header

crc32c = load().crc32c

_SENT_AT_ONCE = 16  # buffers of one sendmsg
_READ_AT_ONCE = 8 << 20  # bytes that are read before the next send
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Connection:
    """Calls ``take`` with each received frame. The payload is valid until ``take`` returns.

    ``unsent``: bytes that were put in and are not sent yet. ``sent_at``: when bytes were last sent.
    ``alive_at``: the last sign of life of the peer. Received bytes are one. A full socket that
    takes more bytes is another: the peer has received some.
    """

    def __init__(
        self,
        sock: socket.socket,
        wakes: socket.socket,
        target: Target,
        take: Callable[[Frame], None],
    ) -> None:
        self.unsent = 0
        self.alive_at = self.sent_at = time.monotonic()
        self._is_full = False
        self._sock = sock
        self._gathers = not isinstance(sock, ssl.SSLSocket)  # SSLSocket has no sendmsg
        self._take = take
        self._decoder = Decoder(crc32c, target)
        self._out: deque[memoryview] = deque()
        self._has_more = False  # bytes can be read, perhaps from the TLS layer
        self._events = selectors.EVENT_READ
        sock.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(sock, selectors.EVENT_READ)
        self._selector.register(wakes, selectors.EVENT_READ)

    def put(self, header: Header, payload: Buffer = b"") -> None:
        """Send a frame. ``payload`` must not change until it is sent."""
        size = len(payload)
        if size:
            header.length = size
            header.payload_crc = crc32c(payload)
            self._add(memoryview(pack_header(header, crc32c)))
            self._add(memoryview(payload))
        else:
            self._add(memoryview(pack_header(header, crc32c)))

    def step(self, seconds: float) -> bool:
        """Send and receive for at most this time. Returns False if the connection has ended.

        Raises OSError, and the errors of the decoder and of ``take``.
        """
        self._write()
        return self._wait_and_read(seconds)

    def flush(self, seconds: float) -> None:
        """Send all frames that were put in, for at most this time. Frames are still received."""
        until = time.monotonic() + seconds
        self._write()
        while self._out and (left := until - time.monotonic()) > 0:
            if not self._wait_and_read(left):
                return
            self._write()

    def close(self) -> None:
        self._selector.close()
        self._decoder.end()
        self._sock.close()

    def _wait_and_read(self, seconds: float) -> bool:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out else 0)
        if events != self._events:
            self._selector.modify(self._sock, events)
            self._events = events
        self._selector.select(0.0 if self._has_more else seconds)
        return self._read()

    def _add(self, data: memoryview) -> None:
        self._out.append(data)
        self.unsent += len(data)

    def _write(self) -> None:
        try:
            while self._out:
                self._drop_sent(self._send())
        except _WOULD_BLOCK:
            self._is_full = True

    def _send(self) -> int:
        if self._gathers:
            return self._sock.sendmsg(list(islice(self._out, _SENT_AT_ONCE)))
        return self._sock.send(self._out[0])

    def _drop_sent(self, sent: int) -> None:
        self.unsent -= sent
        self.sent_at = time.monotonic()
        if self._is_full:
            self._is_full = False
            self.alive_at = self.sent_at
        while sent:
            first = self._out.popleft()
            if sent < len(first):
                self._out.appendleft(first[sent:])
                return
            sent -= len(first)

    def _read(self) -> bool:
        """Receive up to _READ_AT_ONCE bytes. Returns False if the connection has ended."""
        self._has_more = False
        read = 0
        try:
            while read < _READ_AT_ONCE:
                got = self._sock.recv_into(self._decoder.get_buffer())
                if not got:
                    return False
                read += got
                self._decoder.received(got)
                while (frame := self._decoder.next_frame()) is not None:
                    self._take(frame)
            self._has_more = True
        except _WOULD_BLOCK:
            pass
        if read:
            self.alive_at = time.monotonic()
        return True
