"""A lane that connects to other lanes: the real core, shell and dialer on the loop of a test."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

import uvloop

from reducer.core.members.session import Session
from reducer.core.surface import events
from reducer.core.tables.holdings import Holdings
from reducer.core.tables.place import Place
from reducer.server.data.buffers import BufferPool
from reducer.server.data.shell import LaneShell
from reducer.server.gates.dialer import Dialer
from reducer.server.gates.proofs import Proof
from reducer.server.lane.process import TICK_SECONDS
from reducer.wire import messages
from reducer.wire.codes import MessageKind
from reducer.wire.header import (
    HEADER_SIZE,
    PREFACE_SIZE,
    Header,
    pack_header,
    pack_preface,
    unpack_header,
)
from reducer.wire.table_messages import Notice, TableCall
from tests.support.bare_lane import BUDGET, KERNELS, bare_lane
from tests.support.worker import frame_of

M = TypeVar("M")

uvloop.new_event_loop().close()  # the first one makes a pipe for the whole process
WAIT_SECONDS = 10.0
BYE = pack_header(Header(MessageKind.BYE), KERNELS.crc32c)
FOLLOWS = frame_of(Notice("follow"))  # a backup's answer to `follow`


class DialingLane:
    """An asynchronous context manager. ``failures``: reasons of DialFailed, by link.

    ``holdings``: the partitions whose backups the links lead to, by link. The lane's ticks do not
    know them, so an attempt that fails is not made again.
    """

    def __init__(self, proof: Proof) -> None:
        self.core = bare_lane(1 << 20)
        self.shell = LaneShell(self.core, KERNELS, BufferPool(BUDGET), 10.0)
        self.dialer = Dialer(proof, self.shell.link, self._feed)
        self.shell.executor.dial = self.dialer.dial
        self.failures: dict[int, str] = {}
        self.holdings: dict[int, Holdings] = {}
        self._ticks: asyncio.Task[None]

    async def __aenter__(self) -> DialingLane:
        self._ticks = asyncio.create_task(self._tick())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.dialer.close()
        for connection in list(self.shell.connections.values()):
            connection.abort("the test is over")
        await until(lambda: not self.shell.connections)
        self._ticks.cancel()
        await asyncio.wait([self._ticks])
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert self.shell.counters.accepted == 0

    def dial(self, address: str, lane: int = 0, job: str = "job", times: int = 1) -> list[int]:
        """Lead partitions that have their backup there. All ask for connections in one list of
        outputs. Returns their links.
        """
        outputs: list[events.Output] = []
        links = []
        context = self.core._tables._context
        for partition in range(times):
            holdings = Holdings(context, job, "run", partition, times)
            holdings.lead(1, Place(address, lane, bytes(16)), False, time.monotonic(), outputs)
            dial = outputs[-1]
            assert isinstance(dial, events.Dial)
            self.holdings[dial.link] = holdings
            links.append(dial.link)
        self.shell.carry_out(outputs)
        return links

    def give_up(self, link: int) -> None:
        """The workers decide that the partition has no backup."""
        outputs: list[events.Output] = []
        self.holdings[link].lead(2, None, False, time.monotonic(), outputs)
        self.shell.carry_out(outputs)

    def follows(self, link: int) -> bool:
        """Whether the other lane has answered `follow` on this link."""
        return self.holdings[link].chain.session is not None

    async def linked(self, address: str, lane: int = 0, job: str = "job") -> Session:
        """The session of a new connection; AssertionError if it fails."""
        (link,) = self.dial(address, lane, job)
        await until(lambda: self.is_answered(link))
        assert link not in self.failures, self.failures[link]
        return self.links[link]

    async def connects(self, address: str, lane: int = 0, job: str = "job") -> None:
        """AssertionError if the connection fails. The other side may end it at once."""
        (link,) = self.dial(address, lane, job)
        await until(lambda: self.is_answered(link))
        assert link not in self.failures, self.failures[link]

    async def fails(self, address: str, lane: int = 0, job: str = "job") -> str:
        """The reason why a connection fails."""
        (link,) = self.dial(address, lane, job)
        await until(lambda: self.is_answered(link))
        assert link not in self.links, "it was connected"
        return self.failures[link]

    def is_answered(self, link: int) -> bool:
        return link not in self.core._links._dialing

    @property
    def links(self) -> dict[int, Session]:
        """The sessions of connections that stand, by link."""
        return {peer.link: peer for peer in self.core._roster.sessions.values() if peer.link}

    def _feed(self, event: events.DialFailed) -> None:
        assert event.link not in self.failures, "a Dial was answered twice"
        self.failures[event.link] = event.reason
        self.shell.feed(event)

    async def _tick(self) -> None:
        while True:
            self.shell.tick()
            self.dialer.tick()
            await asyncio.sleep(TICK_SECONDS)


def on_a_lane(proof: Proof, test: Callable[[DialingLane], Coroutine[Any, Any, None]]) -> None:
    """Run the test on a loop of the lane's kind; it may leave no socket and no unhandled error."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        unhandled: list[object] = []
        loop.set_exception_handler(lambda loop, context: unhandled.append(context))
        before = sockets()
        async with DialingLane(proof) as lane:
            await test(lane)
        await until(lambda: sockets() == before)
        assert not unhandled

    uvloop.run(run())


def sockets() -> set[str]:
    """The open sockets of this process."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/self/fd/{name}"))
    return {target for target in found if target.startswith("socket:")}


async def until(predicate: Callable[[], object]) -> None:
    """Let the loop run until ``predicate`` is true."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not predicate():
            await asyncio.sleep(0.002)


class Listener:
    """A port of this machine that the test answers, or not. A context manager."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.socket.setblocking(False)
        self.address = f"127.0.0.1:{self.socket.getsockname()[1]}"

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *exception: object) -> None:
        self.socket.close()

    async def accept(self) -> socket.socket:
        """The next connection."""
        async with asyncio.timeout(WAIT_SECONDS):
            sock, _ = await asyncio.get_running_loop().sock_accept(self.socket)
        return sock


async def receive(sock: socket.socket, size: int) -> bytes:
    """Exactly ``size`` bytes, or fewer at the end of the stream."""
    data = b""
    async with asyncio.timeout(WAIT_SECONDS):
        while len(data) < size:
            try:
                more = await asyncio.get_running_loop().sock_recv(sock, size - len(data))
            except ConnectionError:
                break
            if not more:
                break
            data += more
    return data


async def receive_message(sock: socket.socket, message: type[M]) -> M:
    """The next frame, which is this message."""
    header = unpack_header(await receive(sock, HEADER_SIZE), KERNELS.crc32c)
    assert header.kind == messages.KIND_OF[message], MessageKind(header.kind)
    return messages.decode(message, memoryview(await receive(sock, header.length)))


@contextlib.asynccontextmanager
async def linked_by_hand(lane: DialingLane) -> AsyncIterator[tuple[Session, socket.socket]]:
    """A link in mode open, and the other end of its connection after the preface and `follow`."""
    with Listener() as listener:
        (link,) = lane.dial(listener.address, 3)
        with await listener.accept() as far:
            assert await receive(far, PREFACE_SIZE) == pack_preface(3)
            await until(lambda: link in lane.links)
            assert (await receive_message(far, TableCall)).call == "follow"
            yield lane.links[link], far
