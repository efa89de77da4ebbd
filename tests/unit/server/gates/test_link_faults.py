"""A bug on incoming bytes ends the run with INTERNAL and is counted; nobody waits for ever."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from reducer.core.surface.numbers import EndedPart
from reducer.server.data.buffers import BufferPool
from reducer.server.data.connection import Connection
from reducer.server.data.shell import LaneShell
from reducer.server.data.turns import SECONDS
from reducer.server.gates.tls_link import TlsLink
from reducer.wire.errors import InternalError
from reducer.wire.header import pack_header
from tests.support.bare_lane import (
    BUDGET,
    KERNELS,
    Sink,
    bare_lane,
    contribution,
    hello,
    never_held,
    receive,
)
from tests.support.certs import Authority, shake_hands
from tests.support.faults import Faulty, UntoldError, tls_failure
from tests.support.frames import heartbeat

HELLO, _PAYLOAD = hello(0, 1, 4_096)
GREETING = pack_header(HELLO, KERNELS.crc32c) + _PAYLOAD
ERRORS = [MemoryError("injected"), OSError("injected")]


class Line(Sink):
    """The lane's end of a connection, with an empty queue at its end."""

    socket: socket.socket

    def __init__(self) -> None:
        super().__init__()
        self.ended, self.reads = False, True
        self.error: Exception | None = None
        self.socket = socket.socket()

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *exception: object) -> None:
        self.socket.close()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.socket

    def is_closing(self) -> bool:
        return self.ended

    def can_write_eof(self) -> bool:
        return False

    def write_eof(self) -> None:
        pass

    def abort(self) -> None:
        self.ended = True

    def pause_reading(self) -> None:
        if self.error is not None:
            raise self.error
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


class Lane:
    """A run of one rank, on a plain line or in TLS."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
        self.connection = self.shell.connection()

    async def join(self) -> None:
        self.connection.connection_made(self.line)
        receive(self.connection, memoryview(GREETING))
        await never_held(self.shell, self.connection)

    async def check(self) -> None:
        async with asyncio.timeout(5):
            while not self.shell.counters.internal_errors:
                await asyncio.sleep(0)
        core = self.shell._lane
        assert self.connection.is_closing()
        assert all(isinstance(part, EndedPart) for part in core.parts(0.0))
        assert core.snapshot().errors["internal"] == self.shell.counters.internal_errors == 1
        assert self.shell.counters.protocol_errors == 0
        async with asyncio.timeout(5):  # until the end is noticed
            while not (self.line.reads or self.line.ended):
                await asyncio.sleep(0)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("held", [False, True], ids=["at once", "in the next turn"])
@pytest.mark.parametrize("where", ["get_buffer", "buffer_updated", "spend"])
def test_what_was_decrypted_and_could_not_be_taken(
    tmp_path: Path, where: str, held: bool, error: Exception
) -> None:
    """Regression: the bytes were lost, the connection stayed, and its round waited for ever."""
    worker, tls, to_worker, to_lane = shake_hands(Authority(tmp_path).issue())

    async def play(lane: Lane) -> None:
        link = TlsLink(lane.line, tls, to_lane, to_worker, lane.connection)
        link.begin()
        await never_held(lane.shell, lane.connection)
        worker.write(GREETING)
        link.buffer_updated(0)
        assert list(lane.shell._lane.parts(0.0))
        await never_held(lane.shell, lane.connection)  # now charged to its job
        if held:
            lane.connection.turn.spent = SECONDS
        worker.write(heartbeat((1, 1)))
        if held:
            link.buffer_updated(0)
            assert not lane.line.reads
        link._connection = cast(Connection, Faulty(lane.connection, where, error))
        if not held:
            link.buffer_updated(0)
        await lane.check()

    with Line() as line:
        asyncio.run(play_in_a_loop(play, line))


def test_a_record_that_tls_has_no_memory_for(tmp_path: Path) -> None:
    """Regression: the connection ended without a report."""
    _, tls, to_worker, to_lane = shake_hands(Authority(tmp_path).issue())
    error = tls_failure("malloc failure")

    async def play(lane: Lane) -> None:
        link = TlsLink(lane.line, tls, to_lane, to_worker, lane.connection)
        link.begin()
        told: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: told.append(context["exception"]))
        link._tls = cast(ssl.SSLObject, Faulty(tls, "read", error))
        to_lane.write(heartbeat((1, 1)))
        link.buffer_updated(0)
        assert told == [error] and lane.line.ended

    with Line() as line:
        asyncio.run(play_in_a_loop(play, line))


async def play_in_a_loop(play: Callable[[Lane], Any], line: Line) -> None:
    await play(Lane(line))


def no_buffer(lane: Lane) -> None:
    """Fail to get a buffer after a part of a header."""
    receive(lane.connection, memoryview(heartbeat((1, 1))[:10]))
    lane.connection._decoder._scratch.release()
    lane.connection.get_buffer(-1)


def no_bytes(lane: Lane) -> None:
    """Fail to pause reading after bytes were read."""
    lane.connection.turn.spent = SECONDS
    lane.line.error = OSError("injected")
    lane.connection.buffer_updated(0)


@pytest.mark.parametrize("use", [no_buffer, no_bytes])
def test_what_came_and_could_not_be_read(use: Callable[[Lane], None]) -> None:
    """uvloop ends the connection, but does not report an OSError."""

    async def play(lane: Lane) -> None:
        await lane.join()
        use(lane)
        await lane.check()

    with Line() as line:
        asyncio.run(play_in_a_loop(play, line))


def test_an_end_that_cannot_give_a_buffer_back_is_an_end() -> None:
    """Regression: the transport was never closed."""

    async def play(lane: Lane) -> None:
        await lane.join()
        header = contribution(0, 0, 0, 1, bytes(4_096))
        receive(lane.connection, memoryview(pack_header(header, KERNELS.crc32c) + bytes(100)))
        arriving = lane.connection._arriving
        assert arriving is not None
        lane.shell.release(arriving)
        with pytest.raises(InternalError, match="twice"):
            lane.connection.abort("over")
        assert lane.line.ended

    with Line() as line:
        asyncio.run(play_in_a_loop(play, line))


def test_an_end_whose_reason_cannot_be_told_is_an_end() -> None:
    """Otherwise the memory of its run would stay reserved for ever."""

    async def play(lane: Lane) -> None:
        await lane.join()
        header = contribution(0, 0, 0, 1, bytes(4_096))
        receive(lane.connection, memoryview(pack_header(header, KERNELS.crc32c) + bytes(100)))
        assert lane.shell._pool.out == 1
        lane.connection.connection_lost(UntoldError())
        await asyncio.sleep(0)
        assert not lane.shell.connections and not lane.shell._pool.out
        assert lane.shell.counters.internal_errors == 1

    with Line() as line:
        asyncio.run(play_in_a_loop(play, line))


def test_the_end_of_a_connection_whose_socket_is_closed_is_no_internal_error() -> None:
    """A write that fails closes the socket before the loop tells of it."""

    async def play(lane: Lane) -> None:
        await lane.join()
        lane.line.socket.close()
        lane.connection.close("over")
        await asyncio.sleep(0)
        assert not lane.shell.counters.internal_errors

    with Line() as line:
        asyncio.run(play_in_a_loop(play, line))


def test_who_cannot_be_watched_while_it_reads_its_last_frames_is_cut_off() -> None:
    """Regression: the connection was not checked again, and stayed."""

    async def play(lane: Lane) -> None:
        await lane.join()
        lane.connection.close("over")
        await asyncio.sleep(0)
        assert not lane.line.ended
        lane.line.socket.close()
        with pytest.raises(ValueError, match="negative"):
            lane.connection._maybe_cut_off(lane.line, 1)
        assert lane.line.ended

    with Line() as line:
        asyncio.run(play_in_a_loop(play, line))
