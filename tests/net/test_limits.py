"""Limits of a daemon: descriptors run out, readers are slow."""

from __future__ import annotations

import resource
import socket
import time
from contextlib import ExitStack, suppress

import numpy as np

from reducer.server.daemon.acceptor import PREFACE_SECONDS
from reducer.wire.header import pack_preface
from reducer.wire.keys import key_id, position
from tests.support.cluster import Daemon, usage
from tests.support.wait import wait_until
from tests.support.worker import Worker, connect


def test_running_out_of_descriptors_harms_no_running_job() -> None:
    values = np.ones(1000, np.float32)
    with ExitStack() as stack:
        daemon = stack.enter_context(Daemon())
        worker = stack.enter_context(Worker(daemon.port, "j", 0, 1))
        worker.join()
        # The daemon read its limit at the start, and leaves strangers a quarter of that one.
        limit = usage(daemon.pid).descriptors + 10
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (limit, limit))
        crowd = []
        for _ in range(300):
            sock = stack.enter_context(socket.socket())
            sock.settimeout(5)
            with suppress(OSError):
                sock.connect(("127.0.0.1", daemon.port))
                sock.sendall(b"OR")
                crowd.append(sock)
        assert len(crowd) > 250
        assert worker.all_reduce("k", 0, values) == values.tobytes()
        wait_until(lambda: "descriptors" in daemon.log, 5, "the refusal is logged")
        for sock in crowd:
            sock.close()
        wait_until(lambda: usage(daemon.pid).descriptors < limit - 5, 5, "there are some again")
        with Worker(daemon.port, "later", 0, 1) as later:
            later.join()
            later.bye()
        assert worker.all_reduce("k", 1, values) == values.tobytes()
        assert daemon.stats()["refused"]["descriptors"] >= 1


def test_the_spare_descriptor_is_nobody_elses_once_it_is_lost() -> None:
    """The spare descriptor cannot be opened again, as if the whole system had none (ENFILE)."""
    values = np.ones(1000, np.float32)
    with ExitStack() as stack:
        daemon = stack.enter_context(Daemon())

        def join_in() -> socket.socket:
            return stack.enter_context(socket.create_connection(("127.0.0.1", daemon.port), 10))

        def exhaust() -> None:
            usual = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
            before = usage(daemon.pid).descriptors
            resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (3, usual[1]))
            join_in()
            wait_until(lambda: usage(daemon.pid).descriptors < before, 5, "the spare one is lost")
            resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, usual)

        def hold() -> list[socket.socket]:
            """Sockets that sent half a preface; one has the number of the lost spare descriptor."""
            before = usage(daemon.pid).descriptors
            exhaust()
            began = time.monotonic()
            held = [join_in() for _ in range(5)]
            for sock in held:
                sock.sendall(pack_preface(0)[:8])
            wait_until(lambda: usage(daemon.pid).descriptors >= before + len(held), 5, "all came")
            exhaust()
            if time.monotonic() - began < PREFACE_SECONDS / 2:
                return held
            for sock in held:  # on a slow machine they would be cut off for slowness
                sock.close()
            wait_until(lambda: usage(daemon.pid).descriptors <= before, 10, "all have gone")
            return []

        for sock in wait_until(hold, 30, "they are held in time"):
            sock.sendall(pack_preface(0)[8:] + b"no frame".ljust(80))
            assert sock.recv(4) == b"ORSF"
        worker = stack.enter_context(Worker(daemon.port, "j", 0, 1))
        worker.join()
        assert worker.all_reduce("k", 0, values) == values.tobytes()
        assert daemon.stats()["refused"]["descriptors"] < 1_000  # no busy loop


def test_a_lane_without_descriptors_closes_the_newcomers_alone() -> None:
    values = np.ones(1000, np.float32)
    with ExitStack() as stack:
        daemon = stack.enter_context(Daemon())
        worker = stack.enter_context(Worker(daemon.port, "j", 0, 1))
        worker.join()
        lane = daemon.lane_pid(0)
        limit = usage(lane).descriptors + 10
        resource.prlimit(lane, resource.RLIMIT_NOFILE, (limit, limit))
        for _ in range(40):
            stack.enter_context(connect(daemon.port))
        wait_until(lambda: daemon.lane_total("unpassed") > 0, 5, "the lane is out of descriptors")
        assert worker.all_reduce("k", 0, values) == values.tobytes()
        assert daemon.lane_total("internal_errors") == 0


def join_with_slow(daemon: Daemon, stack: ExitStack) -> tuple[Worker, Worker]:
    """Both workers of a job; the second one's socket has a small receive buffer."""
    first = stack.enter_context(Worker(daemon.port, "j", 0, 2))
    second = stack.enter_context(Worker(daemon.port, "j", 1, 2, receive_buffer=4096))
    first.start()
    second.join()
    first.join_started()
    return first, second


def test_a_slow_reader_is_dropped_alone() -> None:
    """Rank 1 contributes and never reads; rank 0 gets every result and then the reason."""
    values = np.ones(1 << 20, np.float32)
    with ExitStack() as stack:
        daemon = stack.enter_context(Daemon("--credit", "16MiB", "--slow-reader-timeout", "500ms"))
        quick, slow = join_with_slow(daemon, stack)
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


def test_a_rank_that_says_it_holds_what_it_has_not_read_has_no_room_of_others() -> None:
    """Regression: 64 MiB a connection were unaccounted for: a lane of 256 MiB held 768 MiB."""
    values, key = np.ones(1 << 17, np.float32), key_id("k")
    unread = 0
    with ExitStack() as stack:
        daemon = stack.enter_context(Daemon("--credit", "512KiB", "--records", "32KiB"))
        honest, liar = join_with_slow(daemon, stack)
        for number in range(128):
            with suppress(OSError):
                liar.contribute("k", number, values)
            liar._unanswered.clear()
            liar._done[key] = position(number + 1, 0)
            plan = honest.contribute("k", number, values)
            while honest.absent is None and len(honest.results) < plan.chunks:
                honest.poll(1.0)
            if honest.absent is not None:
                break
            honest.collect("k", number, plan, values)
            unread += values.nbytes
        ((rank, reason),) = honest.wait_for_absence().absent
        assert rank == 1
        assert "slow reader" in reason
        assert daemon.lane_total("slow_readers") == 1
        daemon.kill()
    # Without a limit, the kernel alone would buffer 4 MiB for a socket that nobody reads.
    assert unread < 3 << 20
