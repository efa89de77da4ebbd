"""Results queued when their job fails are sent unchanged, although others want the memory."""

from __future__ import annotations

import time

import numpy as np

from reducer.server.data.connection import LINGER_SECONDS
from reducer.wire import messages
from reducer.wire.codes import ErrorCode
from reducer.wire.keys import key_id
from tests.support.cluster import Daemon
from tests.support.wait import wait_until
from tests.support.worker import Worker, frame_of

MIB = 1 << 18  # float32 elements


def test_memory_of_queued_results_is_not_reused() -> None:
    """Rank 0 reads late; meanwhile rank 1 dies, and another job wants the same buffers.

    The decoder of rank 0 checks the CRC of every result that it reads.
    """
    values = np.arange(4 * MIB, dtype=np.float32)
    with (
        Daemon("--credit", "32MiB") as daemon,
        Worker(daemon.port, "late", 0, 2, receive_buffer=4096) as late,
        Worker(daemon.port, "other", 0, 1) as other,
    ):
        other.join()
        with Worker(daemon.port, "late", 1, 2) as dead:
            late.start()
            dead.join()
            late.join_started()
            late.contribute("k", 0, values)
            plan = dead.contribute("k", 0, values)
            dead.collect("k", 0, plan, values)
            lost = messages.Error(int(ErrorCode.PEER_LOST), "rank 1 is lost", 1, "lost")
            dead.links[0].sock.sendall(frame_of(lost))
            wait_until(lambda: daemon.log.count("is lost"), 5, "the job has failed")
        wait_until(lambda: daemon.lane_total("connections") == 2, 5, "rank 1 is gone")
        noise = np.full(4 * MIB, np.pi, np.float32)
        for round_ in range(3):
            assert other.all_reduce("n", round_, noise) == noise.tobytes()
        error = late.wait_for_error()
        assert error.code == ErrorCode.PEER_LOST
        assert error.rank == 1
        for chunk in range(plan.chunks):
            payload = late.results[key_id("k"), 0, chunk].payload
            start = chunk * plan.chunk_elements
            expected = 2 * values[start : start + plan.elements(chunk)]
            assert payload == memoryview(expected.tobytes())
        other.bye()


def test_a_closing_peer_that_reads_slowly_gets_everything() -> None:
    """The limit for reading the last frames is time without progress, not total time."""
    values = np.arange(4 * MIB, dtype=np.float32)
    with Daemon("--credit", "32MiB") as daemon:
        late = Worker(daemon.port, "late", 0, 2, receive_buffer=4096)
        with late, Worker(daemon.port, "late", 1, 2) as dead:
            late.start()
            dead.join()
            late.join_started()
            late.contribute("k", 0, values)
            plan = dead.contribute("k", 0, values)
            dead.collect("k", 0, plan, values)
            lost = messages.Error(int(ErrorCode.PEER_LOST), "rank 1 is lost", 1, "lost")
            dead.links[0].sock.sendall(frame_of(lost))
            wait_until(lambda: daemon.log.count("is lost"), 5, "the job has failed")
            start = time.monotonic()
            while time.monotonic() - start < 1.5 * LINGER_SECONDS:
                late.poll(0.0)  # one read of at most 64 KiB
                due = time.monotonic() + 0.1
                wait_until(lambda due=due: time.monotonic() > due, 1)
            assert late.wait_for_error().rank == 1
            assert len(late.results) == plan.chunks
