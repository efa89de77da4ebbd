"""Strangers and peers that break the protocol do no harm to a daemon or to its other peers."""

from __future__ import annotations

import os
import random
import select
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack

import msgpack
import numpy as np
import pytest

from reducer.server.daemon.acceptor import PREFACE_SECONDS
from reducer.wire import messages
from reducer.wire.codes import (
    PROTOCOL_MINOR,
    Collective,
    DType,
    ErrorCode,
    MessageKind,
    ReduceOp,
)
from reducer.wire.decoder import Decoder
from reducer.wire.header import PREFACE_SIZE, Header, pack_header, pack_preface, unpack_preface
from tests.support.cluster import Daemon
from tests.support.strangers import read_to_end, total_refused
from tests.support.wait import AT_ONCE, wait_until
from tests.support.worker import Worker, connect, crc32c, frame_of

TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(190)
POST = b"POST / HTTP/1.1\r\n\r\n"
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with Daemon() as running:
        yield running


@pytest.fixture(autouse=True)
def lives_on(daemon: Daemon) -> Iterator[None]:
    """After each attack the daemon is healthy, holds no connection or buffer, and still sums."""
    yield
    assert daemon.get("/healthz")[0] == 200
    with Worker(daemon.port, "after", 0, 1) as worker:
        values = np.arange(1000, dtype=np.float32)
        assert worker.join().all_reduce("k", 0, values) == values.tobytes()
        worker.bye()
    wait_until(lambda: daemon.lane_total("connections") == 0, 5, "no connection is left")
    wait_until(lambda: daemon.lane_total("buffers_out") == 0, 5, "no buffer is out")
    assert daemon.lane_total("internal_errors") == 0


def error_in(data: bytes) -> messages.Error:
    decoder = Decoder(crc32c, lambda header: memoryview(bytearray(header.length + 80)))
    frames = decoder.feed(data)
    assert frames, data
    assert frames[-1].header.kind == MessageKind.ERROR
    assert frames[-1].payload is not None
    return messages.decode(messages.Error, frames[-1].payload)


def plain(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), 5)
    sock.settimeout(10)
    return sock


@pytest.mark.parametrize("data", [POST, TLS_HELLO, b"GET x", bytes(64), b"\xff" * 4096, b"ORSQ"])
def test_garbage_is_closed_at_once(daemon: Daemon, data: bytes) -> None:
    refused = daemon.stats()["refused"].get("garbage", 0)
    with plain(daemon.port) as sock:
        start = time.monotonic()
        sock.sendall(data)
        assert read_to_end(sock) == b""
        assert time.monotonic() - start < AT_ONCE
    assert daemon.stats()["refused"]["garbage"] == refused + 1


@pytest.mark.parametrize("split", [1, len(GET)])
def test_an_http_client_is_told_where_the_metrics_are(daemon: Daemon, split: int) -> None:
    before = total_refused(daemon)
    with plain(daemon.port) as sock:
        for at in range(0, len(GET), split):
            sock.sendall(GET[at : at + split])
        answer = read_to_end(sock).decode()
    head, _, body = answer.partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 421 ")
    assert f"\r\nReducer-Metrics: 127.0.0.1:{daemon.metrics_port}\r\n" in head
    assert f"\r\nContent-Length: {len(body)}\r\n" in head
    assert f"status page of this reducer is at 127.0.0.1:{daemon.metrics_port} " in body
    assert total_refused(daemon) == before


def test_random_bytes_and_one_log_line(daemon: Daemon) -> None:
    """All connections are counted; at most one a second is logged."""
    source = random.Random(1)
    counted, lines = total_refused(daemon), daemon.log.count("refused")

    def send() -> None:
        with plain(daemon.port) as sock:
            sock.sendall(source.randbytes(source.randrange(1, 200)))

    def is_logged() -> bool:  # an earlier test may have used up this second's line
        send()
        return daemon.log.count("refused") > lines

    start = time.monotonic()
    for _ in range(300):
        send()
    wait_until(lambda: total_refused(daemon) == counted + 300, 10, "all of them are counted")
    wait_until(is_logged, 5, "a line", interval=0.3)
    logged = daemon.log.count("refused") - lines
    took = time.monotonic() - start
    assert 1 <= logged <= 2 + took


def test_another_major_version_is_answered_with_our_preface(daemon: Daemon) -> None:
    theirs = bytearray(pack_preface(0))
    theirs[4] = 9
    data = bytes(theirs) + b"frames of a later version" * 100

    def is_logged() -> bool:  # only one stranger is logged each second
        with plain(daemon.port) as sock:
            sock.sendall(data)
            answer = read_to_end(sock)
        assert len(answer) == PREFACE_SIZE
        assert unpack_preface(answer).major == 1
        return f"speaks protocol 9.{PROTOCOL_MINOR}, this reducer 1.{PROTOCOL_MINOR}" in daemon.log

    wait_until(is_logged, 5, "the refusal is logged, with both versions", interval=0.3)


@pytest.mark.parametrize("where", ["preface", "frame"])
def test_a_peer_that_goes_on_sending_can_still_read_why(daemon: Daemon, where: str) -> None:
    """If the lane closed the socket at once, the peer would get RST, then EPIPE, instead."""
    with plain(daemon.port) as sock:
        sock.sendall(pack_preface(9 if where == "preface" else 0))
        if where == "frame":
            sock.sendall(bytes(80))
        readable, _, _ = select.select([sock], [], [], 5)
        assert readable
        for _ in range(20):
            sock.sendall(bytes(20_000))
            error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            assert error == 0, os.strerror(error)
        assert error_in(sock.recv(4096)).code == ErrorCode.PROTOCOL


def test_a_lane_that_is_not_there(daemon: Daemon) -> None:
    with connect(daemon.port, lane=7) as sock:
        error = error_in(read_to_end(sock))
    assert error.code == ErrorCode.PROTOCOL
    assert "lane 7" in error.message


def test_reserved_bits_in_the_preface(daemon: Daemon) -> None:
    with plain(daemon.port) as sock:
        data = bytearray(pack_preface(0))
        data[12] = 1
        sock.sendall(data)
        assert "reserved" in error_in(read_to_end(sock)).message


@pytest.mark.parametrize("kind", [MessageKind.HELLO, MessageKind.CONTRIBUTION, MessageKind.BYE])
@pytest.mark.parametrize("length", [(1 << 16) + 1, 1 << 31, (1 << 32) - 1])
def test_oversized_lengths(daemon: Daemon, kind: MessageKind, length: int) -> None:
    header = Header(kind, DType.FLOAT32, ReduceOp.SUM, Collective.ALL_REDUCE, length=length)
    with connect(daemon.port) as sock:
        sock.sendall(pack_header(header, crc32c))
        assert error_in(read_to_end(sock)).code == ErrorCode.PROTOCOL


def test_a_contribution_before_the_hello_takes_no_memory(daemon: Daemon) -> None:
    header = Header(
        MessageKind.CONTRIBUTION, DType.FLOAT32, ReduceOp.SUM, Collective.ALL_REDUCE, rank=0,
        count=1 << 20, length=4 << 20,
    )  # fmt: skip
    with connect(daemon.port) as sock:
        sock.sendall(pack_header(header, crc32c))
        assert error_in(read_to_end(sock)).code == ErrorCode.PROTOCOL
    assert daemon.lane_total("buffer_bytes") == 0


@pytest.mark.parametrize(
    "payload",
    [
        b"\x91" * 60_000,
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        msgpack.packb({"job": "x" * 60_000}),
        b"\xc1",
    ],
    ids=["deep", "long-list", "long-map", "long-bytes", "long-name", "no-msgpack"],
)
def test_msgpack_bombs(daemon: Daemon, payload: bytes) -> None:
    header = Header(MessageKind.HELLO, length=len(payload), payload_crc=crc32c(payload))
    with connect(daemon.port) as sock:
        sock.sendall(pack_header(header, crc32c) + payload)
        assert error_in(read_to_end(sock)).code == ErrorCode.PROTOCOL


def test_a_flipped_bit_is_found(daemon: Daemon) -> None:
    with Worker(daemon.port, "flip", 0, 1) as worker:
        worker.join()
        data = bytes(64)
        header = Header(
            MessageKind.CONTRIBUTION, DType.FLOAT32, ReduceOp.SUM, Collective.ALL_REDUCE, rank=0,
            count=16, length=64, payload_crc=crc32c(data) ^ 1,
        )  # fmt: skip
        worker.links[0].sock.sendall(pack_header(header, crc32c) + data)
        assert worker.wait_for_error().code == ErrorCode.CORRUPTED


def test_slow_prefaces_are_cut_and_do_not_delay_others() -> None:
    room = 256  # strangers get a quarter of the descriptors
    with Daemon(descriptors=4 * room) as daemon, ExitStack() as stack:
        slow = [stack.enter_context(plain(daemon.port)) for _ in range(600)]
        for sock in slow[::2]:
            sock.sendall(b"ORSP")
        start = time.monotonic()
        with Worker(daemon.port, "prompt", 0, 1) as worker:
            worker.join()
            worker.bye()
        assert time.monotonic() - start < AT_ONCE
        assert read_to_end(slow[-1]) == b""
        assert time.monotonic() - start < PREFACE_SECONDS + AT_ONCE
        counts = daemon.stats()["refused"]
        assert counts["crowded"] >= 600 - room
        assert "descriptors" not in counts
        assert counts["slow"] >= 1


def test_silence_after_the_preface_is_cut(daemon: Daemon) -> None:
    with connect(daemon.port) as sock:
        start = time.monotonic()
        error = error_in(read_to_end(sock))
        assert 1.0 < time.monotonic() - start < PREFACE_SECONDS + AT_ONCE
    assert "HELLO" in error.message


def test_silent_connections_in_a_lane_do_not_delay_others(daemon: Daemon) -> None:
    with ExitStack() as stack:
        for _ in range(400):
            stack.enter_context(connect(daemon.port))
        start = time.monotonic()
        with Worker(daemon.port, "prompt", 0, 1) as worker:
            worker.join()
            worker.bye()
        assert time.monotonic() - start < AT_ONCE
        assert daemon.lane_total("dropped_before_hello") >= 400 - 256


def test_a_hello_in_single_bytes_is_as_good(daemon: Daemon) -> None:
    hello = messages.Hello(
        job="bytes", rank=0, world_size=1, incarnation=bytes(16), slot=0, reducers=1,
        run_id="r", chunk_table=((0, 65_536),),
    )  # fmt: skip
    with plain(daemon.port) as sock:
        for byte in pack_preface(0) + frame_of(hello):
            sock.sendall(bytes((byte,)))
        header = sock.recv(80, socket.MSG_WAITALL)
        assert header[5] == MessageKind.WELCOME


def test_a_peer_that_vanishes_inside_a_payload(daemon: Daemon) -> None:
    with Worker(daemon.port, "half", 0, 1) as worker:
        worker.join()
        header = Header(
            MessageKind.CONTRIBUTION, DType.FLOAT32, ReduceOp.SUM, Collective.ALL_REDUCE, rank=0,
            count=16_384, length=65_536, payload_crc=1,
        )  # fmt: skip
        sock = worker.links[0].sock
        sock.sendall(pack_header(header, crc32c) + bytes(1000))
        wait_until(lambda: daemon.lane_total("buffers_out") == 1, 5, "its buffer is out")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
