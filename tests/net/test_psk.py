"""Mode psk on a real daemon: strangers get nothing, take no resources and delay nobody."""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest

from reducer import keyfile
from reducer.server.gates.gate import Newcomer
from reducer.server.gates.psk_gate import PskGate
from reducer.wire import messages
from reducer.wire.codes import ErrorCode, MessageKind
from reducer.wire.decoder import Decoder
from reducer.wire.handshake import ANSWER_SIZE, NONCE_SIZE, WorkerHandshake, job_key
from reducer.wire.header import (
    PREFACE_SIZE,
    Header,
    PrefaceFlag,
    pack_header,
    pack_preface,
    unpack_preface,
)
from tests.support.cluster import Daemon, run_cli
from tests.support.handshakes import INCARNATION, complete
from tests.support.strangers import check_it_lives_on, opened, read_to_end, refused
from tests.support.wait import AT_ONCE, wait_until
from tests.support.worker import Worker, crc32c, frame_of

PREFACE = pack_preface(0, PrefaceFlag.PSK)
OTHER = bytes(32)
# The limit of our own memory that an unauthenticated peer may take (SECURITY.md).
PEER_BYTES = 4096


@pytest.fixture(scope="module")
def key(key_file: str) -> bytes:
    return keyfile.read(key_file)


@pytest.fixture(scope="module")
def daemon(key_file: str) -> Iterator[Daemon]:
    with Daemon("--key-file", key_file) as running:
        yield running


@pytest.fixture(autouse=True)
def lives_on(daemon: Daemon, key: bytes) -> Iterator[None]:
    yield
    check_it_lives_on(daemon, key=key)


def hello(job: str) -> bytes:
    return frame_of(
        messages.Hello(
            job=job, rank=0, world_size=1, incarnation=bytes(16), slot=0, reducers=1, run_id="r",
            chunk_table=((0, 65_536),),
        )
    )  # fmt: skip


def worker_side(key: bytes, job: str = "job", lane: int = 0) -> WorkerHandshake:
    return WorkerHandshake(job_key(key, job), job, lane, secrets.token_bytes(NONCE_SIZE))


def first_frame(data: bytes) -> tuple[Header, bytes]:
    decoder = Decoder(crc32c, lambda header: memoryview(bytearray(header.length + 80)))
    (frame, *_) = decoder.feed(data)
    return frame.header, bytes(frame.payload or b"")


# --- accepted -------------------------------------------------------------------------------


def test_a_worker_with_the_key_works_over_all_lanes(key: bytes, key_file: str) -> None:
    values = np.arange(200_000, dtype=np.float32)
    with ExitStack() as stack:
        daemon = stack.enter_context(Daemon("--key-file", key_file, lanes=2))
        assert daemon.ready["mode"] == "psk"
        pair = [stack.enter_context(Worker(daemon.port, "j", r, 2, key=key)) for r in range(2)]
        for worker in pair:
            worker.start()
        for worker in pair:
            worker.join_started()
        plans = [worker.contribute("k", 0, values) for worker in pair]
        for worker, plan in zip(pair, plans, strict=True):
            assert worker.collect("k", 0, plan, values) == (values + values).tobytes()
        for worker in pair:
            worker.bye()


def test_handshake_and_hello_in_single_bytes(daemon: Daemon, key: bytes) -> None:
    worker = worker_side(key)
    with opened(daemon.port) as sock:
        for byte in worker.opening:
            sock.sendall(bytes((byte,)))
        answer = sock.recv(ANSWER_SIZE, socket.MSG_WAITALL)
        for byte in worker.proof(answer) + hello("job"):
            sock.sendall(bytes((byte,)))
        assert sock.recv(80, socket.MSG_WAITALL)[5] == MessageKind.WELCOME


def test_proof_and_hello_in_one_piece(daemon: Daemon, key: bytes) -> None:
    worker = worker_side(key)
    with opened(daemon.port, worker.opening) as sock:
        sock.sendall(worker.proof(sock.recv(ANSWER_SIZE, socket.MSG_WAITALL)) + hello("job"))
        assert sock.recv(80, socket.MSG_WAITALL)[5] == MessageKind.WELCOME


# --- refused --------------------------------------------------------------------------------


def test_a_worker_without_a_key_is_told_what_to_do(daemon: Daemon) -> None:
    before = refused(daemon, "plain")
    with opened(daemon.port, pack_preface(0), hello("job")) as sock:
        header, payload = first_frame(read_to_end(sock))
    assert header.kind == MessageKind.ERROR
    error = messages.decode(messages.Error, memoryview(payload))
    assert error.code == ErrorCode.AUTHENTICATION
    assert "key_file" in error.message and "REDUCER_KEY_FILE" in error.message
    assert refused(daemon, "plain") == before + 1


def test_a_reducer_without_a_key_says_so_by_its_preface(key: bytes) -> None:
    with Daemon() as plain:
        with opened(plain.port, worker_side(key).opening) as sock:
            answer = read_to_end(sock)
        assert len(answer) == PREFACE_SIZE
        assert unpack_preface(answer).flags == 0
        assert refused(plain, "keyless") == 1


def test_a_worker_of_job_a_that_names_job_b(daemon: Daemon, key: bytes) -> None:
    worker = worker_side(key, "a")
    with opened(daemon.port, worker.opening) as sock:
        sock.sendall(worker.proof(sock.recv(ANSWER_SIZE, socket.MSG_WAITALL)) + hello("b"))
        header, payload = first_frame(read_to_end(sock))
    error = messages.decode(messages.Error, memoryview(payload))
    assert (header.kind, error.code) == (MessageKind.ERROR, ErrorCode.AUTHENTICATION)
    assert "'a'" in error.message and "'b'" in error.message
    assert "b" not in daemon.stats()["lanes"][0]["core"]["jobs"]


def forged_proof(worker: WorkerHandshake, answer: bytes) -> bytes:
    return b"ORSW" + bytes(4) + secrets.token_bytes(32)


def with_another_key(worker: WorkerHandshake, answer: bytes) -> bytes:
    """A proof with another key, from a worker that does not check the lane's proof."""
    head = b"ORSW" + bytes(4)
    label = b"open-reduction-server worker\0"
    return head + hmac.digest(
        job_key(OTHER, "job"), label + worker.opening + answer + head, "sha256"
    )


def a_frame(worker: WorkerHandshake, answer: bytes) -> bytes:
    return hello("job")


def reflected(worker: WorkerHandshake, answer: bytes) -> bytes:
    return b"ORSW" + bytes(4) + answer[-32:]


@pytest.mark.parametrize(
    ("proof", "cause"),
    [
        (forged_proof, "forged"),
        (with_another_key, "forged"),
        (reflected, "forged"),
        (a_frame, "garbage"),
    ],
)
def test_a_wrong_proof_is_cut_off_without_a_word(
    daemon: Daemon, key: bytes, proof: Callable[[WorkerHandshake, bytes], bytes], cause: str
) -> None:
    before = refused(daemon, cause)
    worker = worker_side(key)
    with opened(daemon.port, worker.opening) as sock:
        answer = sock.recv(ANSWER_SIZE, socket.MSG_WAITALL)
        with suppress(ConnectionError):
            sock.sendall(proof(worker, answer) + hello("job"))
        assert read_to_end(sock) == b""
    assert refused(daemon, cause) == before + 1


def test_a_recorded_session_opens_nothing(daemon: Daemon, key: bytes, key_file: str) -> None:
    worker = worker_side(key)
    with opened(daemon.port, worker.opening) as sock:
        proof = worker.proof(sock.recv(ANSWER_SIZE, socket.MSG_WAITALL))
        sock.sendall(proof + hello("job"))
        assert sock.recv(80, socket.MSG_WAITALL)[5] == MessageKind.WELCOME
    with Daemon("--key-file", key_file) as another:
        for port in (daemon.port, another.port):
            with opened(port, worker.opening, proof, hello("job")) as sock:
                assert len(read_to_end(sock)) <= ANSWER_SIZE


GARBAGE = [
    bytes(400),
    b"ORSF" + bytes(76),
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"ORSC" + bytes(164),  # no job name
    b"ORSC\x81" + b"a" * 163,
    b"ORSC\x01\0\0\x01a" + bytes(159),  # a nonzero reserved byte
    b"ORSC\x01\0\0\0ab" + bytes(158),  # nonzero padding
    b"ORSC\x02\0\0\0\xff\xfe" + bytes(158),  # invalid UTF-8
]


@pytest.mark.parametrize("data", GARBAGE)
def test_garbage_in_place_of_a_challenge(daemon: Daemon, data: bytes) -> None:
    before = refused(daemon, "garbage")
    with opened(daemon.port, PREFACE) as sock:
        start = time.monotonic()
        with suppress(ConnectionError):
            sock.sendall(data)
        assert read_to_end(sock) == b""
        assert time.monotonic() - start < AT_ONCE
    assert refused(daemon, "garbage") == before + 1


# --- time and memory ------------------------------------------------------------------------


def test_a_newcomer_has_no_session_and_no_buffer(daemon: Daemon, key: bytes) -> None:
    worker = worker_side(key)
    with opened(daemon.port, worker.opening) as sock:
        sock.recv(ANSWER_SIZE, socket.MSG_WAITALL)
        sock.sendall(b"ORSW")
        wait_until(lambda: daemon.lane_total("unproven") == 1, 2, "it waits for the proof")
        (lane,) = daemon.stats()["lanes"]
        assert lane["connections"] == lane["buffers_out"] == lane["core"]["sessions"] == 0


def test_what_a_stranger_makes_us_hold(key: bytes) -> None:
    """Our objects for a handshake at each of its steps, without the event loop's objects."""
    gate = PskGate(key, 0, INCARNATION, lambda job: Newcomer)  # type: ignore[arg-type, return-value]
    opening = complete(job="n" * 128, master=key).opening
    count = 200
    for data in (b"", opening[PREFACE_SIZE:-1], opening[PREFACE_SIZE:]):
        tracemalloc.start()
        held = []
        for _ in range(count):
            newcomer = gate.newcomer(bytes(bytearray(opening[:PREFACE_SIZE])))
            room = newcomer.get_buffer(1 << 16)
            room[: len(data)] = data
            if data:
                newcomer._handshake.received(len(data))
            held.append(newcomer)
        size = tracemalloc.get_traced_memory()[0] / count
        tracemalloc.stop()
        assert size < PEER_BYTES / 2, size


# --- the key itself -------------------------------------------------------------------------


def test_the_key_is_nowhere_to_be_read(daemon: Daemon, key: bytes, key_file: str) -> None:
    text = Path(key_file).read_text().strip()
    wanted = {text.encode(), text.rstrip("=").encode(), key, key.hex().encode()}
    wanted |= {json.dumps(list(key)).encode()}
    seen = [daemon.log.encode(), daemon.get("/metrics")[1].encode()]
    seen += [json.dumps(daemon.stats()).encode(), json.dumps(daemon.ready).encode()]
    for pid in [daemon.pid, *daemon.lane_pids()]:
        seen.append(Path(f"/proc/{pid}/cmdline").read_bytes())
        seen.append(Path(f"/proc/{pid}/environ").read_bytes())
        limits = Path(f"/proc/{pid}/limits").read_text()
        core = next(line for line in limits.splitlines() if line.startswith("Max core file size"))
        assert core.split()[4:6] == ["0", "0"], core
    assert not [w for w in wanted for data in seen if w in data]


def test_a_world_readable_key_file_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "key")
    keyfile.make(path)
    os.chmod(path, 0o644)
    for ended in (
        run_cli("serve", "--port", "0", "--key-file", path),
        run_cli("serve", "--port", "0", env={"REDUCER_KEY_FILE": path}),
    ):
        assert ended.returncode == 2
        assert ended.stdout == ""
        words = " ".join(ended.stderr.split())
        assert "mode 0644" in words and f"chmod 600 {path}" in words
        assert Path(path).read_text().strip() not in ended.stderr


@pytest.mark.parametrize("text", ["", "c2hvcnQ", "no key at all\n"])
def test_a_bad_key_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "key"
    path.write_text(text)
    path.chmod(0o600)
    ended = run_cli("serve", "--port", "0", "--key-file", str(path))
    assert ended.returncode == 2
    assert str(path) in ended.stderr


def test_key_file_and_insecure_exclude_each_other(key_file: str) -> None:
    ended = run_cli("serve", "--port", "0", "--key-file", key_file, "--insecure")
    assert ended.returncode == 2
    assert "expected one of them" in " ".join(ended.stderr.split())


def test_a_key_is_enough_beyond_loopback(key_file: str) -> None:
    with (
        Daemon("--host", "0.0.0.0", "--key-file", key_file) as daemon,
        opened(daemon.port, pack_preface(0)) as sock,
    ):
        header, _ = first_frame(read_to_end(sock))
        assert header.kind == MessageKind.ERROR


def test_a_frame_before_the_proof_costs_no_decoder(daemon: Daemon) -> None:
    """A frame that claims a payload of 4 MiB instead of the challenge."""
    header = Header(MessageKind.CONTRIBUTION, dtype=1, op=1, collective=1, length=4 << 20)
    with opened(daemon.port, PREFACE, pack_header(header, crc32c) + bytes(400)) as sock:
        assert read_to_end(sock) == b""
    assert daemon.lane_total("buffer_bytes") == 0
