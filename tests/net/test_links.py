"""A lane connects to a lane of another reducer: real daemons, in all modes.

A daemon connects when a worker opens a partition of tables with a backup. Where a proof fails, the
lane that connects is in this process (tests/support/dialing.py).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from reducer import keyfile
from reducer.server.gates.dialer import STEP_SECONDS
from reducer.server.gates.proofs import KeyProof, OpenProof, Proof
from reducer.server.gates.tls import TlsFiles, make_context_of_client
from reducer.server.gates.tls_proof import CertificateProof
from reducer.wire import messages
from reducer.wire.codes import DType, Flag, MessageKind, Outcome
from reducer.wire.decoder import Frame
from reducer.wire.handshake import job_key
from reducer.wire.header import Header
from reducer.wire.keys import key_id
from reducer.wire.table_messages import Notice, TableCall
from reducer_client.registry.dial import Dialer
from reducer_client.tables.probe import ask_lane, question
from tests.support.certs import Authority, Files
from tests.support.cluster import Daemon
from tests.support.dialing import DialingLane, Listener, on_a_lane, until
from tests.support.frames import frame
from tests.support.table_worker import describe
from tests.support.wait import AT_ONCE, wait_until
from tests.support.worker import Link, frame_of

JOB, RUN = "bench", "run"
SECONDS = 10.0


class Modes:
    """What the reducers of each mode are started with, and the proofs of lanes and workers."""

    def __init__(self, key_file: str, certs: Files) -> None:
        self.flags: dict[str, tuple[str, ...]] = {
            "open": (),
            "psk": ("--key-file", key_file),
            "tls": certs.flags,
        }
        self.proofs = {
            "open": OpenProof,
            "psk": lambda: KeyProof(keyfile.read(key_file)),
            "tls": lambda: proof_of(certs),
        }
        self._trust: dict[str, tuple[bytes, tuple[str, str, str] | None]] = {
            "open": (b"", None),
            "psk": (job_key(keyfile.read(key_file), JOB), None),
            "tls": (b"", (certs.cert, certs.key, certs.ca)),
        }

    def dialer(self, mode: str, address: str, lane: int = 0) -> Dialer:
        """Connects a worker."""
        return Dialer(address, JOB, *self._trust[mode], lane)


class Worker:
    """The only worker of a partition of one shard. A context manager."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(SECONDS)
        self._link = Link(sock)
        self._frames: list[Frame] = []

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exception: object) -> None:
        self._link.close()

    def call(self, call: TableCall) -> None:
        self._link.sock.sendall(frame_of(call, key=1))

    def push_values(self) -> None:
        """The first values of the shard."""
        self.call(describe(count=16))
        header = Header(
            MessageKind.PUSH, DType.FLOAT32, flags=int(Flag.VALUES), rank=0, key=key_id("net")
        )
        self._link.sock.sendall(frame(header, bytes(64)))

    def receive(self, kind: MessageKind) -> Frame:
        """The next frame of this kind; those before it are dropped."""
        while True:
            while self._frames:
                found = self._frames.pop(0)
                if found.header.kind == kind:
                    return found
            self._frames += self._link.receive()
            self._link.check()

    def wait_for(self, news: str) -> None:
        while messages.decode(Notice, self.receive(MessageKind.NOTICE).payload or b"").call != news:
            pass


def lead(dialer: Dialer, backup: str, lane: int = 0, reducer: bytes = bytes(16)) -> Worker:
    """A worker that makes a lane the primary of a partition, whose backup is that lane there."""
    worker = Worker(dialer.dial(SECONDS))
    worker.call(
        TableCall(
            "open", job=JOB, run_id=RUN, worker=0, incarnation=bytes(16), partitions=1, term=1,
            backup=backup, backup_lane=lane, backup_reducer=reducer,
        )
    )  # fmt: skip
    return worker


def incarnation_of(dialer: Dialer) -> bytes:
    """Of the process of a lane."""
    answer = ask_lane(dialer, question(JOB, RUN), SECONDS)
    assert answer is not None
    return answer.incarnation


def proof_of(files: Files) -> Proof:
    return CertificateProof(make_context_of_client(TlsFiles(files.cert, files.key, files.ca)))


@pytest.fixture(scope="module")
def modes(key_file: str, certs: Files) -> Modes:
    return Modes(key_file, certs)


@pytest.fixture(scope="module")
def daemons(modes: Modes) -> Iterator[dict[str, Daemon]]:
    """A daemon of two lanes for each mode."""
    with (
        Daemon(*modes.flags["open"], lanes=2) as plain,
        Daemon(*modes.flags["psk"], lanes=2) as psk,
        Daemon(*modes.flags["tls"], lanes=2) as tls,
    ):
        yield {"open": plain, "psk": psk, "tls": tls}


@pytest.fixture(autouse=True)
def nothing_is_left(daemons: dict[str, Daemon]) -> Iterator[None]:
    yield
    for daemon in daemons.values():
        wait_until(lambda daemon=daemon: daemon.lane_total("connections") == 0, 5, "connections")
        wait_until(lambda daemon=daemon: daemon.lane_total("unproven") == 0, 5, "newcomers")
        assert daemon.lane_total("internal_errors") == 0


# --- daemons that connect -----------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["open", "psk", "tls"])
def test_a_daemon_connects_to_a_daemon(mode: str, daemons: dict[str, Daemon], modes: Modes) -> None:
    """A log goes in one direction, confirmations come in the other: else there is no receipt."""
    other = daemons[mode]
    reducer = incarnation_of(modes.dialer(mode, other.address, 1))
    with (
        Daemon(*modes.flags[mode]) as daemon,
        lead(modes.dialer(mode, daemon.address), other.address, 1, reducer) as worker,
    ):
        worker.push_values()
        assert worker.receive(MessageKind.RECEIPT).header.flags == Outcome.APPLIED
        assert other.lane_total("connections") == 1


def test_a_reducer_that_dies_ends_its_links(modes: Modes, daemons: dict[str, Daemon]) -> None:
    with Daemon(*modes.flags["psk"]) as daemon:
        other = Daemon(*modes.flags["psk"])
        try:
            reducer = incarnation_of(modes.dialer("psk", other.address))
            dialer = modes.dialer("psk", daemon.address)
            with lead(dialer, other.address, 0, reducer) as worker:
                worker.push_values()
                worker.receive(MessageKind.RECEIPT)
                assert daemon.lane_total("connections") == 2
                other.kill()
                worker.wait_for("alone")
                daemon.wait_for_log(f"is lost: {other.address}, lane 0: connection refused")
                assert daemon.lane_total("connections") == 1
        finally:
            other.kill()
        wait_until(lambda: daemon.lane_total("connections") == 0, 5)


def test_a_daemon_drains_while_it_connects(modes: Modes, daemons: dict[str, Daemon]) -> None:
    with (
        Daemon(*modes.flags["psk"]) as daemon,
        Listener() as black_hole,
        lead(modes.dialer("psk", daemon.address), black_hole.address),
    ):
        black_hole.socket.settimeout(SECONDS)
        far, _ = black_hole.socket.accept()
        with far:
            start = time.monotonic()
            assert daemon.stop() == 0
            assert time.monotonic() - start < STEP_SECONDS + AT_ONCE
            while far.recv(1_000):
                pass
        assert f"is lost: {black_hole.address}, lane 0: this reducer is ending" in daemon.log
        assert "unhandled" not in daemon.log and "Traceback" not in daemon.log


# --- proofs that fail ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("psk", "open"), ("psk", "tls"), ("tls", "open"), ("tls", "psk")],
)
def test_a_reducer_of_another_mode(
    ours: str, theirs: str, daemons: dict[str, Daemon], modes: Modes
) -> None:
    address = daemons[theirs].address

    async def run(lane: DialingLane) -> None:
        reason = await lane.fails(address)
        assert reason.startswith(f"{address}, lane 0: ") and "it is in another mode" in reason

    on_a_lane(modes.proofs[ours](), run)


@pytest.mark.parametrize("theirs", ["psk", "tls"])
def test_a_lane_without_a_proof_is_refused(theirs: str, daemons: dict[str, Daemon]) -> None:
    """In mode open there is nothing to wait for: the connection stands, and ends with an ERROR."""

    async def run(lane: DialingLane) -> None:
        (link,) = lane.dial(daemons[theirs].address)
        await until(lambda: lane.is_answered(link))
        await until(lambda: not lane.links)
        assert not lane.failures

    on_a_lane(OpenProof(), run)


def test_another_key(daemons: dict[str, Daemon]) -> None:
    async def run(lane: DialingLane) -> None:
        reason = await lane.fails(daemons["psk"].address)
        assert "could not prove that it has the key of this job" in reason

    on_a_lane(KeyProof(bytes(32)), run)


def test_a_lane_that_does_not_exist(daemons: dict[str, Daemon], modes: Modes) -> None:
    async def run(lane: DialingLane) -> None:
        assert "lane 7: the answer to the challenge" in await lane.fails(daemons["psk"].address, 7)

    on_a_lane(modes.proofs["psk"](), run)


def test_a_certificate_of_another_authority(
    daemons: dict[str, Daemon], certs: Files, tmp_path: Path
) -> None:
    """The other lane tells why, in a TLS alert."""
    stranger = Authority(tmp_path / "stranger").issue()
    stranger.ca = certs.ca

    async def run(lane: DialingLane) -> None:
        reason = await lane.fails(daemons["tls"].address)
        assert "it refuses this reducer's certificate" in reason and "unknown ca" in reason

    on_a_lane(proof_of(stranger), run)


def test_a_reducer_of_another_authority(daemons: dict[str, Daemon], tmp_path: Path) -> None:
    async def run(lane: DialingLane) -> None:
        assert "its certificate is refused" in await lane.fails(daemons["tls"].address)

    on_a_lane(proof_of(Authority(tmp_path / "stranger").issue()), run)


def test_a_certificate_that_is_for_servers_only(
    daemons: dict[str, Daemon], authority: Authority
) -> None:
    """A reducer that connects to others needs clientAuth, too (SECURITY.md)."""
    only = authority.issue_reducer(usages=[ExtendedKeyUsageOID.SERVER_AUTH])
    both = authority.issue_reducer(
        usages=[ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    )

    async def refused(lane: DialingLane) -> None:
        reason = await lane.fails(daemons["tls"].address)
        assert "it refuses this reducer's certificate" in reason, reason
        assert "unsupported certificate" in reason or "certificate unknown" in reason, reason

    async def accepted(lane: DialingLane) -> None:
        await lane.connects(daemons["tls"].address)

    on_a_lane(proof_of(only), refused)
    on_a_lane(proof_of(both), accepted)
