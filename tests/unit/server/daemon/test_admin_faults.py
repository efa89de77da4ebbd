"""The metrics port when memory for a client is missing."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import pytest
import uvloop

from reducer.server import serve_options
from reducer.server.daemon import app
from reducer.server.daemon.admin import Admin, text_answer
from reducer.server.sockets import listen

uvloop.new_event_loop().close()  # the first one makes a pipe for the whole process


async def ok() -> Any:
    return text_answer(200, "ok")


async def ask(port: int) -> bytes:
    loop = asyncio.get_running_loop()
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.setblocking(False)
        await loop.sock_sendall(client, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(5):
            return await loop.sock_recv(client, 100)


async def serve(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Lack memory for the first client; returns the answer to the second client."""
    server = app.Server(serve_options.Config(), b"")
    admin = server._admin = Admin(listen("127.0.0.1", 0, "metrics"), {"/healthz": ok})
    server._serves = True
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(server._unhandled)
    await admin.start()
    failures = [MemoryError("injected")]

    class Reader(asyncio.StreamReader):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            if failures:
                raise failures.pop()
            super().__init__(*arguments, **more)

    monkeypatch.setattr(asyncio.streams, "StreamReader", Reader)
    with socket.create_connection(("127.0.0.1", admin.port)):
        while failures:
            await asyncio.sleep(0.001)
    try:
        return await ask(admin.port)
    finally:
        await admin.stop()
        await asyncio.sleep(0)


def test_the_metrics_port_answers_after_a_client_without_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: /healthz never answered again, so a supervisor would have ended the daemon."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert b" 200 " in runner.run(serve(monkeypatch))


async def open_again(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The answers while the port cannot be reopened, and afterwards."""
    server = app.Server(serve_options.Config(), b"")
    admin = server._admin = Admin(listen("127.0.0.1", 0, "metrics"), {"/healthz": ok})
    server._serves = True
    await admin.start()
    real, calls, fails = asyncio.start_server, [0], [True]

    async def start(*arguments: Any, **more: Any) -> asyncio.Server:
        calls[0] += 1
        if fails[0]:
            raise OSError("injected")
        return await real(*arguments, **more)

    monkeypatch.setattr(asyncio, "start_server", start)
    monkeypatch.setattr(app, "_REOPEN_SECONDS", 0.01)
    server._unhandled(asyncio.get_running_loop(), {"message": "injected"})
    async with asyncio.timeout(5):
        while calls[0] < 2:
            await asyncio.sleep(0.001)
    answers = [await ask(admin.port)]
    fails[0] = False
    assert server._reopening is not None
    async with asyncio.timeout(5):
        await server._reopening
    try:
        return [*answers, await ask(admin.port)]
    finally:
        await admin.stop()
        await asyncio.sleep(0)


def test_the_metrics_port_is_opened_again_until_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: one failure ended /healthz."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for answer in runner.run(open_again(monkeypatch)):
            assert b" 200 " in answer


async def leave_early(free: asyncio.Event) -> list[dict[str, Any]]:
    """A client resets its connection while its page is made; returns the loop's errors."""
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    asked = asyncio.Event()

    async def slow() -> Any:
        asked.set()
        await free.wait()
        return text_answer(200, "late")

    admin = Admin(listen("127.0.0.1", 0, "metrics"), {"/slow": slow, "/healthz": ok})
    await admin.start()
    with socket.create_connection(("127.0.0.1", admin.port)) as client:
        client.sendall(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await asked.wait()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await asyncio.sleep(0.05)
    free.set()
    try:
        assert b" 200 " in await ask(admin.port)
    finally:
        await admin.stop()
        await asyncio.sleep(0)
    return told


def test_a_client_that_leaves_while_its_page_is_made_is_no_bug_of_ours() -> None:
    """Regression: stacks filled the log with 0.5 MB a second; each time the port was reopened."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(leave_early(asyncio.Event())) == []


async def send_on(most: int) -> int:
    """A client that keeps sending after its request; returns the number of accepted bytes."""
    admin = Admin(listen("127.0.0.1", 0, "metrics"), {"/healthz": ok})
    await admin.start()
    loop, sent, more = asyncio.get_running_loop(), 0, bytes(1 << 16)
    with socket.create_connection(("127.0.0.1", admin.port)) as client:
        client.setblocking(False)
        await loop.sock_sendall(client, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        try:
            while sent < most:
                await loop.sock_sendall(client, more)
                sent += len(more)
        except OSError:
            pass
    await admin.stop()
    await asyncio.sleep(0)
    return sent


def test_a_client_that_sends_on_behind_its_request_is_cut_off() -> None:
    """Regression: the main process read 3 GB/s of such bytes; joins took nine times as long."""
    most = 256 << 20
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(send_on(most)) < most
