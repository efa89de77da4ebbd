"""A TCP proxy in this process, between workers and reducers, that damages bytes as a network can.

The proxy does not interpret the bytes. With ``framed`` it forwards whole frames, so that a test can
harm a single frame. A harm (tests/support/harms.py) gets each piece of a stream and decides what to
forward.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Literal

from reducer.wire.header import HEADER_SIZE, PREFACE_SIZE

Direction = Literal["up", "down"]  # up: from the worker to the reducer
DIRECTIONS: tuple[Direction, ...] = ("up", "down")
Harm = Callable[["Stream", bytes], Awaitable[None]]
ChunkPlan = Callable[["Stream"], Harm]

_READ = 1 << 18
_LENGTH = struct.Struct("<I")
_LENGTH_AT = 64
_RESET = struct.pack("ii", 1, 0)


class LinkResetError(Exception):
    """Raised by a harm to end the link with RST on both sides."""


class StreamEndError(Exception):
    """Raised by a harm to end this direction with FIN."""


async def pass_on(stream: Stream, piece: bytes) -> None:
    """Forward the piece unchanged."""
    await stream.send(piece)


def harmless(stream: Stream) -> Harm:
    return pass_on


class Stream:
    """One direction of the `number`-th link of the proxy before reducer `index`."""

    def __init__(
        self,
        direction: Direction,
        index: int,
        number: int,
        source: socket.socket,
        sink: socket.socket,
        gate: asyncio.Event,
    ) -> None:
        self.direction = direction
        self.index = index
        self.number = number
        self._source = source
        self._sink = sink
        self._gate = gate

    async def send(self, data: bytes) -> None:
        """Forward bytes to the other side, as soon as this direction is not stalled."""
        await self._gate.wait()
        await asyncio.get_running_loop().sock_sendall(self._sink, data)

    async def run(self, plan: ChunkPlan, framed: bool) -> None:
        harm = plan(self)
        try:
            async for piece in self._frames() if framed else self._reads():
                await harm(self, piece)
        except StreamEndError:
            pass
        await self._gate.wait()
        self._sink.shutdown(socket.SHUT_WR)

    async def _reads(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(self._source, _READ):
            yield data

    async def _frames(self) -> AsyncIterator[bytes]:
        held = bytearray()
        async for data in self._reads():
            held += data
            while (size := _size_of_first(held)) and len(held) >= size:
                piece = bytes(held[:size])
                del held[:size]
                yield piece
        if held:
            yield bytes(held)


def _size_of_first(held: bytearray) -> int:
    """The size of the preface or frame that `held` begins with; 0 while it is not known."""
    if held[:4] == b"ORSP":
        return PREFACE_SIZE
    if len(held) < HEADER_SIZE:
        return 0
    return HEADER_SIZE + int(_LENGTH.unpack_from(held, _LENGTH_AT)[0])


class Proxies:
    """A port before each reducer; a context manager. ``plan`` gives each new stream its harm.

    Workers connect to `addresses`. All methods are for the test's thread.
    """

    def __init__(
        self, upstreams: Sequence[str], plan: ChunkPlan = harmless, *, framed: bool = False
    ) -> None:
        self._upstreams = [_parse(address) for address in upstreams]
        self._plan = plan
        self._framed = framed
        self._loop = asyncio.new_event_loop()
        self._gates: dict[tuple[int, Direction], asyncio.Event] = {
            (index, direction): _open_gate()
            for index in range(len(upstreams))
            for direction in DIRECTIONS
        }
        self._tasks: set[asyncio.Task[None]] = set()
        self.made = [0] * len(upstreams)  # links so far, by reducer
        self.ended = [0] * len(upstreams)  # links on which nothing can come any more, by reducer
        self._servers = [socket.create_server(("127.0.0.1", 0)) for _ in upstreams]
        self.addresses = [f"127.0.0.1:{server.getsockname()[1]}" for server in self._servers]
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies")

    def __enter__(self) -> Proxies:
        self._thread.start()
        for index, server in enumerate(self._servers):
            server.setblocking(False)
            self._do(partial(self._listen, index, server))
        return self

    def __exit__(self, *exception: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        for server in self._servers:
            server.close()

    # --- what the test can do at any time -------------------------------------------------------

    def stall(self, index: int, *directions: Direction) -> None:
        """Hold all bytes and ends of the reducer's links; nothing is lost."""
        for direction in directions or DIRECTIONS:
            self._do(self._gates[index, direction].clear)

    def resume(self, index: int) -> None:
        for direction in DIRECTIONS:
            self._do(self._gates[index, direction].set)

    # --- in the loop's thread -------------------------------------------------------------------

    def _do(self, action: Callable[[], Any]) -> None:
        """Run the action in the loop's thread, and wait for it."""

        async def run() -> None:
            action()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    def _listen(self, index: int, server: socket.socket) -> None:
        self._spawn(self._accept(index, server))

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end(self) -> None:
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, index: int, server: socket.socket) -> None:
        while True:
            worker, _ = await self._loop.sock_accept(server)
            self.made[index] += 1
            self._spawn(self._link(index, self.made[index], worker))

    async def _link(self, index: int, number: int, worker: socket.socket) -> None:
        reducer = socket.socket()
        try:
            for sock in (worker, reducer):
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.sock_connect(reducer, self._upstreams[index])
            async with asyncio.TaskGroup() as both:
                for direction in DIRECTIONS:
                    source, sink = (worker, reducer) if direction == "up" else (reducer, worker)
                    gate = self._gates[index, direction]
                    stream = Stream(direction, index, number, source, sink, gate)
                    both.create_task(stream.run(self._plan, self._framed))
        except* (LinkResetError, OSError, asyncio.CancelledError):
            for sock in (worker, reducer):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        finally:
            worker.close()
            reducer.close()
            self.ended[index] += 1


def _open_gate() -> asyncio.Event:
    gate = asyncio.Event()
    gate.set()
    return gate


def _parse(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
