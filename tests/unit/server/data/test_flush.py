"""Frames are written after the loop has read all input; a failing connection fails alone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from reducer.server.data.buffers import BufferPool
from reducer.server.data.shell import LaneShell
from reducer.wire.header import HEADER_SIZE, pack_header
from tests.support.bare_lane import BUDGET, KERNELS, Sink, bare_lane, contribution, hello, receive
from tests.support.faults import FullDisk

PAYLOAD = bytes(4_096)


class Socket(Sink):
    """A transport that can be broken; counts the calls of `writelines`."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.broken = False
        self.aborted = False

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        if self.broken:
            raise OSError("broken on purpose")
        self.calls += 1
        super().writelines(list_of_data)

    def abort(self) -> None:
        self.aborted = True


async def a_round_of_two_chunks(*, broken: bool) -> tuple[LaneShell, list[Socket]]:
    """Contributions of two ranks come in one turn of the loop; rank 0's socket may break."""
    shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
    sockets = [Socket(), Socket()]
    connections = [shell.connection() for _ in sockets]
    for rank, (connection, socket) in enumerate(zip(connections, sockets, strict=True)):
        connection.connection_made(socket)
        header, payload = hello(rank, 2, len(PAYLOAD))
        receive(connection, memoryview(pack_header(header, KERNELS.crc32c) + payload))
        await asyncio.sleep(0)
    for socket in sockets:
        socket.calls = socket.taken = 0
    sockets[0].broken = broken
    for chunk in range(2):
        for rank, connection in enumerate(connections):
            header = contribution(rank, 0, chunk, 2, PAYLOAD)
            receive(connection, memoryview(pack_header(header, KERNELS.crc32c) + PAYLOAD))
    await asyncio.sleep(0)
    return shell, sockets


def test_frames_of_one_turn_of_the_loop_go_out_together() -> None:
    _, sockets = asyncio.run(a_round_of_two_chunks(broken=False))
    for socket in sockets:
        assert (socket.calls, socket.taken) == (1, 2 * (HEADER_SIZE + len(PAYLOAD)))


def test_a_socket_that_cannot_be_written_takes_no_other_with_it() -> None:
    shell, (bad, good) = asyncio.run(a_round_of_two_chunks(broken=True))
    assert bad.aborted and shell.counters.internal_errors
    assert good.taken >= 2 * (HEADER_SIZE + len(PAYLOAD)) and not good.aborted


def test_a_socket_that_cannot_be_written_ends_although_the_log_fails() -> None:
    """If a frame were lost on an open connection, the worker would wait for ever."""
    log, handler = logging.getLogger("reducer.lane"), FullDisk()
    log.addHandler(handler)
    try:
        _, (bad, good) = asyncio.run(a_round_of_two_chunks(broken=True))
    finally:
        log.removeHandler(handler)
    assert bad.aborted
    assert good.taken >= 2 * (HEADER_SIZE + len(PAYLOAD)) and not good.aborted
