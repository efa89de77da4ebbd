"""Connections of a lane that serves several runs take turns at being read."""

from __future__ import annotations

import asyncio

import pytest

from bench.micro.lanes import BUDGET, KERNELS, Sink, bare_lane, contribution, hello, receive
from reducer.server.buffers import BufferPool
from reducer.server.protocol import READ_AT_ONCE
from reducer.server.shell import LaneShell
from reducer.wire.header import pack_header

CHUNK = 64 << 10
FITS = READ_AT_ONCE // CHUNK


class Socket(Sink):
    """A transport that remembers whether it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


async def read_many(shared: bool) -> tuple[int, bool]:
    """Chunks that one connection is read for at once, and whether it is read later."""
    shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), BUDGET, 10.0)
    socket, connection = Socket(), shell.connection()
    connection.connection_made(socket)
    header, payload = hello(0, 1, CHUNK)
    receive(connection, memoryview(pack_header(header, KERNELS.crc32c) + payload))
    shell.shared = shared
    payload = bytes(CHUNK)
    count = 0
    while socket.reads and count < 2 * FITS:
        header = contribution(0, 0, count, 2 * FITS, payload)
        receive(connection, memoryview(pack_header(header, KERNELS.crc32c) + payload))
        count += 1
    await asyncio.sleep(0)
    return count, socket.reads


@pytest.mark.parametrize(("shared", "expected"), [(True, FITS), (False, 2 * FITS)])
def test_who_has_much_to_say_waits_where_there_are_others(shared: bool, expected: int) -> None:
    assert asyncio.run(read_many(shared)) == (expected, True)


def test_a_lane_with_two_runs_is_shared() -> None:
    shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), BUDGET, 10.0)

    async def join(job: str) -> bool:
        connection = shell.connection()
        connection.connection_made(Socket())
        header, payload = hello(0, 1, CHUNK, job)
        receive(connection, memoryview(pack_header(header, KERNELS.crc32c) + payload))
        shell.tick()
        return shell.shared

    assert [asyncio.run(join(job)) for job in ("a", "b")] == [False, True]
