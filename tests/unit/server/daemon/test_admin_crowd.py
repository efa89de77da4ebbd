"""The metrics port with many clients of a page that takes long to make."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest

from reducer.server.daemon import admin as admin_module
from reducer.server.daemon.admin import MAX_CONNECTIONS, MOST_WAITING, Admin, Answer, text_answer
from reducer.server.sockets import BACKLOG, listen


class Pages:
    """/healthz is made at once, /metrics when it is `free`. With `is_lost`, the first /metrics is
    never made."""

    def __init__(self, is_lost: bool = False) -> None:
        self.free = asyncio.Event()
        self.is_lost = is_lost
        self.made = 0

    async def health(self) -> Answer:
        return text_answer(200, "ok")

    async def metrics(self) -> Answer:
        self.made += 1
        if self.is_lost and self.made == 1:
            await asyncio.Event().wait()
        await self.free.wait()
        return text_answer(200, "long")


@contextlib.asynccontextmanager
async def serving(pages: Pages) -> AsyncIterator[Admin]:
    found = {"/healthz": pages.health, "/metrics": pages.metrics}
    admin = Admin(listen("127.0.0.1", 0, "metrics"), found)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.stop()
        await asyncio.sleep(0)


async def ask(admin: Admin, path: str, after: Coroutine[Any, Any, None] | None = None) -> int:
    """The HTTP status; 0 if the connection was cut off. Awaits `after` before the request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", admin.port)
    try:
        if after is not None:
            await after
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        line = await reader.readline()
        return int(line.split()[1]) if line else 0
    except ConnectionResetError:
        return 0
    finally:
        writer.close()


def run(test: Coroutine[Any, Any, None]) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(20):
            await test

    asyncio.run(in_time())


def test_a_crowd_that_waits_for_a_page_keeps_no_probe_out() -> None:
    """Regression: with 70 clients of /metrics 79 of 85 probes failed: the pod would be killed."""

    async def crowd() -> None:
        pages = Pages()
        async with serving(pages) as admin:
            asking = [asyncio.create_task(ask(admin, "/metrics")) for _ in range(100)]
            while sum(task.done() for task in asking) < 100 - MAX_CONNECTIONS:
                await asyncio.sleep(0.01)

            async def more_come() -> None:
                done = sum(task.done() for task in asking)
                asking.extend(asyncio.create_task(ask(admin, "/metrics")) for _ in range(10))
                while sum(task.done() for task in asking) < done + 10:
                    await asyncio.sleep(0.01)

            assert await ask(admin, "/healthz", more_come()) == 200
            pages.free.set()
            answers = await asyncio.gather(*asking)
            assert answers.count(200) >= MOST_WAITING - 1 and set(answers) == {200, 0}
            assert pages.made == 1

    run(crowd())


def test_a_crowd_that_stays_after_its_answers_keeps_no_probe_out() -> None:
    """Regression: with 300 strangers a second, no probe with a round trip of 5 ms was answered."""

    async def crowd() -> None:
        async with serving(Pages()) as admin, contextlib.AsyncExitStack() as stack:

            async def stay() -> None:
                reader, writer = await asyncio.open_connection("127.0.0.1", admin.port)
                stack.callback(writer.close)
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                with contextlib.suppress(ConnectionResetError):
                    await reader.readline()

            async def more_come() -> None:
                for _ in range(10):
                    await stay()

            for _ in range(MAX_CONNECTIONS):
                await stay()
            assert await ask(admin, "/healthz", more_come()) == 200
            assert admin.dropped["crowded"] == 11

    run(crowd())


def test_a_page_that_is_lost_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page is lost if the loop had no memory to run its task."""
    monkeypatch.setattr(admin_module, "_PAGE_SECONDS", 0.2)

    async def lost() -> None:
        pages = Pages(is_lost=True)
        pages.free.set()
        async with serving(pages) as admin:
            assert await asyncio.gather(*(ask(admin, "/metrics") for _ in range(3))) == [503] * 3
            assert await ask(admin, "/metrics") == 200 and pages.made == 2

    run(lost())


def test_as_many_may_wait_as_at_the_port_of_the_workers() -> None:
    """Regression: asyncio's backlog is 100: a probe waited for a second beside a flood."""

    most = int(Path("/proc/sys/net/core/somaxconn").read_text())

    async def run() -> None:
        async with serving(Pages()) as admin:
            for listener in admin._listeners:
                said = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
                tcpi_sacked = struct.unpack_from("=I", said, 28)[0]  # a listener's backlog
                assert tcpi_sacked == min(BACKLOG, most)

    asyncio.run(run())
