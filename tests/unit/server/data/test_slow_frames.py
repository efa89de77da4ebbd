"""A worker that sends a frame slowly is not silent."""

from __future__ import annotations

import asyncio

from reducer.server.data.buffers import BufferPool
from reducer.server.data.shell import LaneShell
from reducer.wire.header import pack_header
from tests.support.bare_lane import BUDGET, KERNELS, Sink, bare_lane, contribution, hello, receive

CHUNK = 64 << 10
PIECE = 1_000  # bytes


def test_each_piece_of_a_long_frame_is_heard() -> None:
    async def send() -> None:
        lane = bare_lane(4 << 20)
        shell = LaneShell(lane, KERNELS, BufferPool(BUDGET), 10.0)
        connection = shell.connection()
        connection.connection_made(Sink())
        header, payload = hello(0, 1, CHUNK)
        receive(connection, memoryview(pack_header(header, KERNELS.crc32c) + payload))
        peer = lane._roster.sessions[connection.session]
        shell.tick()
        payload = bytes(CHUNK)
        frame = pack_header(contribution(0, 0, 0, 1, payload), KERNELS.crc32c) + payload
        for begin in range(0, 5 * PIECE, PIECE):
            before = peer.heard_at
            shell.tick()
            assert peer.heard_at == before
            receive(connection, memoryview(frame[begin : begin + PIECE]))
            shell.tick()
            assert peer.heard_at > before

    asyncio.run(send())
