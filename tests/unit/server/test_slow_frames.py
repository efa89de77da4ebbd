"""A frame that takes its time is no silence."""

from __future__ import annotations

import asyncio
import time

import pytest

from reducer.server.buffers import BufferPool
from reducer.server.shell import LaneShell
from reducer.wire.header import pack_header
from tests.support.bare_lane import BUDGET, KERNELS, Sink, bare_lane, contribution, hello, receive

CHUNK = 64 << 10
PIECES = 64  # more than 0.5 s between two ticks would be time in which the lane stood still
SECONDS = 12  # the silence that ends a connection is 5 s


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Socket(Sink):
    """A transport that remembers whether it was cut off."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True

    def can_write_eof(self) -> bool:
        return False


async def send_slowly(clock: Clock) -> tuple[int, Socket]:
    """The bytes that the worker got for one contribution whose pieces take `SECONDS`."""
    shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
    socket, connection = Socket(), shell.connection()
    connection.connection_made(socket)
    header, payload = hello(0, 1, CHUNK)
    receive(connection, memoryview(pack_header(header, KERNELS.crc32c) + payload))
    payload = bytes(CHUNK)
    frame = pack_header(contribution(0, 0, 0, 1, payload), KERNELS.crc32c) + payload
    size = len(frame) // PIECES
    for begin in range(0, len(frame), size):
        receive(connection, memoryview(frame[begin : begin + size]))
        clock.now += SECONDS / PIECES
        shell.tick()
        before = socket.taken
        await asyncio.sleep(0)
    return socket.taken - before, socket


def test_a_long_frame_may_come_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    taken, socket = asyncio.run(send_slowly(clock))
    assert not socket.aborted
    assert taken >= CHUNK
