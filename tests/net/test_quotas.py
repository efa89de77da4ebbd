"""A job that wants more than its share of a real reducer must not disturb another job."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import numpy as np
import pytest

from reducer import keyfile
from reducer.core.limits.quotas import SPARE_CONNECTIONS, allowed_connections
from reducer.wire import messages
from reducer.wire.codes import ErrorCode, MessageKind
from reducer.wire.decoder import Decoder
from reducer.wire.keys import key_id
from tests.support.cluster import Daemon, usage
from tests.support.frames import control, heartbeat
from tests.support.wait import wait_until
from tests.support.worker import Worker, connect, crc32c, frame_of

MAX_RUNS = 4
MAX_KEYS = 50
BEFORE_HELLO = 32  # connections that may wait with so few descriptors (room_for_newcomers)
VALUES = np.arange(1_000, dtype=np.float32)


@pytest.fixture(scope="module")
def key(key_file: str) -> bytes:
    return keyfile.read(key_file)


@pytest.fixture(scope="module")
def daemon(key_file: str) -> Iterator[Daemon]:
    shares = ("--max-runs", str(MAX_RUNS), "--max-keys", str(MAX_KEYS), "--records", "128KiB")
    with Daemon("--key-file", key_file, *shares, descriptors=8 * BEFORE_HELLO) as running:
        yield running


@pytest.fixture
def calm(daemon: Daemon, key: bytes) -> Iterator[Worker]:
    """A worker of another job. It and a newcomer still get their sums after the test."""
    with Worker(daemon.port, "calm", 0, 1, key=key) as worker:
        worker.join()
        assert worker.all_reduce("k", 0, VALUES) == VALUES.tobytes()
        yield worker
        assert worker.all_reduce("k", 1, VALUES) == VALUES.tobytes()
        start = time.monotonic()
        with Worker(daemon.port, "another", 0, 1, key=key) as newcomer:
            assert newcomer.join().all_reduce("k", 0, VALUES) == VALUES.tobytes()
            newcomer.bye()
        assert time.monotonic() - start < 10
        worker.bye()
    wait_until(lambda: daemon.lane_total("connections") == 0, 10, "no connection is left")
    assert daemon.lane_total("internal_errors") == 0


def hello(run_id: str, *, rank: int = 1, world_size: int = 2, rejoin: bool = True) -> bytes:
    """HELLO of a worker of the greedy job."""
    message = messages.Hello(
        job="greedy", rank=rank, world_size=world_size, incarnation=bytes(16), slot=0, reducers=1,
        run_id=run_id, chunk_table=(), rejoin=rejoin,
    )  # fmt: skip
    return frame_of(message)


def greedy(stack: ExitStack, daemon: Daemon, key: bytes, *frames: bytes) -> socket.socket:
    """A connection of a worker that has proven the key of the greedy job and sent `frames`."""
    sock = stack.enter_context(connect(daemon.port, key=key, job="greedy"))
    for frame in frames:
        sock.sendall(frame)
    return sock


def error_on(sock: socket.socket) -> messages.Error:
    """The ERROR that the lane sends, whatever comes before it."""
    decoder = Decoder(crc32c, lambda header: memoryview(bytearray(header.length + 80)))
    while data := sock.recv(65_536):
        for frame in decoder.feed(data):
            if frame.header.kind == MessageKind.ERROR and frame.payload is not None:
                return messages.decode(messages.Error, frame.payload)
    raise AssertionError("it ended without ERROR")


def test_silent_connections_of_one_job_push_out_its_own(
    daemon: Daemon, key: bytes, calm: Worker
) -> None:
    """A worker of another job that is slow to send HELLO keeps its connection."""
    with ExitStack() as stack:
        slow = stack.enter_context(connect(daemon.port, key=key, job="slow"))
        dropped = daemon.lane_total("dropped_before_hello")
        for _ in range(BEFORE_HELLO + 30):
            stack.enter_context(connect(daemon.port, key=key, job="greedy"))
        assert daemon.lane_total("dropped_before_hello") >= dropped + 25
        message = messages.Hello(
            job="slow", rank=0, world_size=1, incarnation=bytes(16), slot=0, reducers=1,
            run_id="r", chunk_table=((0, 65_536),),
        )  # fmt: skip
        slow.sendall(frame_of(message))
        assert slow.recv(80)[5] == MessageKind.WELCOME
    assert daemon.lane_total("dropped_before_hello") < dropped + BEFORE_HELLO


def test_runs_of_one_job_leave_room_for_others(daemon: Daemon, key: bytes, calm: Worker) -> None:
    """Whoever has the key of a job can begin runs of it that never form."""
    with ExitStack() as stack:
        for number in range(MAX_RUNS):
            greedy(stack, daemon, key, hello(f"run-{number}"))
        wait_until(lambda: daemon.stats()["lanes"][0]["core"]["forming"] == MAX_RUNS, 5)
        error = error_on(greedy(stack, daemon, key, hello("one-more")))
    assert error.code == ErrorCode.QUOTA
    assert f"job 'greedy' has {MAX_RUNS} runs" in error.message
    assert "--max-runs" in error.message


def test_keys_of_one_job_are_bounded(daemon: Daemon, key: bytes, calm: Worker) -> None:
    with Worker(daemon.port, "greedy", 0, 1, key=key) as worker:
        worker.join()
        for number in range(MAX_KEYS):
            assert worker.all_reduce(f"k{number}", 0, VALUES) == VALUES.tobytes()
        worker.contribute("one more", 0, VALUES)
        error = worker.wait_for_error()
    assert error.code == ErrorCode.QUOTA
    assert f"job 'greedy' has {MAX_KEYS} keys in use" in error.message
    assert "--max-keys" in error.message


def test_what_a_job_makes_a_lane_remember_is_bounded(
    daemon: Daemon, key: bytes, calm: Worker
) -> None:
    """Regression: texts of ABANDON, 16 KB a round, used up the lane's memory and ended all jobs."""
    with (
        Worker(daemon.port, "greedy", 0, 2, key=key) as worker,
        Worker(daemon.port, "greedy", 1, 2, key=key) as other,
    ):
        worker.start()
        other.join()
        worker.join_started()
        cause = messages.Abandon(int(ErrorCode.MISMATCH), "x" * 16_000)
        with suppress(ConnectionError):
            for number in range(200):
                frame = control(cause, key=key_id("k"), round=number)
                worker.links[0].sock.sendall(frame)
        for member in (worker, other):
            error = member.wait_for_error()
            assert error.code == ErrorCode.QUOTA
            assert "job 'greedy' has filled" in error.message
            assert "raise --records" in error.message


def test_a_job_that_forms_leaves_descriptors_and_memory_to_others(
    key_file: str, key: bytes
) -> None:
    """Regression: forming runs took all descriptors, and 83 KB a connection for half a frame."""
    part = heartbeat(*[(number, 1) for number in range(4_096)])[:-1]
    with ExitStack() as stack:
        daemon = stack.enter_context(Daemon("--key-file", key_file, descriptors=512))
        lane = daemon.lane_pid(0)
        before = usage(lane).descriptors
        for number in range(600):
            said = hello(f"run#{number // 150}", rank=number % 150, world_size=180)
            with suppress(ConnectionError):
                greedy(stack, daemon, key, said, part)
        assert usage(lane).descriptors <= before + 512 // 2 + SPARE_CONNECTIONS
        with Worker(daemon.port, "calm", 0, 1, key=key) as worker:
            assert worker.join().all_reduce("k", 0, VALUES) == VALUES.tobytes()
        snapshot = daemon.stats()["lanes"][0]
        assert snapshot["protocol_errors"] > 0  # workers with half a frame are not waited for
        assert snapshot["unpassed"] == 0


def test_connections_of_one_job_are_bounded(daemon: Daemon, key: bytes, calm: Worker) -> None:
    """Workers send HELLO, are refused, and do not close their connections."""
    allowed = allowed_connections(1 + 1)
    seen = []
    with ExitStack() as stack:
        first = greedy(stack, daemon, key, hello("run"))
        for _ in range(allowed):
            with suppress(ConnectionError):
                seen.append(greedy(stack, daemon, key, hello("run", world_size=3)))
        error = error_on(seen[-1])
        assert error.code == ErrorCode.QUOTA
        assert f"job 'greedy' has {allowed + 1} connections to this lane" in error.message
        for _ in range(3 * allowed):
            with suppress(ConnectionError):
                greedy(stack, daemon, key, hello("run", world_size=3))
        # The calm job's connection, and slack for connections that are just closing.
        assert daemon.lane_total("connections") <= 2 * allowed + 1 + 20
        first.close()
