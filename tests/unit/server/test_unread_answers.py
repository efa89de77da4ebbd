"""What a worker asks for and does not read takes no memory of others."""

from __future__ import annotations

import asyncio

from bench.micro.lanes import BUDGET, KERNELS, Sink, bare_lane, hello, receive
from reducer.server.buffers import BufferPool
from reducer.server.shell import LaneShell
from reducer.wire.codes import MessageKind
from reducer.wire.header import Header, pack_header

QUESTION = pack_header(Header(MessageKind.STATS), KERNELS.crc32c)
FLOOD = 1_000


class Socket(Sink):
    """A transport whose peer reads all, or nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.read = 0

    def get_write_buffer_size(self) -> int:
        return self.taken - self.read


async def ask(socket: Socket, questions: int) -> int:
    """Bytes that wait for the peer of one connection."""
    shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), BUDGET, 10.0)
    connection = shell.connection()
    connection.connection_made(socket)
    header, payload = hello(0, 1, 4_096)
    receive(connection, memoryview(pack_header(header, KERNELS.crc32c) + payload))
    await asyncio.sleep(0)
    socket.read = socket.taken
    for _ in range(questions):
        receive(connection, memoryview(QUESTION))
    await asyncio.sleep(0)
    unread = socket.get_write_buffer_size()
    socket.read = socket.taken  # then the next question is answered
    receive(connection, memoryview(QUESTION))
    await asyncio.sleep(0)
    assert socket.get_write_buffer_size()
    return unread


def test_questions_whose_answers_are_not_read_get_no_more_of_them() -> None:
    one = asyncio.run(ask(Socket(), 1))
    assert asyncio.run(ask(Socket(), FLOOD)) == one > 0
