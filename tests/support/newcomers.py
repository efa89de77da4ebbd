"""New connections at the gate of a lane, without a network."""

from __future__ import annotations

import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

from reducer.server.data.connection import Connection
from reducer.server.gates.handshake_threads import Step
from reducer.server.gates.tls import TlsFiles, make_context
from reducer.server.gates.tls_gate import TlsGate
from tests.support.bare_lane import Sink
from tests.support.certs import Authority


class Line(Sink):
    """The lane's end of a connection of a stranger."""

    def __init__(self) -> None:
        super().__init__()
        self.is_ended = False
        self.is_paused = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self

    def getpeername(self) -> tuple[str, int]:
        return "127.0.0.1", 1

    def is_closing(self) -> bool:
        return self.is_ended

    def abort(self) -> None:
        self.is_ended = True

    def close(self) -> None:
        self.is_ended = True

    def write_eof(self) -> None:
        """The gate calls this after it has written the reason of a refusal."""

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


def nobody(permit: object) -> Connection:
    raise AssertionError("nobody has proven anything")


class QuickThreads:
    """Threads that finish a step as soon as it is submitted; `steps` counts the steps."""

    def __init__(self) -> None:
        self.steps = 0

    def do(self, step: Step) -> None:
        self.steps += 1
        step()

    def close(self) -> None:
        pass


def tls(folder: Path) -> tuple[TlsGate, bytes]:
    """A gate, and the first thing that a worker says at it."""
    files = Authority(folder).issue()
    to_worker, to_lane = ssl.MemoryBIO(), ssl.MemoryBIO()
    worker = files.context().wrap_bio(to_worker, to_lane, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        worker.do_handshake()
    return TlsGate(make_context(TlsFiles(files.cert, files.key, files.ca)), nobody), to_lane.read()
