"""A lane of a real daemon, for `tests.support.table_worker.TableWorker`."""

from __future__ import annotations

from reducer.wire.codes import MessageKind
from reducer.wire.decoder import Frame
from tests.support.frames import heartbeat
from tests.support.worker import Link, connect


class WireSession:
    """One connection; raises WorkerError if the lane ends it."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.closed: str | None = None

    def send(self, data: bytes) -> None:
        self._link.sock.sendall(data)

    def read(self) -> list[Frame]:
        """The answers to all that was sent so far: the lane answers a heartbeat after them."""
        self.send(heartbeat())
        frames: list[Frame] = []
        while not any(frame.header.kind == MessageKind.HEARTBEAT for frame in frames):
            frames += self._link.receive()
            self._link.check()
        return [frame for frame in frames if frame.header.kind != MessageKind.HEARTBEAT]

    def disconnect(self, reason: str = "") -> None:
        self._link.close()


class WireLane:
    def __init__(self, port: int, lane: int = 0) -> None:
        self._port = port
        self._lane = lane

    def connect(self) -> WireSession:
        return WireSession(Link(connect(self._port, self._lane)))
