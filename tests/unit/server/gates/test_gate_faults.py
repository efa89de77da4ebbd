"""An internal error before a worker's proof ends the connection, and is counted."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from reducer.server.gates import tls_gate
from reducer.server.gates.gate import Gate
from reducer.server.gates.psk_gate import PskGate
from reducer.server.gates.tls import TlsFiles, make_context
from reducer.server.gates.tls_gate import TlsGate
from tests.support.bare_lane import Sink
from tests.support.certs import Authority
from tests.support.faults import Faulty, FullDisk, tls_failure
from tests.support.newcomers import QuickThreads, nobody


class Line(Sink):
    def __init__(self) -> None:
        super().__init__()
        self.ended = False
        self.socket, self._far = socket.socketpair()

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *exception: object) -> None:
        self.socket.close()
        self._far.close()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.socket

    def is_closing(self) -> bool:
        return self.ended

    def abort(self) -> None:
        self.ended = True


@pytest.fixture(autouse=True)
def quick_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_gate, "HandshakeThreads", QuickThreads)


@pytest.fixture
def full_disk() -> Iterator[None]:
    log, handler = logging.getLogger("reducer.auth"), FullDisk()
    log.addHandler(handler)
    yield
    log.removeHandler(handler)


def psk(folder: Path) -> Gate:
    return PskGate(bytes(32), 0, bytes(16), nobody)


def tls(folder: Path) -> Gate:
    files = Authority(folder).issue()
    return TlsGate(make_context(TlsFiles(files.cert, files.key, files.ca)), nobody)


async def failed(use: Callable[[], None]) -> list[object]:
    """The exceptions that reach the loop's handler, which counts them."""
    told: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: told.append(context["exception"]))
    use()
    async with asyncio.timeout(10.0):
        while not told:
            await asyncio.sleep(0)
    return told


@pytest.mark.parametrize("make", [psk, tls])
def test_one_that_cannot_be_begun(make: Callable[[Path], Gate], tmp_path: Path) -> None:
    """Regression: its descriptor stayed open, and its worker waited for an answer."""

    async def run() -> None:
        door = make(tmp_path)
        newcomer: Any = door.newcomer(bytes(8))
        loop = asyncio.get_running_loop()
        loop.call_later = cast(Any, None)
        with Line() as line:
            (error,) = await failed(lambda: newcomer.connection_made(line))
        assert isinstance(error, TypeError) and line.ended and not len(door)

    asyncio.run(run())


@pytest.mark.usefixtures("full_disk")
@pytest.mark.parametrize("make", [psk, tls])
def test_one_whose_proof_cannot_be_judged(make: Callable[[Path], Gate], tmp_path: Path) -> None:
    """The proof is garbage, and logging it fails."""

    async def run() -> None:
        door = make(tmp_path)
        newcomer: Any = door.newcomer(bytes(8))
        with Line() as line:
            newcomer.connection_made(line)
            room = newcomer.get_buffer(-1)
            room[:] = b"\xff" * len(room)
            (error,) = await failed(lambda: newcomer.buffer_updated(len(room)))
        assert isinstance(error, OSError) and line.ended and not len(door)

    asyncio.run(run())


@pytest.mark.parametrize("make", [psk, tls])
def test_one_that_the_system_has_no_memory_for(
    make: Callable[[Path], Gate], tmp_path: Path
) -> None:
    """Regression: it was counted as one that had left."""

    class Unnamed(Line):
        def get_extra_info(self, name: str, default: Any = None) -> Any:
            return Faulty(self.socket, "getpeername", OSError(errno.ENOBUFS, "injected"))

    async def run() -> None:
        door = make(tmp_path)
        with Unnamed() as line:
            (error,) = await failed(lambda: door.newcomer(bytes(8)).connection_made(line))
        assert isinstance(error, OSError) and line.ended
        assert not len(door) and not door.refused

    asyncio.run(run())


class OutOfMemory:
    """TLS that has no memory."""

    def __init__(self, words: str) -> None:
        self._words = words

    def do_handshake(self) -> None:
        raise tls_failure(self._words)


@pytest.mark.parametrize("words", ["malloc failure", "internal error"])
def test_one_for_whose_handshake_there_is_no_memory(words: str, tmp_path: Path) -> None:
    """Regression: an alert refused the worker for good, and nothing was counted."""

    async def run() -> None:
        door = tls(tmp_path)
        newcomer: Any = door.newcomer(bytes(8))
        newcomer._tls = OutOfMemory(words)
        with Line() as line:
            newcomer.connection_made(line)
            newcomer.get_buffer(-1)[:1] = b"\xff"
            (error,) = await failed(lambda: newcomer.buffer_updated(1))
        assert words in str(error) and line.ended
        assert not len(door) and not door.refused and not line.taken

    asyncio.run(run())


@pytest.mark.usefixtures("full_disk")
@pytest.mark.parametrize("make", [psk, tls])
def test_one_whose_refusal_cannot_be_logged(make: Callable[[Path], Gate], tmp_path: Path) -> None:
    """Regression: the newcomer had left the gate without a timer, and was never ended."""

    async def run() -> None:
        door = make(tmp_path)
        newcomer: Any = door.newcomer(bytes(8))
        with Line() as line:
            newcomer.connection_made(line)
            with pytest.raises(OSError, match="the log is full"):
                newcomer.refuse("slow", "no proof came")
        assert line.ended and door.refused == {"slow": 1}

    asyncio.run(run())
