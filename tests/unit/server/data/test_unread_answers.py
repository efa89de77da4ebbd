"""Answers that a worker does not read take no memory of other jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

import pytest

from reducer.core.surface import events
from reducer.server.data.buffers import BufferPool
from reducer.server.data.outbox import BYTES_AT_ONCE
from reducer.server.data.shell import ENDED_AT_ONCE, LATER_BYTE_SECONDS, LaneShell
from reducer.wire.codes import MessageKind
from reducer.wire.header import Header, pack_header
from tests.support.bare_lane import (
    BUDGET,
    KERNELS,
    Sink,
    bare_lane,
    contribution,
    hello,
    receive,
)
from tests.support.simlane import KIND_OFFSET

QUESTION = pack_header(Header(MessageKind.STATS), KERNELS.crc32c)
FLOOD = 20
SIZE = BYTES_AT_ONCE
HEARTBEAT = 0.25


class Socket(Sink):
    """A transport whose peer has read `read` bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.read = 0
        self.answers = 0

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        frames = list(list_of_data)
        super().writelines(frames)
        self.answers += sum(frame[KIND_OFFSET] == MessageKind.STATS for frame in frames)

    def get_write_buffer_size(self) -> int:
        return self.taken - self.read


async def flood(socket: Socket, beats: int) -> None:
    """Send STATS for this many heartbeats of the lane, then read all and send one more."""
    shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
    connection = shell.connection()
    connection.connection_made(socket)
    header, payload = hello(0, 1, 4_096)
    receive(connection, memoryview(pack_header(header, KERNELS.crc32c) + payload))
    await asyncio.sleep(0)
    socket.read = socket.taken
    end = time.monotonic() + beats * HEARTBEAT
    while time.monotonic() < end:
        for _ in range(FLOOD):
            receive(connection, memoryview(QUESTION))
        shell.tick()
        await asyncio.sleep(0.01)
    before = socket.answers
    assert 1 <= before <= 2  # one at once, one for the requests before it was queued
    socket.read = socket.taken  # all read, so the next request is answered
    receive(connection, memoryview(QUESTION))
    deadline = time.monotonic() + 20 * HEARTBEAT
    while socket.answers == before and time.monotonic() < deadline:
        shell.tick()
        await asyncio.sleep(0.01)
    assert socket.answers == before + 1


def test_whoever_leaves_more_unread_than_has_room_is_cut_off() -> None:
    class Deaf(Socket):
        is_cut_off = False

        def get_write_buffer_size(self) -> int:
            return 1 << 30

        def abort(self) -> None:
            self.is_cut_off = True

    async def ask() -> None:
        shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
        deaf, connection = Deaf(), shell.connection()
        connection.connection_made(deaf)
        header, payload = hello(0, 1, 4_096)
        receive(connection, memoryview(pack_header(header, KERNELS.crc32c) + payload))
        assert connection.is_closing()
        await asyncio.sleep(0)
        assert deaf.is_cut_off and shell.executor.slow_readers == 1

    asyncio.run(ask())


@pytest.mark.parametrize("then", ["it names a key", "it contributes", "it is told something"])
def test_a_large_result_counts_where_its_last_byte_is_unread(then: str) -> None:
    """Regression: ranks that read all but some bytes took 1.3 times their reservation."""
    payload = bytes(4_096)
    named = pack_header(Header(MessageKind.KEY, length=8_192), KERNELS.crc32c)
    contributed = pack_header(contribution(0, 0, 0, 1, payload), KERNELS.crc32c)

    async def ask(room: int) -> bool:
        shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
        socket, connection = Socket(), shell.connection()
        connection.connection_made(socket)
        header, payload = hello(0, 1, 4_096)
        receive(connection, memoryview(pack_header(header, KERNELS.crc32c) + payload))
        await asyncio.sleep(0)
        socket.read = socket.taken
        size = shell._lane.unread_room(connection.session)[1] - room
        connection.send([bytes(size)], size)
        while connection.waiting:
            await asyncio.sleep(0)
        socket.read = socket.taken - 1
        if then == "it is told something":
            shell.carry_out([events.Send(0, (connection.session,), bytes(8_192), None, 0)])
        else:
            receive(connection, memoryview(named if then == "it names a key" else contributed))
        return connection.is_closing()

    assert asyncio.run(ask(1_024)) and not asyncio.run(ask(16_384))


def test_what_the_kernel_does_not_take_at_once_takes_of_the_turn_as_well() -> None:
    """Regression: libuv wrote the rest outside all turns: another job's p99 rose tenfold."""

    class Slow(Socket):
        def writelines(self, list_of_data: Iterable[Any]) -> None:
            super().writelines(list_of_data)
            connection.pause_writing()

    async def write() -> float:
        shell.feed(events.Tick())
        connection.connection_made(slow)
        header, payload = hello(0, 1, 4_096)
        receive(connection, memoryview(pack_header(header, KERNELS.crc32c) + payload))
        await asyncio.sleep(0)
        connection.resume_writing()
        slow.read = slow.taken
        connection.turn.spent = 0.0
        connection.send([bytes(SIZE)], SIZE)  # as many bytes as are given to the kernel at once
        return connection.turn.spent

    slow = Slow()
    shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
    connection = shell.connection()
    assert asyncio.run(write()) >= SIZE * LATER_BYTE_SECONDS


@pytest.mark.parametrize("deaf", [True, False])
def test_the_ranks_of_a_run_are_cut_off_some_at_a_time(deaf: bool) -> None:
    """Regression: one frame cut off 8,190 ranks that did not read: 55 ms in one pass. A HELLO that
    needed the memory of 4,000 ranks after their BYE took as long."""
    ranks = 2 * ENDED_AT_ONCE

    class Deaf(Socket):
        unread = 0

        def get_write_buffer_size(self) -> int:
            return self.unread

        def abort(self) -> None:
            cut_off.append(self)

    cut_off: list[Deaf] = []

    async def tell_all() -> None:
        shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
        sockets = [Deaf() for _ in range(ranks)]
        for rank, socket in enumerate(sockets):
            connection = shell.connection()
            connection.connection_made(socket)
            header, payload = hello(rank, ranks, 4_096)
            receive(connection, memoryview(pack_header(header, KERNELS.crc32c) + payload))
        await asyncio.sleep(0)
        while shell.turns._over:  # joins on a slow machine
            await asyncio.sleep(0)
        for socket in sockets:
            socket.unread = 1 << 30
        shell.turns.seconds = 60.0  # a pass has time for all, even on a slow machine
        if deaf:
            shell.feed(events.Drain("maintenance"))
        else:
            sessions = list(shell.connections)
            shell.executor.run([events.Close(1, s, "its room is needed", True) for s in sessions])
        counts = [len(cut_off)]
        for _ in range(3):
            await asyncio.sleep(0)
            counts.append(len(cut_off))
        assert counts == [0, ENDED_AT_ONCE, ranks, ranks]
        assert shell.executor.slow_readers == (ranks if deaf else 0)

    asyncio.run(tell_all())


def test_questions_whose_answers_are_not_read_get_no_more_of_them() -> None:
    asyncio.run(flood(Socket(), 4))
