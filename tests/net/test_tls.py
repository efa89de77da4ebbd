"""Mode tls on a real daemon: strangers get an alert, take little memory and delay nobody."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization

from reducer.server.gates import tls_gate
from reducer.server.gates.gate import PROOF_SECONDS
from reducer.server.gates.tls import TlsFiles, make_context
from reducer.server.gates.tls_gate import RECEIVED_BYTES, TlsGate, TlsNewcomer
from reducer.wire import messages
from reducer.wire.codes import ErrorCode
from reducer.wire.header import FRAME_MAGIC, PREFACE_SIZE, PrefaceFlag, pack_header, pack_preface
from reducer.wire.keys import key_id
from tests.support.allocated import allocated
from tests.support.bare_lane import KERNELS, hello
from tests.support.certs import Authority, Files
from tests.support.cluster import Daemon, run_cli
from tests.support.newcomers import Line, QuickThreads, nobody
from tests.support.slow_certificates import slow_context
from tests.support.strangers import (
    check_it_lives_on,
    client_hello,
    opened,
    read_to_end,
    refused,
    total_refused,
)
from tests.support.wait import AT_ONCE, wait_until
from tests.support.worker import Worker, frame_of

PREFACE = pack_preface(0, PrefaceFlag.TLS)
# Memory of a newcomer: received bytes, OpenSSL's handshake state, our objects. OpenSSL 3 allocates
# the length that a ClientHello claims, at most 131,396 bytes, and a third more.
PEER_BYTES = 256 << 10


@pytest.fixture(scope="module")
def daemon(certs: Files) -> Iterator[Daemon]:
    with Daemon(*certs.flags) as running:
        yield running


@pytest.fixture(scope="module")
def context(certs: Files) -> ssl.SSLContext:
    return certs.context()


@pytest.fixture(autouse=True)
def lives_on(daemon: Daemon, context: ssl.SSLContext) -> Iterator[None]:
    yield
    check_it_lives_on(daemon, tls=context)


def endless_hello(size: int) -> bytes:
    """Records of a ClientHello that claims 120,000 bytes."""
    message = b"\x01" + (120_000).to_bytes(3, "big") + b"\x03\x03" + bytes(size)
    pieces = [message[at : at + 4_000] for at in range(0, len(message), 4_000)]
    return b"".join(b"\x16\x03\x01" + len(p).to_bytes(2, "big") + p for p in pieces)


# --- accepted -------------------------------------------------------------------------------


def test_a_handshake_in_single_bytes(daemon: Daemon, context: ssl.SSLContext) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with opened(daemon.port, PREFACE) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answer = b""
        while not answer:
            try:
                answer = tls.read(PREFACE_SIZE)
            except ssl.SSLWantReadError:
                for byte in outgoing.read():
                    sock.sendall(bytes((byte,)))
                incoming.write(sock.recv(65_536))
        assert answer == PREFACE
        assert tls.version() == "TLSv1.3"


def shaken_hands(
    context: ssl.SSLContext, sock: socket.socket
) -> tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]:
    """A worker's TLS object and BIOs; the last part of its handshake is not yet sent."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    sock.sendall(outgoing.read())
    while True:
        incoming.write(sock.recv(65_536))
        with suppress(ssl.SSLWantReadError):
            tls.do_handshake()
            break
    return tls, incoming, outgoing


def test_a_worker_that_says_hello_with_the_end_of_its_handshake(
    daemon: Daemon, context: ssl.SSLContext
) -> None:
    """The HELLO's record comes in two parts: with the end of the handshake, and after it."""
    header, payload = hello(0, 1, 4_096, job="eager")
    with opened(daemon.port, PREFACE) as sock:
        tls, incoming, outgoing = shaken_hands(context, sock)
        tls.write(pack_header(header, KERNELS.crc32c) + payload)
        said = outgoing.read()
        sock.sendall(said[:-10])
        incoming.write(sock.recv(65_536))
        assert tls.read(PREFACE_SIZE) == PREFACE
        sock.sendall(said[-10:])
        incoming.write(sock.recv(65_536))
        assert tls.read(len(FRAME_MAGIC)) == FRAME_MAGIC


def test_a_worker_that_ends_with_its_handshake(daemon: Daemon, context: ssl.SSLContext) -> None:
    """The end of file comes during the last step of the handshake and must not be missed."""
    with opened(daemon.port, PREFACE) as sock:
        _, _, outgoing = shaken_hands(context, sock)
        sock.sendall(outgoing.read())
        sock.shutdown(socket.SHUT_WR)
        start = time.monotonic()
        read_to_end(sock)
        assert time.monotonic() - start < AT_ONCE


def test_a_worker_that_offers_another_share_is_asked_for_ours(daemon: Daemon, certs: Files) -> None:
    context = certs.context_of_any_group()
    with (
        opened(daemon.port, PREFACE) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as sock,
    ):
        assert sock.recv(PREFACE_SIZE) == PREFACE


def test_the_lane_echoes_the_preface_inside_tls(daemon: Daemon, context: ssl.SSLContext) -> None:
    """A worker thereby notices a preface that was changed on the way."""
    changed = PREFACE[:5] + b"\x07" + PREFACE[6:]
    with opened(daemon.port, changed) as plain:
        sock = context.wrap_socket(plain, server_hostname="127.0.0.1")
        with sock:
            assert sock.recv(PREFACE_SIZE) == changed


# --- refused --------------------------------------------------------------------------------


def fails(daemon: Daemon, context: ssl.SSLContext) -> str:
    """The reason that TLS gives the worker, at the end of the handshake or after it."""
    with opened(daemon.port, PREFACE) as plain, pytest.raises(ssl.SSLError) as caught:
        sock = context.wrap_socket(plain, server_hostname="127.0.0.1")
        with sock:
            sock.recv(1)
    return str(caught.value.reason)


def test_a_worker_without_a_certificate(daemon: Daemon, certs: Files) -> None:
    before = refused(daemon, "untrusted")
    assert "CERTIFICATE_REQUIRED" in fails(daemon, ssl.create_default_context(cafile=certs.ca))
    assert refused(daemon, "untrusted") == before + 1
    wait_until(lambda: "it has no certificate" in daemon.log, 10)


def test_tls_1_2_is_refused(daemon: Daemon, certs: Files) -> None:
    before = refused(daemon, "garbage")
    old = certs.context()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert "PROTOCOL_VERSION" in fails(daemon, old)
    assert refused(daemon, "garbage") == before + 1


def test_another_key_exchange_is_refused(certs: Files) -> None:
    """Regression: a ClientHello with a key share of ffdhe8192 blocked a lane for 0.15 s."""
    other = certs.context()
    other.set_ecdh_curve("secp384r1")
    with Daemon(*certs.flags) as daemon:  # a log without another line in the same second
        assert "HANDSHAKE_FAILURE" in fails(daemon, other)
        assert refused(daemon, "garbage") == 1
        wait_until(lambda: "it does not offer P-256" in daemon.log, 10)


@pytest.mark.parametrize(
    "data",
    [bytes(400), b"ORSF" + bytes(76), b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello"],
)
def test_garbage_behind_the_preface(daemon: Daemon, data: bytes) -> None:
    before = refused(daemon, "garbage")
    with opened(daemon.port, PREFACE, data) as sock:
        start = time.monotonic()
        assert len(read_to_end(sock)) < 100  # an alert, at most
        assert time.monotonic() - start < AT_ONCE
    assert refused(daemon, "garbage") == before + 1


def test_plain_garbage_and_tls_without_a_preface(daemon: Daemon, context: ssl.SSLContext) -> None:
    before = refused(daemon, "garbage")
    for data in (os.urandom(3) + b"\0", client_hello(context)):
        with opened(daemon.port) as sock, suppress(ConnectionError):
            sock.sendall(data)
            assert read_to_end(sock) == b""
    assert refused(daemon, "garbage") == before + 2


def test_a_recorded_handshake_opens_nothing(daemon: Daemon, context: ssl.SSLContext) -> None:
    said = b""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with opened(daemon.port, PREFACE) as sock:
        while True:
            try:
                assert tls.read(PREFACE_SIZE) == PREFACE
                break
            except ssl.SSLWantReadError:
                data = outgoing.read()
                said += data
                sock.sendall(data)
                incoming.write(sock.recv(65_536))
    before = daemon.lane_total("accepted")
    with opened(daemon.port, PREFACE, said) as sock:
        read_to_end(sock)
    assert daemon.lane_total("accepted") == before


# --- time and memory ------------------------------------------------------------------------


def test_who_was_refused_and_stays_is_cut_off_too(daemon: Daemon) -> None:
    with opened(daemon.port, PREFACE, bytes(400)) as sock:
        start = time.monotonic()
        read_to_end(sock)  # the alert, and the end of the lane's direction
        wait_until(
            lambda: daemon.lane_total("unproven") == 0, PROOF_SECONDS + AT_ONCE, "it is cut off"
        )
        assert time.monotonic() - start > 1.0


def test_more_than_16_kib_before_the_end_of_the_handshake(daemon: Daemon) -> None:
    before = refused(daemon, "oversized")
    said = endless_hello(2 * RECEIVED_BYTES)
    with opened(daemon.port, PREFACE, said[: RECEIVED_BYTES - 1]) as sock:
        wait_until(lambda: daemon.lane_total("unproven") == 1, 2, "it may go on")
        with suppress(ConnectionError):
            sock.sendall(said[RECEIVED_BYTES - 1 :])
        start = time.monotonic()
        assert read_to_end(sock) == b""
        assert time.monotonic() - start < AT_ONCE
    assert refused(daemon, "oversized") == before + 1


@pytest.mark.skipif(allocated() is None, reason="this C library does not count what it allocates")
def test_what_a_stranger_makes_us_hold(certs: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory, OpenSSL's included, for the largest unfinished ClientHello."""
    monkeypatch.setattr(tls_gate, "HandshakeThreads", QuickThreads)
    gate = TlsGate(make_context(TlsFiles(certs.cert, certs.key, certs.ca)), nobody)
    said = endless_hello(RECEIVED_BYTES - 1_000)
    count = 64

    async def newcomers() -> list[TlsNewcomer]:
        made = []
        for _ in range(count):
            newcomer = gate.newcomer(PREFACE)
            newcomer._transport = Line()
            rest = said
            while rest:
                room = newcomer.get_buffer(len(rest))
                size = min(len(room), len(rest))
                room[:size] = rest[:size]
                newcomer.buffer_updated(size)
                rest = rest[size:]
                while newcomer._waits or newcomer.is_stepping:
                    await asyncio.sleep(0)
            made.append(newcomer)
        return made

    with asyncio.Runner() as runner:
        runner.run(newcomers())  # warms up OpenSSL's one-time allocations
        before = allocated()
        held = runner.run(newcomers())
        size = (allocated() - before) / count
        assert len(said) < size < PEER_BYTES, size
        del held
    assert allocated() - before < PEER_BYTES, "newcomers that have left hold nothing"


def test_who_shows_slow_certificates_stops_nobody_else(
    daemon: Daemon, context: ssl.SSLContext, tmp_path: Path
) -> None:
    """Regression: one handshake of 16 KiB blocked a lane for 7 s."""
    slow = slow_context(tmp_path, 4)
    before = total_refused(daemon)

    def stranger() -> float:
        """Seconds until the stranger is refused."""
        with opened(daemon.port, PREFACE) as plain:
            sock = slow.wrap_socket(plain)
            start = time.monotonic()
            with sock, suppress(OSError):
                sock.recv(1)
            return time.monotonic() - start

    values = np.ones(16, np.float32)
    longest = 0.0
    with ThreadPoolExecutor(1) as pool, Worker(daemon.port, "j", 0, 1, tls=context) as worker:
        worker.join()
        refusal = pool.submit(stranger)
        for round_ in itertools.count():
            start = time.monotonic()
            worker.all_reduce("k", round_, values)
            longest = max(longest, time.monotonic() - start)
            if refusal.done():
                break
        worker.bye()
    assert longest < refusal.result() / 2, (longest, refusal.result())
    assert total_refused(daemon) == before + 1, "refused for its CA or its time"


# --- after the handshake --------------------------------------------------------------------


def test_a_slow_reader_is_dropped_alone(certs: Files, context: ssl.SSLContext) -> None:
    """Rank 1 contributes and never reads; rank 0 gets every result and then the reason."""
    values = np.ones(1 << 20, np.float32)
    with ExitStack() as stack:
        limits = ("--credit", "16MiB", "--slow-reader-timeout", "500ms")
        daemon = stack.enter_context(Daemon(*limits, *certs.flags))
        quick = stack.enter_context(Worker(daemon.port, "j", 0, 2, tls=context))
        slow = stack.enter_context(Worker(daemon.port, "j", 1, 2, receive_buffer=4096, tls=context))
        quick.start()
        slow.join()
        quick.join_started()
        slow.contribute("k", 0, values)
        wait_until(lambda: daemon.lane_total("buffers_out") == 64, 10, "all of rank 1 is there")
        plan = quick.contribute("k", 0, values)
        assert quick.collect("k", 0, plan, values) == (2 * values).tobytes()
        ((rank, reason),) = quick.wait_for_absence().absent
        assert rank == 1
        assert "slow reader" in reason
        assert daemon.lane_total("slow_readers") == 1
        quick.bye()
        quick.close()
        wait_until(lambda: daemon.lane_total("buffers_out") == 0, 10, "no buffer is out")


def test_what_is_queued_is_sent_unchanged_to_the_end(certs: Files, context: ssl.SSLContext) -> None:
    """Rank 0 reads late, after the end of its job; its decoder checks every CRC."""
    values = np.arange(1 << 20, dtype=np.float32)
    with (
        Daemon("--credit", "32MiB", *certs.flags) as daemon,
        Worker(daemon.port, "late", 0, 2, receive_buffer=4096, tls=context) as late,
    ):
        with Worker(daemon.port, "late", 1, 2, tls=context) as dead:
            late.start()
            dead.join()
            late.join_started()
            late.contribute("k", 0, values)
            plan = dead.contribute("k", 0, values)
            dead.collect("k", 0, plan, values)
            lost = messages.Error(int(ErrorCode.PEER_LOST), "rank 1 is lost", 1, "lost")
            dead.links[0].sock.sendall(frame_of(lost))
            wait_until(lambda: daemon.log.count("is lost"), 5, "the job has failed")
        assert late.wait_for_error().rank == 1
        assert len([place for place in late.results if place[0] == key_id("k")]) == plan.chunks


def test_a_changed_record_ends_the_connection_alone(
    daemon: Daemon, context: ssl.SSLContext
) -> None:
    with Worker(daemon.port, "changed", 0, 1, tls=context) as worker:
        worker.join()
        wait_until(lambda: daemon.lane_total("connections") == 1, 2, "it is welcome")
        with socket.socket(fileno=os.dup(worker.links[0].sock.fileno())) as raw:
            raw.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
        wait_until(lambda: daemon.lane_total("connections") == 0, 2, "it is cut off")


# --- files and options ----------------------------------------------------------------------


def test_the_key_is_nowhere_to_be_read(daemon: Daemon, certs: Files) -> None:
    wanted = Path(certs.key).read_bytes().splitlines()[1]
    seen = [daemon.log.encode(), daemon.get("/metrics")[1].encode()]
    seen += [json.dumps(daemon.stats()).encode(), json.dumps(daemon.ready).encode()]
    for pid in [daemon.pid, *daemon.lane_pids()]:
        seen += [Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ")]
        limits = Path(f"/proc/{pid}/limits").read_text()
        core = next(line for line in limits.splitlines() if line.startswith("Max core file size"))
        assert core.split()[4:6] == ["0", "0"], core
    assert not [data for data in seen if wanted in data]


def said_by(*flags: str) -> str:
    """The message of `reducer serve` before it ends with status 2."""
    ended = run_cli("serve", "--port", "0", *flags)
    assert (ended.returncode, ended.stdout) == (2, "")
    return " ".join(ended.stderr.split())


def test_a_world_readable_key_is_refused(authority: Authority) -> None:
    files = authority.issue()
    os.chmod(files.key, 0o644)
    text = said_by(*files.flags)
    assert "mode 0644" in text and f"chmod 600 {files.key}" in text


def test_files_that_are_no_good(certs: Files, authority: Authority, tmp_path: Path) -> None:
    encrypted = authority.issue()
    key = serialization.load_pem_private_key(Path(encrypted.key).read_bytes(), None)
    Path(encrypted.key).write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"password"),
        )
    )
    cert, key_, ca = certs.flags[:2], certs.flags[2:4], certs.flags[4:]
    none = str(tmp_path / "none")
    for flags, says in (
        ((*cert, *key_), "missing: --tls-ca"),
        (ca, "missing: --tls-cert, --tls-key"),
        ((*certs.flags, "--insecure"), "expected one of them"),
        ((*certs.flags, "--key-file", none), "expected one of them"),
        ((*cert, *ca, "--tls-key", none), "No such file"),
        ((*key_, *ca, "--tls-cert", none), "No such file"),
        ((*cert, *key_, "--tls-ca", certs.key), "--tls-ca"),
        ((*cert, *ca, "--tls-key", authority.issue().key), "key values mismatch"),
        (encrypted.flags, "the key is encrypted"),
    ):
        assert says in said_by(*flags)


def test_certificates_are_enough_beyond_loopback(certs: Files, context: ssl.SSLContext) -> None:
    with (
        Daemon("--host", "0.0.0.0", *certs.flags) as daemon,
        Worker(daemon.port, "j", 0, 1, tls=context) as worker,
    ):
        assert daemon.ready["mode"] == "tls"
        worker.join()
        names = Path("/proc/net/unix").read_text()
        assert f"open-reduction-server/0.0.0.0:{daemon.port}" not in names
        worker.bye()
