"""A connection in mode tls."""

from __future__ import annotations

import asyncio
from pathlib import Path

from reducer.server.buffers import BufferPool
from reducer.server.shell import LaneShell
from reducer.server.tls_link import TlsLink
from reducer.wire.header import pack_header
from tests.support.bare_lane import BUDGET, KERNELS, Sink, bare_lane, contribution, hello
from tests.support.certs import Authority, shake_hands
from tests.support.frames import heartbeat

CHUNK = 64 << 10


def test_tls_is_given_little_at_once_until_a_chunk_has_come(tmp_path: Path) -> None:
    """Its memory stays as large as what it was given: 85 KB more for each whose run forms."""
    worker, lane, to_worker, to_lane = shake_hands(Authority(tmp_path).issue())
    chunk = bytes(CHUNK)
    sent = [hello(0, 1, CHUNK), (contribution(0, 0, 0, 1, chunk), chunk)]
    greeting, data = (pack_header(header, KERNELS.crc32c) + payload for header, payload in sent)

    async def offered() -> list[int]:
        shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
        connection = shell.connection()
        link = TlsLink(Sink(), lane, to_lane, to_worker, connection)
        link.begin()
        rooms = []
        for frames in (b"", greeting, 2 * heartbeat((1, 1)), data[:-1], data[-1:]):
            connection.turn.spent = -1_000.0  # it does not end, however slow the machine is
            worker.write(frames)
            link.buffer_updated(0)
            rooms.append(len(link.get_buffer(-1)))
        return rooms

    assert asyncio.run(offered()) == [4_096, 4_096, 4_096, CHUNK, CHUNK]
