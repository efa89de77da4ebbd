"""A relay between one worker and a reducer that changes payloads, and may correct their CRCs.

With a corrected CRC no checksum of a frame can find the change. This stands for a reducer, or bad
memory before the CRC, that gives one rank different bits.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType

from reducer.kernels import load
from reducer.wire.header import HEADER_SIZE, PREFACE_SIZE, Header, pack_header, unpack_header

crc32c = load().crc32c


class Liar:
    """Listens on 127.0.0.1 for one worker; the context manager ends its threads.

    `about` selects the frames, in both directions, in which one bit of the payload is changed.
    """

    def __init__(
        self, address: str, about: Callable[[Header], bool], *, mends: bool = True
    ) -> None:
        host, port = address.rsplit(":", 1)
        self._upstream = (host, int(port))
        self._about = about
        self._mends = mends
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.lies = 0
        self.connections = 0
        self._sockets: list[socket.socket] = [self._listener]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> Liar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for sock in list(self._sockets):
            _end(sock)
        for thread in list(self._threads):
            thread.join()
        for sock in self._sockets:
            sock.close()

    def _accept(self) -> None:
        while True:
            try:
                worker, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            lane = socket.create_connection(self._upstream)
            self._sockets += [worker, lane]
            for arguments in ((worker, lane, PREFACE_SIZE), (lane, worker, 0)):
                thread = threading.Thread(target=self._relay, args=arguments)
                self._threads.append(thread)
                thread.start()

    def _relay(self, source: socket.socket, sink: socket.socket, preface: int) -> None:
        with contextlib.suppress(OSError):
            sink.sendall(source.recv(preface, socket.MSG_WAITALL))
            while len(head := source.recv(HEADER_SIZE, socket.MSG_WAITALL)) == HEADER_SIZE:
                header = unpack_header(head, crc32c)
                payload = bytearray()
                if header.length:
                    payload += source.recv(header.length, socket.MSG_WAITALL)
                sink.sendall(self._changed(header, head, payload) + payload)
        _end(source)
        _end(sink)

    def _changed(self, header: Header, head: bytes, payload: bytearray) -> bytes:
        if not header.length or not self._about(header):
            return head
        self.lies += 1
        payload[header.length // 2] ^= 0x40
        if not self._mends:
            return head
        return pack_header(header.replace(payload_crc=crc32c(payload)), crc32c)


def _end(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
