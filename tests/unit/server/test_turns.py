"""Connections of a lane that serves several runs take turns at being read."""

from __future__ import annotations

import asyncio
import socket

import pytest

from reducer.server.buffers import BufferPool
from reducer.server.control_shares import MOST_TICKS
from reducer.server.protocol import READ_AT_ONCE, THROW_AWAY_AT_ONCE
from reducer.server.shell import LaneShell
from reducer.wire import messages
from reducer.wire.header import pack_header
from reducer.wire.keys import key_id
from tests.support.bare_lane import BUDGET, KERNELS, Sink, bare_lane, contribution, hello, receive
from tests.support.frames import control, heartbeat

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
    shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
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


class Held(Socket):
    """One connection of a job on a lane; `socket` is looked at when it is closed."""

    socket: socket.socket  # type: ignore[name-defined]

    def can_write_eof(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self.socket

    def __init__(self, shell: LaneShell, job: str, rank: int, world: int) -> None:
        super().__init__()
        self.connection = shell.connection()
        self.connection.connection_made(self)
        header, payload = hello(rank, world, CHUNK, job)
        receive(self.connection, memoryview(pack_header(header, KERNELS.crc32c) + payload))


async def flooded(shared: bool) -> None:
    """A job sends heartbeats of all its keys, each with news, without a pause; another is calm."""
    shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
    hostile = [Held(shell, "hostile", rank, 2) for rank in range(2)]
    calm = Held(shell, "calm", 0, 1)
    shell.shared = shared
    names = [f"key-{number}" for number in range(1_000)]
    for name in names:
        data = control(messages.Key(name), key=key_id(name))
        receive(hostile[0].connection, memoryview(data))
        shell.control_shares.tick()
        await asyncio.sleep(0)  # its turn is over and comes again
    assert hostile[0].reads
    for number in range(1, 1_000):
        entries = heartbeat(*((key_id(name), number) for name in names))
        receive(hostile[0].connection, memoryview(entries))
        await asyncio.sleep(0)
        if not hostile[0].reads:
            break
    assert [socket.reads for socket in hostile] == [not shared] * 2
    assert shell.control_shares.holds == shared
    assert calm.reads
    back, connection = Socket(), shell.connection()
    connection.connection_made(back)
    shell.control_shares.enter(connection, "hostile")  # one more is held like the others
    assert back.reads is not shared
    for _ in range(MOST_TICKS + 1):
        shell.control_shares.tick()
    await asyncio.sleep(0)
    assert all(socket.reads for socket in (*hostile, back, calm))


@pytest.mark.parametrize("shared", [True, False])
def test_a_job_whose_control_frames_take_their_part_waits(shared: bool) -> None:
    asyncio.run(flooded(shared))


def test_a_job_whose_run_still_forms_waits_too() -> None:
    async def flood() -> tuple[bool, bool]:
        shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
        hostile, calm = Held(shell, "hostile", 1, 2), Held(shell, "calm", 0, 1)
        shell.tick()
        for _ in range(2_000):
            receive(hostile.connection, memoryview(heartbeat(*((n, 1) for n in range(100)))))
            await asyncio.sleep(0)
            if not hostile.reads:
                break
        return hostile.reads, calm.reads

    assert asyncio.run(flood()) == (False, True)


def test_a_job_that_was_held_is_read_to_its_end_when_it_is_closed() -> None:
    async def close() -> bool:
        shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
        hostile = Held(shell, "hostile", 0, 1)
        hostile.socket, peer = socket.socketpair()
        shell.control_shares.spend(hostile.connection, 1.0)
        assert not hostile.reads
        with hostile.socket, peer:
            hostile.connection.close("it is over")
            return hostile.reads

    assert asyncio.run(close())


def test_what_comes_after_the_end_is_thrown_away_slowly() -> None:
    """A peer that is told why and sends on as fast as it can: its bytes took the lane's time."""

    async def throw_away() -> int:
        shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
        hostile = Held(shell, "hostile", 0, 1)
        hostile.socket, peer = socket.socketpair()
        with hostile.socket, peer:
            hostile.connection.close("it is over")
            count = 0
            while hostile.reads and count < 2 * THROW_AWAY_AT_ONCE:
                count += len(hostile.connection.get_buffer(-1))
                hostile.connection.buffer_updated(64 << 10)
                await asyncio.sleep(0)
            deadline = asyncio.get_running_loop().time() + 5
            while not hostile.reads and asyncio.get_running_loop().time() < deadline:
                await asyncio.sleep(0.01)
            assert hostile.reads  # else its end would not be noticed
            return count

    assert 0 <= asyncio.run(throw_away()) - THROW_AWAY_AT_ONCE <= READ_AT_ONCE


def test_a_lane_with_two_runs_is_shared() -> None:
    shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)

    async def join(job: str) -> bool:
        connection = shell.connection()
        connection.connection_made(Socket())
        header, payload = hello(0, 1, CHUNK, job)
        receive(connection, memoryview(pack_header(header, KERNELS.crc32c) + payload))
        shell.tick()
        return shell.shared

    assert [asyncio.run(join(job)) for job in ("a", "b")] == [False, True]
