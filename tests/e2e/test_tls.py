"""Groups in mode tls, and errors that say whose certificate is wrong and how."""

from __future__ import annotations

import os
import select
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reducer_client
from reducer.wire.header import PREFACE_SIZE, PrefaceFlag, pack_preface
from reducer_client import (
    AuthenticationError,
    Group,
    ReducerUnavailableError,
)
from tests.support.certs import Authority, Files
from tests.support.cluster import Daemon
from tests.support.impostor import Impostor
from tests.support.ranks import join, run_ranks
from tests.support.reducers import Reducers
from tests.support.wait import wait_until

# A permanent refusal is raised without retries; a busy machine may take some time.
AT_ONCE = 5.0


@pytest.fixture(scope="module")
def addresses(certs: Files) -> Iterator[list[str]]:
    with Reducers(2, *certs.flags, lanes=2) as started:
        yield started.addresses


@pytest.fixture(scope="module")
def daemon(certs: Files) -> Iterator[Daemon]:
    with Daemon(*certs.flags) as running:
        yield running


@contextmanager
def counted(daemon: Daemon, **reasons: int) -> Iterator[None]:
    """Asserts that the daemon counts these refusals in the block, and no others."""
    before = Counter(daemon.stats()["refused"])
    yield
    assert Counter(daemon.stats()["refused"]) - before == Counter(reasons)


def alone(addresses: list[str], job: str = "tls-alone", **options: Any) -> Group:
    return join(0, 1, addresses, job, **options)


def refused(addresses: list[str], **options: Any) -> str:
    """The text of the AuthenticationError that `connect` raises without retries."""
    start = time.monotonic()
    with pytest.raises(AuthenticationError) as caught:
        alone(addresses, connect_timeout=30, **options)
    assert time.monotonic() - start < AT_ONCE
    assert addresses[0] in str(caught.value)
    return str(caught.value)


# --- groups ---------------------------------------------------------------------------------


def test_files_from_the_environment(
    addresses: list[str], certs: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in certs.environment.items():
        monkeypatch.setenv(name, value)
    with alone(addresses) as group:
        group.barrier()
    with reducer_client.local_reducers() as local, alone(local) as group:
        group.barrier()


@pytest.mark.parametrize("host", ["localhost", "[::1]"])
def test_names_and_addresses_of_other_kinds(certs: Files, host: str) -> None:
    bind = host.strip("[]")
    try:
        socket.create_server((bind, 0), family=socket.getaddrinfo(bind, 0)[0][0]).close()
    except OSError as error:
        pytest.skip(f"{host}: {error}")
    with Daemon(*certs.flags, "--host", bind) as daemon:
        address = f"{host}:{daemon.port}"
        with alone([address], **certs.arguments) as group:
            group.barrier()


# --- certificates that are refused ----------------------------------------------------------


def test_a_reducer_of_another_ca(addresses: list[str], certs: Files, tmp_path: Path) -> None:
    stranger = Authority(tmp_path).issue()
    with Daemon(*stranger.flags) as impostor:
        text = refused([impostor.address], **certs.arguments)
        assert "this worker refuses" in text and "tls_ca" in text
        wait_until(lambda: impostor.stats()["refused"] == {"distrust": 1}, 5, "it is counted")
        impostor.wait_for_log("unknown ca")


def test_a_reducer_whose_certificate_has_expired(authority: Authority, certs: Files) -> None:
    with Daemon(*authority.issue(expired=True).flags) as daemon:
        assert "certificate has expired" in refused([daemon.address], **certs.arguments)


def test_a_reducer_with_another_name(authority: Authority, certs: Files) -> None:
    with Daemon(*authority.issue("reducer-0", "10.0.0.1").flags) as daemon:
        text = refused([daemon.address], **certs.arguments)
        assert "IP address mismatch" in text and "subjectAltName" in text
        text = refused([f"localhost:{daemon.port}"], **certs.arguments)
        assert "ostname mismatch" in text and "subjectAltName" in text


def test_a_worker_of_another_ca(daemon: Daemon, authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path).issue(trusts=authority)
    with counted(daemon, untrusted=1):
        text = refused([daemon.address], **stranger.arguments)
    assert "refused this worker's certificate" in text and "unknown ca" in text


def test_a_worker_whose_certificate_has_expired(certs: Files, authority: Authority) -> None:
    with Daemon(*certs.flags) as daemon:  # a log without the lines of other tests
        text = refused([daemon.address], **authority.issue(expired=True).arguments)
        assert "refused this worker's certificate" in text and "expired" in text
        assert daemon.stats()["refused"] == {"expired": 1}
        daemon.wait_for_log("certificate has expired")


# --- what a certificate lets its worker join ------------------------------------------------


def test_a_certificate_for_a_job_opens_no_other(daemon: Daemon, authority: Authority) -> None:
    tls = authority.issue_for("reducer://job/a%2Fb", "https://example.org/x").arguments
    with alone([daemon.address], "a/b", **tls) as group:
        group.barrier()
    with pytest.raises(AuthenticationError, match=r"job 'a/b'.* rank 0 of job 'b'"):
        alone([daemon.address], "b", **tls)
    assert "b" not in daemon.stats()["lanes"][0]["core"]["jobs"]


def _as_rank(rank: int, world: int, addresses: list[str], files: list[dict[str, str]]) -> str:
    try:
        with join(rank, world, addresses, "j", connect_timeout=5, **files[rank]) as group:
            group.barrier()
    except reducer_client.ReducerError as error:
        return str(error)
    return ""


def test_a_certificate_for_a_rank_is_no_other_ranks(daemon: Daemon, authority: Authority) -> None:
    files = [authority.issue_for(f"reducer://job/j/rank/{rank}").arguments for rank in range(2)]
    assert run_ranks(2, _as_rank, [daemon.address], files) == ["", ""]
    texts = run_ranks(2, _as_rank, [daemon.address], files[::-1])
    assert "may join rank 1 of job 'j'" in texts[0]


@pytest.mark.parametrize(
    "uri", ["reducer://job/", "reducer:job/j", "REDUCER://job/j", "reducer://x"]
)
def test_a_certificate_for_a_misspelt_place_opens_nothing(
    daemon: Daemon, authority: Authority, uri: str
) -> None:
    text = refused([daemon.address], **authority.issue_for(uri).arguments)
    assert "may join nothing" in text


# --- in transit -----------------------------------------------------------------------------


def _relay(sock: socket.socket, port: int, to_lane: bytes, spoil_at: int = -1) -> None:
    """Relay a connection, with `to_lane` in place of the preface. Flip a bit of the lane's byte
    `spoil_at`, and relay nothing after that piece."""
    sock.recv(PREFACE_SIZE, socket.MSG_WAITALL)
    with socket.create_connection(("127.0.0.1", port)) as lane:
        lane.sendall(to_lane)
        said = 0
        while True:
            for source in select.select([sock, lane], [], [], 10)[0]:
                data = bytearray(source.recv(65_536))
                if not data:
                    return
                if source is sock:
                    lane.sendall(data)
                    continue
                spoils = said <= spoil_at < said + len(data)
                if spoils:
                    data[spoil_at - said] ^= 1
                said += len(data)
                sock.sendall(data)
                if spoils:
                    sock.recv(1 << 20)
                    return


def test_a_preface_that_was_changed_on_the_way(daemon: Daemon, certs: Files) -> None:
    changed = bytearray(pack_preface(0, PrefaceFlag.TLS))
    changed[5] = 7  # a minor version; lanes accept any
    with Impostor(lambda sock, number: _relay(sock, daemon.port, bytes(changed))) as relay:
        text = refused([relay.address], **certs.arguments)
    assert "different preface" in text


def test_a_bit_that_was_changed_on_the_way(daemon: Daemon, certs: Files) -> None:
    """The worker refuses the record and reconnects, and the sum is right."""
    preface = pack_preface(0, PrefaceFlag.TLS)
    values = np.arange(1_000_000, dtype=np.float32)

    def act(sock: socket.socket, number: int) -> None:
        _relay(sock, daemon.port, preface, 1_000_000 if number == 0 else -1)

    with (
        Impostor(act) as relay,
        alone([relay.address], silence=30.0, **certs.arguments) as group,
    ):
        start = time.monotonic()
        assert group.all_reduce(values).wait(60).tobytes() == values.tobytes()
        assert time.monotonic() - start < AT_ONCE  # no timeout of heartbeats
        assert group._engine.counters()["reconnects"] == 1


# --- other modes ----------------------------------------------------------------------------


def test_a_worker_without_a_certificate(daemon: Daemon, key_file: str) -> None:
    with counted(daemon, plain=1, keyless=1):
        assert "REDUCER_TLS_CERT" in refused([daemon.address])
        assert "REDUCER_TLS_CERT" in refused([daemon.address], key_file=key_file)


def test_a_reducer_without_a_certificate(certs: Files, key_file: str) -> None:
    for flags, says in (((), "has no certificate"), (("--key-file", key_file), "mode psk")):
        with Daemon(*flags) as daemon:
            text = refused([daemon.address], **certs.arguments)
            assert says in text and "--tls-cert" in text
            assert daemon.stats()["refused"] == {"uncertified": 1}


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-x\r\n", b"ORS"])
def test_another_server(certs: Files, answer: bytes) -> None:
    def act(sock: socket.socket, number: int) -> None:
        impostor.read(sock, PREFACE_SIZE)
        sock.sendall(answer)
        sock.shutdown(socket.SHUT_WR)
        sock.recv(65_536)

    with Impostor(act) as impostor:
        if answer == b"ORS":  # a preface that was cut off
            with pytest.raises(ReducerUnavailableError, match="before the end of the TLS"):
                alone([impostor.address], connect_timeout=1, **certs.arguments)
        else:
            text = refused([impostor.address], **certs.arguments)
            assert ("answers HTTP" if answer.startswith(b"HTTP") else "not a reducer") in text
            assert "Bad Request" not in text
    assert impostor.received[:PREFACE_SIZE] == pack_preface(0, PrefaceFlag.TLS)


# --- files ----------------------------------------------------------------------------------


def test_files_that_are_no_good(certs: Files, authority: Authority, tmp_path: Path) -> None:
    tls = certs.arguments
    shared = authority.issue()
    os.chmod(shared.key, 0o644)
    for change, says in (
        ({"tls_ca": ""}, "missing: tls_ca"),
        ({"tls_cert": str(tmp_path / "none")}, "No such file"),
        ({"tls_key": shared.key, "tls_cert": shared.cert}, "chmod 600"),
        ({"tls_key": authority.issue().key}, "key values mismatch"),
        ({"tls_ca": certs.key}, "tls_ca"),
        ({"key": bytes(32)}, "leave one of them out"),
    ):
        with pytest.raises(ValueError, match=says):
            alone(["127.0.0.1:1"], **{**tls, **change})
