"""A lane connects to a lane of another reducer: real daemons, in all modes.

The core of a lane decides when to connect. Here the test decides: the processes of one daemon read
orders from a file. Other lanes that connect run in the test's process (tests/support/dialing.py).
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from reducer import keyfile
from reducer.server.gates.dialer import STEP_SECONDS
from reducer.server.gates.proofs import KeyProof, OpenProof, Proof
from reducer.server.gates.tls import TlsFiles, make_context_of_client
from reducer.server.gates.tls_proof import CertificateProof
from reducer.wire.header import pack_header
from tests.support.bare_lane import KERNELS, hello
from tests.support.certs import Authority, Files
from tests.support.cluster import ROOT, Daemon
from tests.support.dialing import DialingLane, Listener, on_a_lane, until
from tests.support.wait import AT_ONCE, wait_until

# In a lane: each tick carries out the orders that have been added to the file, one a line.
OBEYS = """
import json, os, sys
if "reducer.server.lane.process" in sys.orig_argv:
    import uvloop
    from reducer.core.surface import events
    orders = open(os.environ["ORDERS"])
    def obey(lane):
        for line in orders:
            order = json.loads(line)
            if "address" in order:
                lane._shell.carry_out([lane._lane._links.dial(**order)])
            else:
                frame = bytes.fromhex(order["frame"])
                lane._shell.carry_out([events.Send(0, (order["session"],), frame, None, 0)])
    class Loop(uvloop.Loop):
        def call_later(self, delay, callback, *args, **rest):
            if callback.__name__ == "_tick":
                obey(callback.__self__)
            return super().call_later(delay, callback, *args, **rest)
    uvloop.new_event_loop = Loop
"""


class Obedient(Daemon):
    """A daemon of one lane, which connects to other lanes when the test says so."""

    def __init__(self, folder: Path, *flags: str) -> None:
        (folder / "sitecustomize.py").write_text(OBEYS, encoding="utf-8")
        self._orders = folder / "orders"
        self._orders.touch()
        paths = os.pathsep.join([str(folder), str(ROOT)])
        super().__init__(
            *flags, "--log-level", "debug", env={"PYTHONPATH": paths, "ORDERS": str(self._orders)}
        )

    def dial(self, address: str, lane: int = 0, job: str = "bench") -> None:
        self._order({"address": address, "lane": lane, "job": job})

    def send(self, session: int, frame: bytes) -> None:
        self._order({"session": session, "frame": frame.hex()})

    def linked(self, address: str, lane: int = 0) -> int:
        """The session of a connection that stands."""
        text = rf"session (\d+), link \d+: connected to lane {lane} of {re.escape(address)}"
        found = wait_until(lambda: re.search(text, self.log), 10, f"a link to {address}")
        return int(found[1])

    def _order(self, order: Mapping[str, object]) -> None:
        with self._orders.open("a", encoding="utf-8") as file:
            file.write(json.dumps(order) + "\n")


class Modes:
    """What the reducers of one mode are started with, and how their lanes prove themselves."""

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
def test_a_daemon_connects_to_a_daemon(
    mode: str, daemons: dict[str, Daemon], modes: Modes, tmp_path: Path
) -> None:
    """Frames go in both directions: a HELLO, and what the other lane answers."""
    other = daemons[mode]
    header, payload = hello(0, 1, 4_096)
    with Obedient(tmp_path, *modes.flags[mode]) as daemon:
        daemon.dial(other.address, 1)
        session = daemon.linked(other.address, 1)
        wait_until(lambda: other.lane_total("connections") == 1, 5)
        daemon.send(session, pack_header(header, KERNELS.crc32c) + payload)
        other.wait_for_log("job 'bench' run 'run': 1 workers joined")
        daemon.wait_for_log(f"session {session}, link 1 sent WELCOME")


def test_a_reducer_that_dies_ends_its_links(
    modes: Modes, tmp_path: Path, daemons: dict[str, Daemon]
) -> None:
    with Obedient(tmp_path, *modes.flags["psk"]) as daemon:
        with Daemon(*modes.flags["psk"]) as other:
            daemon.dial(other.address)
            session = daemon.linked(other.address)
            other.signal(signal.SIGKILL)
            other.wait()
            daemon.wait_for_log(f"session {session}, link 1: the connection has ended")
            daemon.dial(other.address)
            daemon.wait_for_log(f"link 2: {other.address}, lane 0: connection refused")
        wait_until(lambda: daemon.lane_total("connections") == 0, 5)


def test_a_daemon_drains_while_it_connects(
    modes: Modes, tmp_path: Path, daemons: dict[str, Daemon]
) -> None:
    with Obedient(tmp_path, *modes.flags["psk"]) as daemon, Listener() as black_hole:
        daemon.dial(black_hole.address)
        black_hole.socket.settimeout(10)
        far, _ = black_hole.socket.accept()
        with far:
            start = time.monotonic()
            assert daemon.stop() == 0
            assert time.monotonic() - start < STEP_SECONDS + AT_ONCE
            while far.recv(1_000):
                pass
        assert f"link 1: {black_hole.address}, lane 0: this reducer is ending" in daemon.log
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
        await lane.linked(daemons["tls"].address)

    on_a_lane(proof_of(only), refused)
    on_a_lane(proof_of(both), accepted)
