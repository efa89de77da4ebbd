"""A lane that connects to another lane in mode tls: what it demands, and what it leaves."""

from __future__ import annotations

import asyncio
import functools
import gc
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from reducer.core.members.session import SessionState
from reducer.server.gates import dialer
from reducer.server.gates.proofs import KeyProof, OpenProof
from reducer.server.gates.tls import TlsFiles, make_context, make_context_of_client
from reducer.server.gates.tls_gate import RECEIVED_BYTES
from reducer.server.gates.tls_proof import CertificateProof
from reducer.wire.codes import MessageKind
from reducer.wire.header import (
    HEADER_SIZE,
    PREFACE_SIZE,
    PrefaceFlag,
    pack_preface,
    unpack_header,
)
from tests.support.bare_lane import KERNELS
from tests.support.certs import Authority, Files
from tests.support.dialing import (
    BYE,
    FOLLOWS,
    WAIT_SECONDS,
    DialingLane,
    Listener,
    on_a_lane,
    receive,
    until,
)
from tests.support.faults import tls_failure

PREFACE = pack_preface(0, PrefaceFlag.TLS)


def proof_of(files: Files) -> CertificateProof:
    return CertificateProof(make_context_of_client(TlsFiles(files.cert, files.key, files.ca)))


def server_context(files: Files) -> ssl.SSLContext:
    return make_context(TlsFiles(files.cert, files.key, files.ca))


Play = Callable[[socket.socket], None]


async def answered(lane: DialingLane, play: Play, times: int = 1) -> str:
    """Ask for a connection. `play` is the other lane, in a thread. Returns the failure, or "".

    A session has ended, too, at the end.
    """
    with Listener() as listener:
        for _ in range(times):
            (link,) = lane.dial(listener.address)
            with await listener.accept() as far:
                far.setblocking(True)
                far.settimeout(WAIT_SECONDS)
                await asyncio.get_running_loop().run_in_executor(None, play, far)
                await until(functools.partial(lane.is_answered, link))
            await until(lambda: not lane.shell.connections)
    return lane.failures.get(link, "")


def shaken(context: ssl.SSLContext, said: bytes, step: int = 1 << 20) -> Play:
    """Another lane: it does the handshake, and says something in records of `step` bytes."""

    def play(sock: socket.socket) -> None:
        assert sock.recv(PREFACE_SIZE, socket.MSG_WAITALL) == PREFACE
        with suppress(OSError), context.wrap_socket(sock, server_side=True) as tls:
            for at in range(0, len(said), step):
                tls.sendall(said[at : at + step])
            while tls.recv(4_096):
                pass

    return play


@pytest.mark.parametrize("step", [1, 15, 100])
def test_frames_may_come_with_the_preface(step: int, certs: Files) -> None:
    """The records of TLS may cut the preface and the frames in any way."""

    async def run(lane: DialingLane) -> None:
        # The core refuses BYE on a link, and closes the session.
        assert not await answered(lane, shaken(server_context(certs), PREFACE + BYE, step))

    on_a_lane(proof_of(certs), run)


def test_frames_go_in_both_directions(certs: Files) -> None:
    async def run(lane: DialingLane) -> None:
        got = b""
        context = server_context(certs)

        def play(sock: socket.socket) -> None:
            nonlocal got
            sock.recv(PREFACE_SIZE, socket.MSG_WAITALL)
            with context.wrap_socket(sock, server_side=True) as tls:
                tls.sendall(PREFACE)
                got = tls.recv(1 << 16)
                tls.sendall(FOLLOWS)
                while tls.recv(1 << 16):
                    pass

        with Listener() as listener:
            (link,) = lane.dial(listener.address)
            with await listener.accept() as far:
                far.setblocking(True)
                far.settimeout(WAIT_SECONDS)
                loop = asyncio.get_running_loop()
                played = loop.run_in_executor(None, play, far)
                await until(lambda: lane.follows(link))
                assert lane.links[link].state == SessionState.LINKED
                lane.give_up(link)
                await played
                await until(lambda: not lane.links)
        assert unpack_header(got[:HEADER_SIZE], KERNELS.crc32c).kind == MessageKind.TABLE

    on_a_lane(proof_of(certs), run)


@pytest.mark.parametrize("late", [3, 30, 100])
def test_a_record_may_be_cut_where_the_handshake_ends(late: int, certs: Files) -> None:
    """The bytes behind the preface belong to the link."""

    async def run(lane: DialingLane) -> None:
        context = server_context(certs)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_side=True)
        loop = asyncio.get_running_loop()
        with Listener() as listener:
            (link,) = lane.dial(listener.address)
            with await listener.accept() as far:
                await receive(far, PREFACE_SIZE)
                while not _has_shaken(tls):
                    far.sendall(outgoing.read())
                    incoming.write(await loop.sock_recv(far, 1 << 16))
                tls.write(PREFACE)
                tls.write(BYE)
                said = outgoing.read()
                far.sendall(said[:-late])
                await until(lambda: link in lane.links)
                far.sendall(said[-late:])
                await until(lambda: not lane.links)
        assert not lane.failures and not lane.shell.counters.internal_errors

    on_a_lane(proof_of(certs), run)


def _has_shaken(tls: ssl.SSLObject) -> bool:
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def test_another_preface_inside_tls(certs: Files) -> None:
    async def run(lane: DialingLane) -> None:
        other = pack_preface(1, PrefaceFlag.TLS)
        why = await answered(lane, shaken(server_context(certs), other))
        assert "somebody has changed the preface" in why

    on_a_lane(proof_of(certs), run)


def test_no_preface_inside_tls(certs: Files) -> None:
    def play(sock: socket.socket) -> None:
        sock.recv(PREFACE_SIZE, socket.MSG_WAITALL)
        with context.wrap_socket(sock, server_side=True) as tls, suppress(OSError):
            tls.unwrap()

    async def run(lane: DialingLane) -> None:
        assert "it ended TLS before it repeated the preface" in await answered(lane, play)

    context = server_context(certs)
    on_a_lane(proof_of(certs), run)


# --- certificates -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uris", "is_good"),
    [
        ((), True),
        (("reducer://job/job",), True),
        (("reducer://job/other", "reducer://job/job"), True),
        (("reducer://job/other",), False),
        (("reducer://job/job/rank/0",), False),
        (("reducer:job",), False),
    ],
)
def test_the_other_certificate_must_admit_to_the_job(
    uris: tuple[str, ...], is_good: bool, certs: Files, authority: Authority
) -> None:
    async def run(lane: DialingLane) -> None:
        context = server_context(authority.issue_reducer(*uris))
        why = await answered(lane, shaken(context, PREFACE + BYE))
        assert not why if is_good else "a link for job 'job' needs a certificate" in why

    on_a_lane(proof_of(certs), run)


def test_the_other_certificate_must_have_the_name(certs: Files, authority: Authority) -> None:
    async def run(lane: DialingLane) -> None:
        why = await answered(lane, shaken(server_context(authority.issue("reducer-7")), PREFACE))
        assert "its certificate is refused: IP address mismatch" in why

    on_a_lane(proof_of(certs), run)


def test_the_other_certificate_must_be_for_servers(certs: Files, authority: Authority) -> None:
    """Else a worker could pose as a reducer."""

    async def run(lane: DialingLane) -> None:
        files = authority.issue_reducer(usages=[ExtendedKeyUsageOID.CLIENT_AUTH])
        assert "its certificate is refused" in await answered(
            lane, shaken(server_context(files), PREFACE)
        )

    on_a_lane(proof_of(certs), run)


def test_another_authority(certs: Files, tmp_path: Any) -> None:
    async def run(lane: DialingLane) -> None:
        files = Authority(tmp_path / "other").issue()
        assert "its certificate is refused" in await answered(
            lane, shaken(server_context(files), PREFACE)
        )

    on_a_lane(proof_of(certs), run)


# --- what is no TLS -----------------------------------------------------------------------------


def sent(data: bytes) -> Play:
    """Another lane that answers the preface with `data`."""

    def play(sock: socket.socket) -> None:
        sock.recv(PREFACE_SIZE, socket.MSG_WAITALL)
        with suppress(OSError):
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(4_096):
                pass

    return play


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "it closed the connection before the end of the TLS handshake"),
        (b"\x16\x03\x03\x10", "it closed the connection before the end of the TLS handshake"),
        (pack_preface(0), "it is in another mode"),
        (b"HTTP/1.1 400 Bad Request\r\n", "its TLS handshake is invalid"),
        (b"\x16\x03\x03\x40\x00" + bytes(1 << 20), f"{RECEIVED_BYTES} bytes came without"),
    ],
)
def test_an_answer_that_is_no_tls(data: bytes, why: str, certs: Files) -> None:
    async def run(lane: DialingLane) -> None:
        assert why in await answered(lane, sent(data))

    on_a_lane(proof_of(certs), run)


# --- what is left -------------------------------------------------------------------------------


@pytest.fixture
def manual() -> Iterator[None]:
    gc.disable()
    yield
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()
    gc.collect()


def silent(sock: socket.socket) -> None:
    """Another lane that never answers."""


class FailingTls:
    """TLS that fails, each time with an error of its own, which it does not keep."""

    def __init__(self, failure: Callable[[], Exception]) -> None:
        self._failure = failure

    def do_handshake(self) -> None:
        raise self._failure()


class FailingContext(ssl.SSLContext):
    failure: Callable[[], Exception]

    def wrap_bio(self, *arguments: Any, **named: Any) -> Any:
        return FailingTls(self.failure)


@pytest.mark.parametrize(
    ("failure", "why", "bugs"),
    [
        (MemoryError, "internal error: MemoryError", 3),
        (lambda: tls_failure("malloc failure"), "TLS has failed on this side", 0),
    ],
)
def test_a_failure_of_this_side(
    failure: Callable[[], Exception], why: str, bugs: int, manual: None
) -> None:
    """It leaves nothing to the collector either."""
    context = FailingContext(ssl.PROTOCOL_TLS_CLIENT)
    context.failure = failure
    left: list[str] = []

    async def run(lane: DialingLane) -> None:
        told: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: told.append(context["message"]))
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        assert why in await answered(lane, silent, times=3)
        gc.collect()
        gc.set_debug(0)
        left.extend(type(found).__qualname__ for found in gc.garbage)
        assert len(told) == bugs

    on_a_lane(CertificateProof(context), run)
    assert not left


@pytest.mark.parametrize("mode", ["open", "psk", "tls"])
def test_attempts_leave_nothing_to_the_collector(
    mode: str, certs: Files, manual: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lane looks for reference cycles only while it has no run."""
    monkeypatch.setattr(dialer, "STEP_SECONDS", 0.2)
    proofs = {"open": OpenProof, "psk": lambda: KeyProof(bytes(32)), "tls": lambda: proof_of(certs)}
    plays = [silent, sent(b"garbage"), sent(pack_preface(0))]
    if mode == "tls":
        context = server_context(certs)
        plays += [shaken(context, PREFACE + BYE), shaken(context, bytes(PREFACE_SIZE))]
    left = []

    async def run(lane: DialingLane) -> None:
        for play in plays:
            await answered(lane, play)
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        for play in plays:
            await answered(lane, play, times=3)
        gc.collect()
        gc.set_debug(0)
        left.extend(type(found).__qualname__ for found in gc.garbage)
        gc.garbage.clear()

    on_a_lane(proofs[mode](), run)
    assert not left
