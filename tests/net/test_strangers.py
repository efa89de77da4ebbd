"""Strangers at a reducer of mode psk or tls: silence, single bytes or crowds gain them no time and
keep no worker out."""

from __future__ import annotations

import random
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from reducer import keyfile
from reducer.server.gates.gate import MAX_NEWCOMERS, PROOF_SECONDS
from reducer.wire.header import PrefaceFlag, pack_preface
from tests.support.certs import Files
from tests.support.cluster import Daemon
from tests.support.handshakes import complete
from tests.support.strangers import (
    check_it_lives_on,
    client_hello,
    opened,
    read_to_end,
    refused,
    total_refused,
)
from tests.support.wait import AT_ONCE, wait_until
from tests.support.worker import Worker


@dataclass
class Mode:
    """A daemon of one mode, the first bytes of an honest worker, and its credentials."""

    daemon: Daemon
    preface: bytes
    opening: bytes  # after the preface
    magic: bytes  # first bytes of the opening; garbage may begin with them
    proof: dict[str, Any] = field(default_factory=dict)


@pytest.fixture(scope="module", params=["psk", "tls"])
def mode(request: pytest.FixtureRequest, key_file: str, certs: Files) -> Iterator[Mode]:
    if request.param == "psk":
        key = keyfile.read(key_file)
        opening = complete(master=key)
        with Daemon("--key-file", key_file) as daemon:
            yield Mode(daemon, opening.preface, opening.challenge, b"ORSC", {"key": key})
    else:
        context = certs.context()
        preface = pack_preface(0, PrefaceFlag.TLS)
        with Daemon(*certs.flags) as daemon:
            yield Mode(daemon, preface, client_hello(context), b"\x16\x03\x01", {"tls": context})


@pytest.fixture(autouse=True)
def lives_on(mode: Mode) -> Iterator[None]:
    yield
    check_it_lives_on(mode.daemon, **mode.proof)


def test_random_bytes_and_one_log_line(mode: Mode) -> None:
    """All are counted; the lane and the main process each log at most one a second."""
    source = random.Random(1)
    counted, lines = total_refused(mode.daemon), mode.daemon.log.count("refused")
    start = time.monotonic()
    for _ in range(300):
        with opened(mode.daemon.port) as sock, suppress(ConnectionError):
            sock.sendall(mode.preface + mode.magic[: source.randrange(5)] + source.randbytes(200))
    wait_until(lambda: total_refused(mode.daemon) == counted + 300, 10, "all are counted")
    logged = mode.daemon.log.count("refused") - lines
    took = time.monotonic() - start
    assert 1 <= logged <= 4 + 2 * took


@pytest.mark.parametrize("part", [0.0, 0.6, 1.0])
def test_a_handshake_that_stops_is_cut_after_two_seconds(mode: Mode, part: float) -> None:
    before = refused(mode.daemon, "slow")
    said = mode.opening[: round(part * len(mode.opening))]
    with opened(mode.daemon.port, mode.preface, said) as sock:
        start = time.monotonic()
        answer = read_to_end(sock)
        assert 0.5 * PROOF_SECONDS < time.monotonic() - start < PROOF_SECONDS + AT_ONCE
    assert bool(answer) == (part == 1.0)
    assert refused(mode.daemon, "slow") == before + 1


def test_a_byte_a_time_buys_no_more_time(mode: Mode) -> None:
    start = time.monotonic()
    with opened(mode.daemon.port, mode.preface) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in mode.opening:
            if select.select([sock], [], [], 0.05)[0]:
                break
            with suppress(ConnectionError):
                sock.sendall(bytes((byte,)))
        assert read_to_end(sock) == b""
    assert time.monotonic() - start < PROOF_SECONDS + AT_ONCE


def test_a_crowd_of_slow_strangers_keeps_nobody_out(mode: Mode) -> None:
    said = mode.preface + mode.opening[:100]
    with ExitStack() as stack:
        for _ in range(3 * MAX_NEWCOMERS):
            stack.enter_context(opened(mode.daemon.port, said))
        start = time.monotonic()
        with Worker(mode.daemon.port, "prompt", 0, 1, **mode.proof) as worker:
            worker.join()
            worker.bye()
        assert time.monotonic() - start < AT_ONCE
        assert mode.daemon.lane_total("unproven") <= MAX_NEWCOMERS
        assert refused(mode.daemon, "crowded") >= MAX_NEWCOMERS
