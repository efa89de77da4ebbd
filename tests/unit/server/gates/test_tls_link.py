"""A connection in mode tls."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Awaitable, Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from reducer.server.data.buffers import BufferPool
from reducer.server.data.connection import READ_BYTES
from reducer.server.data.outbox import BYTES_AT_ONCE
from reducer.server.data.shell import LaneShell
from reducer.server.data.turns import SECONDS
from reducer.server.gates.tls_link import (
    MOST_UNREAD_ANSWERS,
    MOST_WITHOUT_DATA,
    RECORDS_AT_ONCE,
    WRITTEN_AT_ONCE,
    TlsLink,
)
from reducer.wire.header import pack_header
from tests.support.bare_lane import (
    BUDGET,
    KERNELS,
    Sink,
    arrive,
    bare_lane,
    contribution,
    hello,
    never_held,
)
from tests.support.certs import Authority, shake_hands
from tests.support.frames import heartbeat
from tests.support.key_updates import RecordWriter

CHUNK = 64 << 10


def test_tls_is_given_little_at_once_until_a_chunk_has_come(tmp_path: Path) -> None:
    """TLS keeps memory for its largest input: 85 KB more for each rank of a forming run."""
    worker, lane, to_worker, to_lane = shake_hands(Authority(tmp_path).issue())
    chunk = bytes(CHUNK)
    sent = [hello(0, 1, CHUNK), (contribution(0, 0, 0, 1, chunk), chunk)]
    greeting, data = (pack_header(header, KERNELS.crc32c) + payload for header, payload in sent)

    async def offered() -> list[int]:
        shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
        connection = shell.connection()
        link = TlsLink(Sink(), lane, to_lane, to_worker, connection)
        link.begin()
        await never_held(shell, connection)
        rooms = []
        for frames in (b"", greeting, 2 * heartbeat((1, 1)), data[:-1], data[-1:]):
            worker.write(frames)
            link.buffer_updated(0)
            await never_held(shell, connection)
            rooms.append(len(link.get_buffer(-1)))
        return rooms

    assert asyncio.run(offered()) == [4_096, 4_096, 4_096, CHUNK, CHUNK]


class Line(Sink):
    """A transport that records its calls; ``unread``: bytes that the worker has not read."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[int] = []
        self.unread = 0
        self.reads, self.closed, self.aborted, self.is_ended = True, False, False, False
        self.socket = socket.socket()

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self.socket

    def write_eof(self) -> None:
        """The worker keeps reading."""
        self.is_ended = True

    def is_closing(self) -> bool:
        return self.closed or self.aborted

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    def get_write_buffer_size(self) -> int:
        return self.unread

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.pieces += map(len, list_of_data)

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


class Peer:
    """A worker with hand-made records, and the lane's end of its connection."""

    def __init__(self, folder: Path) -> None:
        keylog = folder / "keys"
        files = Authority(folder / "certs").issue()
        _, tls, to_worker, to_lane = shake_hands(files, keylog)
        self.writer = RecordWriter(keylog)
        self.line = Line()
        self.shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
        self.connection = self.shell.connection()
        self.connection.turn.spent = -1_000.0  # does not end, even on a slow machine
        self.link = TlsLink(self.line, tls, to_lane, to_worker, self.connection)
        self.link.begin()

    def keys(self, count: int, asks: bool = False) -> bytes:
        return b"".join(self.writer.key_update(asks) for _ in range(count))


def played(folder: Path, play: Callable[[Peer], Awaitable[None] | None]) -> Peer:
    async def run() -> Peer:
        peer = Peer(folder)
        with peer.line.socket:
            if (rest_of_it := play(peer)) is not None:
                await rest_of_it
        return peer

    return asyncio.run(run())


def test_records_are_decrypted_a_few_at_a_time_until_the_turn_is_over(tmp_path: Path) -> None:
    """Regression: 2,400 records in one read blocked a lane for 60 ms."""

    async def run() -> None:
        peer = Peer(tmp_path)
        peer.line.socket.close()
        peer.connection.turn.spent = SECONDS - 1e-9
        data = heartbeat((1, 1))
        arrive(peer.link, b"".join(peer.writer.data(bytes((byte,))) for byte in data))
        assert peer.connection.bytes_in <= RECORDS_AT_ONCE < len(data) and not peer.line.reads
        async with asyncio.timeout(10):
            while peer.connection.bytes_in < len(data):
                await asyncio.sleep(0)

    asyncio.run(run())


def test_who_changes_its_key_again_and_again_is_refused(tmp_path: Path) -> None:
    def play(peer: Peer) -> None:
        for byte in heartbeat()[:3]:
            arrive(peer.link, peer.keys(MOST_WITHOUT_DATA) + peer.writer.data(bytes((byte,))))
        assert peer.connection.bytes_in == 3 and not peer.connection.is_closing()
        arrive(peer.link, peer.keys(MOST_WITHOUT_DATA + 1))

    peer = played(tmp_path, play)
    assert peer.connection.is_closing() and peer.shell.counters.protocol_errors == 1


def test_who_asks_for_new_keys_and_reads_no_answer_is_refused(tmp_path: Path) -> None:
    """Regression: a worker that read a byte now and then made a lane keep unlimited answers."""
    count = MOST_UNREAD_ANSWERS // 27 + 2  # TLS answers as it reads the next record

    async def play(peer: Peer) -> None:
        header, payload = hello(0, 1, CHUNK)
        arrive(peer.link, peer.writer.data(pack_header(header, KERNELS.crc32c) + payload))
        await never_held(peer.shell, peer.connection)  # now charged to its job
        for unread in (0, 1):
            assert not peer.connection.is_closing()
            peer.line.unread = unread
            for byte in (count * heartbeat())[:count]:
                arrive(peer.link, peer.keys(1, asks=True) + peer.writer.data(bytes((byte,))))

    peer = played(tmp_path, play)
    assert peer.connection.is_closing() and peer.shell.counters.protocol_errors == 1


def test_an_end_of_tls_is_an_end_of_the_connection(tmp_path: Path) -> None:
    """Regression: the link kept the bytes after a close_notify, and nothing read them."""
    peer = played(tmp_path, lambda peer: arrive(peer.link, peer.writer.end() + peer.keys(100)))
    assert peer.line.closed


def test_what_comes_after_the_end_is_thrown_away(tmp_path: Path) -> None:
    def play(peer: Peer) -> None:
        peer.connection.abort("it is over")
        arrive(peer.link, bytes(100))

    assert played(tmp_path, play).shell.leftovers._bytes == READ_BYTES


def test_a_long_queue_is_encrypted_in_slices(tmp_path: Path) -> None:
    """Regression: the memory of TLS grew to its longest queue, and stayed so large."""
    size = 5 * WRITTEN_AT_ONCE
    pieces = played(
        tmp_path, lambda peer: peer.link.writelines([bytes(100), bytes(size)])
    ).line.pieces
    assert size + 100 < sum(pieces) and max(pieces) < WRITTEN_AT_ONCE + WRITTEN_AT_ONCE // 100


class Kept(Line):
    """A line that keeps the written data."""

    def __init__(self) -> None:
        super().__init__()
        self.data = bytearray()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.data += b"".join(list_of_data)


@pytest.mark.parametrize("ends", [False, True])
def test_a_long_answer_is_encrypted_while_others_are_served(tmp_path: Path, ends: bool) -> None:
    """An ending session also gets its whole answer, and the end after it."""
    worker, lane, to_worker, to_lane = shake_hands(Authority(tmp_path).issue())
    sizes = (96, 3 * BYTES_AT_ONCE, BYTES_AT_ONCE)
    frames = [random.Random(size).randbytes(size) for size in sizes]

    async def run(line: Kept) -> list[int]:
        shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
        connection = shell.connection()
        TlsLink(line, lane, to_lane, to_worker, connection).begin()
        connection.send([*frames], sum(sizes))
        if ends:
            connection.close("it is over")
        encrypted = [0]
        while connection.unsent() or line.is_ended != ends:
            encrypted.append(len(line.data))
            assert len(encrypted) < 100
            await asyncio.sleep(0)
        return [after - before for before, after in pairwise([*encrypted, len(line.data)])]

    line = Kept()
    with line.socket:
        steps = asyncio.run(run(line))
    to_worker.write(line.data)
    received = bytearray()
    while part := len(received) < sum(sizes) and worker.read(1 << 20):
        received += part
    assert received == b"".join(frames)
    # A flush requested before the end runs in the same pass as the first part of the end.
    assert max(steps) < (2.02 if ends else 1.01) * BYTES_AT_ONCE
