"""A listener that is no reducer: it does one thing to every connection."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType


class Impostor:
    """Runs ``act(sock, number)`` for each connection, one after the other, and closes it."""

    def __init__(self, act: Callable[[socket.socket, int], None]) -> None:
        self._act = act
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._wake, self._awake = socket.socketpair()
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self.received = b""
        self._thread = threading.Thread(target=self._run)

    def read(self, sock: socket.socket, size: int) -> bytes:
        """The first bytes that the worker sends; fewer if the connection ends."""
        data = sock.recv(size, socket.MSG_WAITALL)
        self.received += data
        return data

    def _run(self) -> None:
        while self._awake not in select.select([self._listener, self._awake], [], [])[0]:
            sock, _ = self._listener.accept()
            with sock:
                sock.settimeout(10)
                with suppress(OSError):  # the worker may have gone
                    self._act(sock, self.connections)
            self.connections += 1

    def __enter__(self) -> Impostor:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._wake.send(b".")
        self._thread.join()
        for sock in (self._listener, self._wake, self._awake):
            sock.close()
