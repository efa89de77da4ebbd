"""While a worker does not read, frames wait until its transport has drained."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from reducer.core.surface import events
from reducer.server.data.buffers import BufferPool
from reducer.server.data.connection import Connection
from reducer.server.data.outbox import BYTES_AT_ONCE, JOINED_PIECES
from reducer.server.data.shell import LaneShell
from reducer.server.gates.tls_link import TlsLink
from tests.support.bare_lane import BUDGET, KERNELS, Sink, bare_lane
from tests.support.certs import Authority, shake_hands

uvloop.new_event_loop().close()  # the first one makes a pipe for the whole process
FRAMES = 10 * JOINED_PIECES
SMALL = 100
FRAME = bytes(SMALL)


class Full(Sink):
    """A transport whose worker reads nothing after the first byte; `writes` has all writes."""

    lane_end: Connection | TlsLink

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.limits: int | None = None
        self.ended = False
        self.socket = socket.socket()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.limits = high

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        if not self.writes and self.limits == 0:
            self.lane_end.pause_writing()
        self.writes.append(b"".join(list_of_data))

    def drain(self) -> None:
        """The worker has read everything."""
        self.lane_end.resume_writing()

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self.writes[1:]))

    def abort(self) -> None:
        self.ended = True

    def can_write_eof(self) -> bool:
        self.ended = True
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.socket


def numbered(count: int, size: int = SMALL) -> list[bytes]:
    return [number.to_bytes(4, "little") + bytes(size - 4) for number in range(count)]


def shell_of(connection: Connection) -> LaneShell:
    return cast(LaneShell, connection._owner)


def opened() -> tuple[Connection, Full]:
    shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
    connection = shell.connection()
    transport = Full()
    transport.lane_end = connection
    connection.connection_made(transport)
    return connection, transport


async def told(connection: Connection, frames: Iterable[bytes]) -> None:
    """Send each frame in its own turn of the loop."""
    for frame in frames:
        connection.send([frame], len(frame))
        await asyncio.sleep(0)


def test_a_full_transport_is_given_nothing() -> None:
    """Regression: each unread write takes 800 bytes, and 1 us when the connection ends: the end of
    199 workers with 320 unread writes each blocked a lane for 52 ms."""

    async def run() -> None:
        connection, transport = opened()
        with transport.socket:
            frames = numbered(FRAMES)
            await told(connection, frames)
            assert len(transport.writes) == 1
            assert connection.unsent() == SMALL * (FRAMES - 1)
            transport.drain()
            await asyncio.sleep(0)
            assert len(transport.writes) == 2, "expected one write of all waiting frames"
            assert b"".join(transport.writes) == b"".join(frames)
            await told(connection, numbered(2))  # sent at once
            assert len(transport.writes) == 4

    asyncio.run(run())


def test_a_transport_that_drains_is_given_a_part() -> None:
    """libuv writes what the socket does not take later, outside the turns of the job."""

    async def run() -> None:
        connection, transport = opened()
        with transport.socket:
            frames = numbered(7, BYTES_AT_ONCE // 2)
            await told(connection, frames)
            assert len(transport.writes) == 1
            transport.drain()
            for count in (2, 3, 4):
                await asyncio.sleep(0)
                assert len(transport.writes) == count, "expected one write for each pass"
                assert len(transport.writes[-1]) == BYTES_AT_ONCE
            assert b"".join(transport.writes) == b"".join(frames)

    asyncio.run(run())


def test_a_large_frame_counts_until_its_last_byte_is_gone() -> None:
    """Regression: pieces keep the whole frame: runs took 1.3 times their reservation."""

    async def run() -> None:
        connection, transport = opened()
        large, small = 3 * BYTES_AT_ONCE, BYTES_AT_ONCE
        with transport.socket:
            await told(connection, [bytes(large)])
            assert connection.unsent() == large - BYTES_AT_ONCE, "the kernel has the first part"
            assert connection.held() == large
            connection.send([bytes(small)], small)
            assert connection.unread == connection.held() == large + small
            transport.drain()
            while connection.waiting:
                await asyncio.sleep(0)
            del transport.writes[1:3]  # the kernel has taken the rest of the large frame
            assert connection.unsent() == connection.held() == small
            connection.send([bytes(SMALL)], SMALL)
            assert connection.unread == connection.held() == small + SMALL

    asyncio.run(run())


def test_what_waits_goes_before_the_end() -> None:
    async def run() -> None:
        connection, transport = opened()
        with transport.socket:
            frames = numbered(10)
            await told(connection, frames)
            connection.close("over")
            await asyncio.sleep(0)
            assert not transport.ended and len(transport.writes) == 1, "written to a full transport"
            transport.drain()
            await asyncio.sleep(0)
            assert transport.ended and b"".join(transport.writes) == b"".join(frames)
            connection.connection_lost(None)
            await asyncio.sleep(0)

    asyncio.run(run())


def test_a_transport_that_has_drained_unnoticed_is_written_by_the_tick() -> None:
    """The loop may lack the memory for its one notification."""

    async def run() -> None:
        connection, transport = opened()
        with transport.socket:
            frames = numbered(3)
            await told(connection, frames)
            shell = shell_of(connection)
            shell.connections[connection.session] = connection
            shell.tick()
            await asyncio.sleep(0)
            assert b"".join(transport.writes) == b"".join(frames)

    asyncio.run(run())


@pytest.mark.parametrize("eof_first", [False, True])
def test_a_worker_that_ends_and_does_not_read_is_cut_off(eof_first: bool) -> None:
    """After an end of file uvloop closes its transport, but only when the transport is empty."""

    async def run() -> None:
        shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
        connection = shell.connection()
        near, far = socket.socketpair()
        with far:
            loop = asyncio.get_running_loop()
            protocol = cast(asyncio.BaseProtocol, connection)
            await loop.connect_accepted_socket(lambda: protocol, near)
            await told(connection, numbered(8, 1 << 20))
            if not eof_first:
                connection.close("over")
                await asyncio.sleep(0)
            far.shutdown(socket.SHUT_WR)
            await asyncio.sleep(0.05)
            if eof_first:
                connection.close("over")
                await asyncio.sleep(0.05)
            transport = connection._transport
            assert connection._linger is not None and transport is not None
            connection._maybe_cut_off(transport, 0)
            await asyncio.sleep(0.05)
            assert not shell.connections

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def test_one_that_is_lost_while_it_is_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: each rank of the run counted as an internal error."""

    async def run() -> None:
        connection, transport = opened()
        with transport.socket:
            await told(connection, numbered(8))
            connection.close("over")
            monkeypatch.setattr(transport, "get_extra_info", lambda name: None)
            monkeypatch.setattr(transport, "is_closing", lambda: True)
            connection.connection_lost(None)
            for _ in range(3):
                await asyncio.sleep(0)
        shell = shell_of(connection)
        assert not shell.connections and not shell.counters.internal_errors

    asyncio.run(run())


def test_a_failure_while_a_transport_drains_ends_the_connection() -> None:
    async def run() -> None:
        connection, transport = opened()
        with transport.socket:
            await told(connection, numbered(10))
            loop = asyncio.get_running_loop()
            loop.call_soon, call_soon = cast(Any, None), loop.call_soon
            try:
                transport.drain()
            finally:
                loop.call_soon = call_soon  # type: ignore[method-assign]
            assert connection.is_closing()

    asyncio.run(run())


@pytest.mark.parametrize(("size", "unsent"), [(64, 0), (4_096, 1)])
def test_a_small_result_that_waits_keeps_no_buffer(size: int, unsent: int) -> None:
    """Regression: 64 bytes kept a buffer of 4 KiB: runs took 1.9 times their reservation."""

    async def run() -> None:
        connection, transport = opened()
        with transport.socket:
            await told(connection, numbered(1))
            pool, executor = shell_of(connection)._pool, shell_of(connection).executor
            buffer = pool.take(size)
            send = events.Send(0, (connection.session,), FRAME, buffer, size)
            executor.run([send, events.Free(0, (buffer,))])
            assert (pool.out, pool.unsent) == (0, unsent)
            connection.abort("over")

    asyncio.run(run())


def test_tls_passes_it_on(tmp_path: Path) -> None:
    """The transport calls its protocol, here the link, which must tell the connection."""

    async def run() -> None:
        shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
        _, lane, to_worker, to_lane = shake_hands(Authority(tmp_path).issue())
        connection = shell.connection()
        transport = Full()
        with transport.socket:
            link = TlsLink(transport, lane, to_lane, to_worker, connection)
            transport.lane_end = link
            link.begin()
            assert transport.limits == 0
            await told(connection, numbered(10))
            assert len(transport.writes) == 1
            transport.drain()
            await asyncio.sleep(0)
            assert len(transport.writes) == 2

    asyncio.run(run())


def test_a_worker_that_reads_late_has_every_frame_once_and_in_order() -> None:
    """Over a real socket and uvloop, which defines when a transport is full."""
    frames = numbered(100_000)
    expected = b"".join(frames)

    async def run() -> bytes:
        shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
        connection = shell.connection()
        near, far = socket.socketpair()
        with far:
            loop = asyncio.get_running_loop()
            protocol = cast(asyncio.BaseProtocol, connection)
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, near)
            await told(connection, frames)
            assert connection.unsent() > len(expected) // 2
            far.setblocking(False)
            got = bytearray()
            while len(got) < len(expected):
                got += await asyncio.wait_for(loop.sock_recv(far, 1 << 20), 10)
            transport.abort()
            await asyncio.sleep(0.01)
            return bytes(got)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(run()) == expected
