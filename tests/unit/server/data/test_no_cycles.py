"""Connections of each mode are freed by reference counts, however they end."""

from __future__ import annotations

import asyncio
import functools
import gc
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import uvloop

from reducer.server.data.buffers import BufferPool
from reducer.server.data.shell import LaneShell
from reducer.server.gates.gate import Gate
from reducer.server.gates.psk_gate import PskGate
from reducer.server.gates.tls import TlsFiles, make_context
from reducer.server.gates.tls_gate import TlsGate
from reducer.wire.header import PREFACE_SIZE, pack_header
from tests.support.bare_lane import BUDGET, KERNELS, bare_lane, contribution, hello
from tests.support.certs import Authority, Files
from tests.support.worker import connect

uvloop.new_event_loop().close()  # the first one makes a pipe for the whole process
TIMES = 5
KEY = bytes(range(32))
DATA = bytes(4_096)
JOIN, CONTRIBUTE = (
    pack_header(header, KERNELS.crc32c) + payload
    for header, payload in (hello(0, 1, len(DATA)), (contribution(0, 0, 0, 1, DATA), DATA))
)
SAID = {
    "nothing": b"",
    "hello": JOIN,
    "round": JOIN + CONTRIBUTE,
    "half": JOIN + CONTRIBUTE[:-100],
    "garbage": JOIN + bytes(300),
}


class Shell:
    """A lane's shell with its gate, and a listener instead of the main process."""

    def __init__(self, mode: str, certs: Files) -> None:
        self.shell = LaneShell(bare_lane(1 << 20), KERNELS, BufferPool(BUDGET), 10.0)
        self.gate: Gate | None = None
        self.key = KEY if mode == "psk" else b""
        self.tls = certs.context() if mode == "tls" else None
        if mode == "psk":
            self.gate = PskGate(KEY, 0, bytes(16), self.shell.connection)
        elif mode == "tls":
            context = make_context(TlsFiles(certs.cert, certs.key, certs.ca))
            self.gate = TlsGate(context, self.shell.connection)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)

    def close(self) -> None:
        self.listener.close()
        if self.gate is not None:
            self.gate.close()

    async def serve(self, say: Callable[[int], None]) -> None:
        """Serve one connection to its end; `say(port)` plays the worker."""
        loop = asyncio.get_running_loop()
        worker = loop.run_in_executor(None, say, self.listener.getsockname()[1])
        sock, _ = await loop.sock_accept(self.listener)
        preface = await loop.sock_recv(sock, PREFACE_SIZE)
        factory = self.shell.connection
        if self.gate is not None:
            factory = functools.partial(self.gate.newcomer, preface)  # type: ignore[assignment]
        await loop.connect_accepted_socket(factory, sock)  # type: ignore[arg-type]
        await worker
        async with asyncio.timeout(10.0):
            while self.shell.connections or self.gate:
                await asyncio.sleep(0.005)
        self.shell.tick()


def play(key: bytes, tls: ssl.SSLContext | None, said: bytes, end: int, port: int) -> None:
    """A worker that sends something and leaves; its last `end` bytes are not TLS."""
    sock = connect(port, key=key, job="bench", tls=tls)
    sock.settimeout(5.0)
    with sock, suppress(OSError):
        sock.sendall(said)
        if end:
            with socket.socket(fileno=sock.detach()) as plain:
                plain.sendall(bytes(end))
                while plain.recv(65_536):
                    pass
        elif said == SAID["garbage"]:
            while sock.recv(65_536):
                pass


def stranger(port: int) -> None:
    """A client with neither a proof nor a handshake."""
    with socket.create_connection(("127.0.0.1", port), 5.0) as sock, suppress(OSError):
        sock.sendall(bytes(PREFACE_SIZE) + bytes(300))
        while sock.recv(65_536):
            pass


async def leftovers(mode: str, certs: Files) -> list[str]:
    """The objects that a garbage collection finds after connections with every kind of end."""
    shell = Shell(mode, certs)
    says: list[Callable[[int], None]] = [
        functools.partial(play, shell.key, shell.tls, said, 0) for said in SAID.values()
    ]
    says.append(functools.partial(play, shell.key, shell.tls, JOIN, 300))
    if mode != "open":
        says.append(stranger)
    for say in says:
        await shell.serve(say)
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    for _ in range(TIMES):
        for say in says:
            await shell.serve(say)
    gc.collect()
    gc.set_debug(0)
    shell.close()
    return [type(found).__qualname__ for found in gc.garbage]


@pytest.fixture
def manual() -> Iterator[None]:
    gc.disable()
    yield
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()
    gc.collect()


@pytest.mark.parametrize("mode", ["open", "psk", "tls"])
def test_connections_leave_nothing_to_the_collector(
    mode: str, tmp_path: Path, manual: None
) -> None:
    left = uvloop.run(leftovers(mode, Authority(tmp_path).issue()))
    assert not left
