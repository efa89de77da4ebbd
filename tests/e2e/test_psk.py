"""Groups over reducers with a key: the same sums, and errors that say whose key is wrong."""

from __future__ import annotations

import os
import pickle
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import reducer_client
from reducer import keyfile
from reducer.wire import messages
from reducer.wire.codes import ErrorCode
from reducer.wire.header import FRAME_MAGIC, PREFACE_SIZE, PrefaceFlag, pack_preface
from reducer_client import (
    AuthenticationError,
    Group,
    JoinError,
    ReducerUnavailableError,
    config,
)
from tests.support.cluster import Daemon
from tests.support.frames import control
from tests.support.handshakes import PSK_OPENING, complete, feed, lane_side
from tests.support.impostor import Impostor
from tests.support.ranks import join
from tests.support.wait import wait_until

# A permanent refusal is raised without retries; a busy machine may take some time.
AT_ONCE = 5.0


@pytest.fixture(scope="module")
def other_key(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("psk") / "key")
    keyfile.make(path)
    return path


@pytest.fixture(scope="module")
def addresses(key_file: str) -> Iterator[list[str]]:
    with reducer_client.local_reducers(2, lanes=2, key_file=key_file) as started:
        yield started


def alone(addresses: list[str], **options: Any) -> Group:
    return join(0, 1, addresses, "psk-alone", **options)


def refused(kind: type[Exception], addresses: list[str], **options: Any) -> str:
    """The text of the error that `connect` raises without retries."""
    start = time.monotonic()
    with pytest.raises(kind) as caught:
        alone(addresses, connect_timeout=30, **options)
    assert time.monotonic() - start < AT_ONCE
    return str(caught.value)


# --- groups ---------------------------------------------------------------------------------


def test_the_key_from_the_environment_or_as_bytes(
    addresses: list[str], key_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = keyfile.read(key_file)
    with alone(addresses, key=key) as group:
        group.barrier()
    monkeypatch.setenv("REDUCER_KEY_FILE", key_file)
    with alone(addresses) as group:
        group.barrier()
    with reducer_client.local_reducers() as local, alone(local) as group:
        group.barrier()


def test_no_part_of_a_group_shows_the_key(addresses: list[str], key_file: str) -> None:
    key = keyfile.read(key_file)
    with alone(addresses, key=key) as group:
        settings = group._settings
        shown = repr(group) + repr(settings) + repr(vars(group)) + repr(vars(settings))
        assert key not in pickle.dumps(settings)
        assert repr(key)[2:-1] not in shown and key.hex() not in shown
        assert not [name for name in dir(group._engine) if "key" in name]
    for name in ("cmdline", "environ"):
        assert Path(key_file).read_bytes().strip() not in Path(f"/proc/self/{name}").read_bytes()


def test_a_worker_with_the_key_of_its_job_alone(
    addresses: list[str], key_file: str, tmp_path: Path
) -> None:
    path = str(tmp_path / "job.key")
    keyfile.make_for_job(path, "psk-alone", key_file)
    with alone(addresses, key_file=path) as group:
        group.barrier()
    with pytest.raises(AuthenticationError, match="could not prove"):
        join(0, 1, addresses, "another", key_file=path)


# --- refusals -------------------------------------------------------------------------------


def test_another_key(addresses: list[str], other_key: str) -> None:
    text = refused(AuthenticationError, addresses, key_file=other_key)
    assert addresses[0] in text and "could not prove" in text and "key file" in text


def test_no_key(addresses: list[str]) -> None:
    text = refused(AuthenticationError, addresses)
    assert addresses[0] in text and "REDUCER_KEY_FILE" in text


def test_a_reducer_without_a_key(key_file: str) -> None:
    with Daemon() as plain:
        text = refused(AuthenticationError, [plain.address], key_file=key_file)
        assert plain.address in text and "--key-file" in text
        with alone([plain.address]) as group:
            group.barrier()


def test_the_second_of_two_reducers_has_another_key(
    addresses: list[str], key_file: str, other_key: str
) -> None:
    with Daemon("--key-file", other_key) as second:
        text = refused(AuthenticationError, [addresses[0], second.address], key_file=key_file)
        assert second.address in text and addresses[0] not in text
        wait_until(lambda: "it has another key" in second.log, 5, "the reducer has logged it")
        assert second.stats()["refused"] == {"left": 1}


def test_a_key_file_that_others_can_read(addresses: list[str], tmp_path: Path) -> None:
    path = str(tmp_path / "key")
    keyfile.make(path)
    os.chmod(path, 0o644)
    with pytest.raises(ValueError, match="chmod 600"):
        alone(addresses, key_file=path)


# --- impostors ------------------------------------------------------------------------------

Act = Callable[[Impostor, socket.socket], None]


def _reflect(impostor: Impostor, sock: socket.socket) -> None:
    sock.sendall(b"ORSA" + impostor.read(sock, PSK_OPENING)[4:88])


def _without_key(impostor: Impostor, sock: socket.socket) -> None:
    opening = impostor.read(sock, PSK_OPENING)
    theirs = lane_side(opening[:PREFACE_SIZE], master=bytes(32))
    sock.sendall(feed(theirs, opening[PREFACE_SIZE:]))


def _recorded(impostor: Impostor, sock: socket.socket) -> None:
    impostor.read(sock, PSK_OPENING)
    sock.sendall(complete(job="psk-alone").answer)


def _error_frame(impostor: Impostor, sock: socket.socket) -> None:
    impostor.read(sock, PSK_OPENING)
    sock.sendall(control(messages.Error(ErrorCode.INTERNAL, "believe me")))


def _no_reducer(impostor: Impostor, sock: socket.socket) -> None:
    sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    impostor.read(sock, PSK_OPENING)


def _flood(impostor: Impostor, sock: socket.socket) -> None:
    impostor.read(sock, PSK_OPENING)
    sock.sendall(b"ORSA" + bytes(1 << 20))


IMPOSTORS: dict[str, Act] = {
    "reflects": _reflect,
    "has another key": _without_key,
    "has recorded another handshake": _recorded,
    "sends an ERROR": _error_frame,
    "is another server": _no_reducer,
    "sends a megabyte": _flood,
}


@pytest.mark.parametrize("name", IMPOSTORS)
def test_an_impostor_is_refused_and_told_nothing(name: str, key_file: str) -> None:
    act = IMPOSTORS[name]
    with Impostor(lambda sock, number: act(impostor, sock)) as impostor:
        text = refused(AuthenticationError, [impostor.address], key_file=key_file)
        assert impostor.address in text and "believe me" not in text
    assert impostor.connections == 1
    assert impostor.received[:PREFACE_SIZE] == pack_preface(0, PrefaceFlag.PSK)
    assert FRAME_MAGIC not in impostor.received and b"ORSW" not in impostor.received


def test_a_listener_that_closes_without_proof_is_named(key_file: str) -> None:
    with (
        Impostor(lambda sock, number: None) as impostor,
        pytest.raises(ReducerUnavailableError) as caught,
    ):
        alone([impostor.address], key_file=key_file, connect_timeout=1.5)
    text = str(caught.value)
    assert impostor.address in text and "before it proved the key" in text
    assert impostor.connections >= 3  # retried: it may be a proxy whose reducer is starting


def test_an_answer_in_single_bytes_is_as_good(key_file: str) -> None:
    """The impostor has the key. It reads the proof and the HELLO, and closes."""
    said = []

    def act(sock: socket.socket, number: int) -> None:
        opening = impostor.read(sock, PSK_OPENING)
        lane = lane_side(opening[:PREFACE_SIZE], master=keyfile.read(key_file))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in feed(lane, opening[PREFACE_SIZE:]):
            sock.sendall(bytes((byte,)))
        feed(lane, impostor.read(sock, 40))
        said.append((lane.done, sock.recv(4, socket.MSG_WAITALL)))

    with Impostor(act) as impostor, pytest.raises(ReducerUnavailableError):
        alone([impostor.address], key_file=key_file, connect_timeout=0.5)
    assert said[0] == (True, FRAME_MAGIC)


def _send_and_end(sock: socket.socket, data: bytes) -> None:
    """Send the data and the end of file in one segment, so that the worker gets one event."""
    sock.sendall(data, socket.MSG_MORE)
    sock.shutdown(socket.SHUT_WR)
    sock.recv(4096, socket.MSG_WAITALL)


def test_half_an_answer_and_the_end_at_once(key_file: str) -> None:
    def act(sock: socket.socket, number: int) -> None:
        impostor.read(sock, PSK_OPENING)
        _send_and_end(sock, b"ORSA" + bytes(40))

    with Impostor(act) as impostor, pytest.raises(ReducerUnavailableError) as caught:
        alone([impostor.address], key_file=key_file, connect_timeout=1.5)
    assert "before it proved the key" in str(caught.value)
    assert impostor.connections >= 3


def test_an_answer_and_the_last_frame_at_once(key_file: str) -> None:
    """Bytes that come with the answer are read, although no further event comes."""

    def act(sock: socket.socket, number: int) -> None:
        opening = impostor.read(sock, PSK_OPENING)
        lane = lane_side(opening[:PREFACE_SIZE], master=keyfile.read(key_file))
        last = control(messages.Error(ErrorCode.JOIN, "no place here"))
        _send_and_end(sock, feed(lane, opening[PREFACE_SIZE:]) + last)

    with Impostor(act) as impostor:
        assert "no place here" in refused(JoinError, [impostor.address], key_file=key_file)
    assert impostor.connections == 1


def test_the_key_is_no_setting() -> None:
    assert not [name for name in config.Settings.__dataclass_fields__ if "key" in name]
