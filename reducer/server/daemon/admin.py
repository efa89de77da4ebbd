"""A small HTTP server for the status page, /metrics, probes and JSON.

A connection has one request of at most 8 KiB, within 2 s: the server is for tools and probes. It
keeps 64 connections. If another one comes, the server closes the oldest connection that waits for
its client. A page is rendered once for all requests that wait for it. If 48 connections wait for
pages, the newest one of the most wanted page is closed instead, so that many requests cannot keep a
probe out.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
import re
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from enum import IntEnum
from http import HTTPStatus
from typing import Any, NamedTuple

from reducer.server.sockets import BACKLOG
from reducer.wire.header import PREFACE_MAGIC

logger = logging.getLogger("reducer.admin")

_MAX_REQUEST = 8192
_MAX_DISCARDED = 1 << 16  # bytes that a client may send after its request
_REQUEST_SECONDS = 2.0  # to send the request, as for prefaces
_ANSWER_SECONDS = 5.0  # to read the answer, and to close
_PAGE_SECONDS = 10.0  # to make a page; after that it counts as lost
MAX_CONNECTIONS = 64
MOST_WAITING = 48  # connections that wait for pages
_JSON_DEPTH = 5  # of a job and of a run in the stats: "lanes", one of them, "core", "jobs"
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]]+))(?::\d*)?")

# No type sniffing, no cache, no frames.
_HEADERS = (
    "X-Content-Type-Options: nosniff",
    "Cache-Control: no-store",
    "X-Frame-Options: DENY",
    "Referrer-Policy: no-referrer",
    "Connection: close",
)


class Answer(NamedTuple):
    """An HTTP answer. `policy` is its Content-Security-Policy; by default nothing may be loaded."""

    status: int
    content_type: str
    body: bytes
    policy: str = "default-src 'none'; frame-ancestors 'none'"


Page = Callable[[], Coroutine[Any, Any, Answer]]


class _Shared:
    """A page that is made once for all requests that come before it is ready."""

    def __init__(self, make: Page) -> None:
        self.waiting: dict[asyncio.Task[None], None] = {}  # the tasks of the connections
        self._make = make
        self._made: asyncio.Task[Answer] | None = None

    async def ask(self, task: asyncio.Task[None]) -> Answer:
        """Return the page. Raises TimeoutError, and any error of making the page."""
        made = self._made
        if made is None or made.done():
            made = self._made = asyncio.create_task(self._make())
        self.waiting[task] = None
        try:
            return await asyncio.wait_for(asyncio.shield(made), _PAGE_SECONDS)
        except TimeoutError:
            if self._made is made:
                self.stop()
            raise
        except asyncio.CancelledError:
            if made.cancelled():  # another request has timed out
                raise TimeoutError from None
            raise
        finally:
            self.waiting.pop(task, None)

    def stop(self) -> None:
        if self._made is not None:
            self._made.cancel()
            self._made = None


class _Phase(IntEnum):
    """What a connection waits for; the lowest phase makes room first."""

    CLIENT = 0  # for the client to close: the kernel has the whole answer
    REQUEST = 1
    READER = 2
    PAGE = 3


def text_answer(status: int, text: str) -> Answer:
    return Answer(status, "text/plain; charset=utf-8", text.encode() + b"\n")


def json_answer(found: object) -> Answer:
    return Answer(200, "application/json", _json(found, _JSON_DEPTH).encode() + b"\n")


def _json(found: object, depth: int) -> str:
    """Encode in parts. One call of json.dumps would hold the GIL and stop the other threads."""
    if depth and isinstance(found, dict):
        items = (f"{json.dumps(str(k))}: {_json(v, depth - 1)}" for k, v in found.items())
        return "{" + ", ".join(items) + "}"
    if depth and isinstance(found, list):
        return "[" + ", ".join(_json(item, depth - 1) for item in found) + "]"
    return json.dumps(found)


class Admin:
    """Serves ``pages`` (path -> coroutine) on ``listeners`` until `stop`.

    ``dropped`` counts by cause the connections that were cut off.
    """

    def __init__(self, listeners: Sequence[socket.socket], pages: Mapping[str, Page]) -> None:
        self._listeners = listeners
        self._on_loopback = all(_is_loopback(each.getsockname()[0]) for each in listeners)
        self._pages = {path: _Shared(make) for path, make in pages.items()}
        self._servers: list[asyncio.Server] = []
        self.dropped = {"crowded": 0, "slow": 0}
        self._open: dict[asyncio.Task[None], _Phase] = {}  # the oldest first

    @property
    def port(self) -> int:
        port: int = self._listeners[0].getsockname()[1]
        return port

    async def start(self) -> None:
        for listener in self._listeners:
            sock = listener.dup()
            try:
                server = await asyncio.start_server(
                    self._on_client, sock=sock, limit=_MAX_REQUEST, backlog=BACKLOG
                )
            except BaseException:
                sock.close()
                raise
            self._servers.append(server)

    async def reopen(self) -> None:
        """Watch the listeners again: uvloop drops a listener if there is no memory for a client.

        If this raises, the listeners are watched as before.
        """
        before, self._servers = self._servers, []
        try:
            await self.start()
        except Exception:
            before, self._servers = self._servers, before
            raise
        finally:
            for server in before:
                server.close()

    async def stop(self) -> None:
        """Close the listeners, and end the connections."""
        for server in self._servers:
            server.close()
        for task in list(self._open):
            task.cancel()
        for page in self._pages.values():
            page.stop()
        await asyncio.gather(*self._open, return_exceptions=True)
        for listener in self._listeners:
            listener.close()

    async def _on_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._open) >= MAX_CONNECTIONS:
            self._make_room()
        try:
            await self._serve(task, reader, writer)
        except TimeoutError:
            self.dropped["slow"] += 1
            writer.transport.abort()
        except (OSError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._open.pop(task, None)
            writer.close()

    def _make_room(self) -> None:
        """Cut off one connection, to make room for another.

        If many connections wait for pages, the newest connection that waits for the most wanted
        page is cut off. Otherwise the oldest connection in the lowest phase is cut off.
        """
        self.dropped["crowded"] += 1
        pages = self._pages.values()
        if sum(len(page.waiting) for page in pages) >= MOST_WAITING:
            task, _ = max(pages, key=lambda page: len(page.waiting)).waiting.popitem()
        else:
            task = min(self._open, key=self._open.__getitem__)
        del self._open[task]
        task.cancel()

    async def _serve(
        self, task: asyncio.Task[None], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._open[task] = _Phase.REQUEST
        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                head = await reader.readexactly(len(PREFACE_MAGIC))
                # A worker waits for an answer after its magic. No request has so short a line.
                if head != PREFACE_MAGIC and b"\r" not in head:
                    head += await reader.readuntil(b"\r\n\r\n")
        except (asyncio.LimitOverrunError, asyncio.IncompleteReadError):
            method, answer = "GET", text_answer(400, "expected one HTTP request of at most 8 KiB")
        else:
            self._open[task] = _Phase.PAGE
            method, answer = await self._answer(task, head)
        self._open[task] = _Phase.READER
        async with asyncio.timeout(_ANSWER_SECONDS):
            await _tell(writer, method, answer)
            self._open[task] = _Phase.CLIENT
            await _wait_for_the_end(reader, writer)

    async def _answer(self, task: asyncio.Task[None], head: bytes) -> tuple[str, Answer]:
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return "GET", text_answer(400, "not an HTTP/1 request")
        if self._on_loopback and not all(map(_is_local, _hosts(head))):
            return words[0], text_answer(403, "on loopback: ask for localhost or an IP address")
        method, target, _ = words
        if method not in ("GET", "HEAD"):
            return method, text_answer(405, "only GET and HEAD")
        page = self._pages.get(target.split("?", 1)[0])
        if page is None:
            return method, text_answer(404, f"pages: {', '.join(self._pages)}")
        try:
            return method, await page.ask(task)
        except TimeoutError:
            return method, text_answer(503, "a lane does not answer")
        except Exception:
            logger.exception("page %s", target)
            return method, text_answer(500, "internal error; see the log")


async def _tell(writer: asyncio.StreamWriter, method: str, answer: Answer) -> None:
    """Send the answer."""
    lines = [
        f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        f"Content-Security-Policy: {answer.policy}",
        *_HEADERS,
    ]
    if writer.transport.is_closing():  # uvloop raises RuntimeError after the client has gone
        return
    writer.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n")
    if method != "HEAD":
        writer.write(answer.body)
    writer.transport.set_write_buffer_limits(0)
    await writer.drain()


async def _wait_for_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read until the client has closed. With unread bytes, closing would send a RST."""
    if not writer.transport.is_closing() and writer.can_write_eof():
        writer.write_eof()
        left = _MAX_DISCARDED
        with contextlib.suppress(OSError):
            while left > 0 and (data := await reader.read(_MAX_REQUEST)):
                left -= len(data)


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.split("%")[0]).is_loopback


def _hosts(head: bytes) -> list[str]:
    """The values of the request's Host headers."""
    fields = (line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:])
    return [value.strip() for name, _, value in fields if name.strip().lower() == "host"]


def _is_local(host: str) -> bool:
    """Whether the Host header is localhost or an IP address, not the name of a foreign web page.

    The owner of a web page can let its name point to 127.0.0.1 (DNS rebinding). The browser would
    then treat that page and the status page as one origin.
    """
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    if found[2] is not None and found[2].lower() == "localhost":
        return True
    try:
        ipaddress.ip_address(found[1] or found[2])
    except ValueError:
        return False
    return True
