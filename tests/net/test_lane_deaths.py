"""Lanes that die, hang or drain late: what the daemon does about them, and what it logs."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from reducer import keyfile
from reducer.server.daemon.lanes import pause_before_restart
from reducer.wire.header import pack_preface
from tests.support.cluster import ROOT, Daemon, usage
from tests.support.wait import wait_until
from tests.support.worker import Worker

# In a lane: the first snapshot exceeds the pipe, and the lane is killed before it writes the rest.
DIES_IN_A_LINE = """
import json, os, sys
if "reducer.server.lane.process" in sys.orig_argv and not os.path.exists(os.environ["DIED"]):
    whole = json.JSONEncoder.encode
    def encode(encoder, found):
        if not isinstance(found, dict) or "snapshot" not in found:
            return whole(encoder, found)
        open(os.environ["DIED"], "w").close()
        os.write(json.loads(sys.argv[1])["answers_fd"], b'{"snapshot": "' + bytes(100_000))
        os.kill(os.getpid(), 9)
    json.JSONEncoder.encode = encode
"""

# In a lane: once the file exists, reading the clock in a tick fails. (Compiled code has no frames:
# the caller is then `_tick_once`.)
HAS_NO_TIME = """
import os, sys, time
if "reducer.server.lane.process" in sys.orig_argv:
    tell = time.monotonic
    def monotonic():
        caller = sys._getframe(1).f_code.co_name
        if caller.strip("_") in ("tick", "tick_once") and os.path.exists(os.environ["BROKEN"]):
            raise RuntimeError("the clock is broken")
        return tell()
    time.monotonic = monotonic
"""

# In a lane: once the file exists, its loop loses the tick. time.sleep() is 20 times shorter.
LOSES_ITS_TICK = """
import os, sys, time
if "reducer.server.lane.process" in sys.orig_argv:
    import uvloop
    class Loop(uvloop.Loop):
        def call_later(self, delay, callback, *args, **rest):
            if callback.__name__ == "_tick" and os.path.exists(os.environ["BROKEN"]):
                return None
            return super().call_later(delay, callback, *args, **rest)
    uvloop.new_event_loop = Loop
    sleep = time.sleep
    time.sleep = lambda seconds: sleep(seconds / 20)
"""


def with_site(code: str, folder: Path, **variables: str) -> Daemon:
    """A daemon, each process of which runs ``code`` as it starts."""
    (folder / "sitecustomize.py").write_text(code, encoding="utf-8")
    return Daemon(env={"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), **variables})


def restarts(daemon: Daemon) -> dict[str, float]:
    """The number of restarts by lane, from /metrics."""
    return {
        sample.labels["lane"]: sample.value
        for family in text_string_to_metric_families(daemon.get("/metrics")[1])
        for sample in family.samples
        if sample.name == "reducer_lane_restarts_total"
    }


def is_ready(daemon: Daemon) -> bool:
    return daemon.get("/readyz")[0] == 200


def kill(daemon: Daemon, lane: int) -> None:
    pid = daemon.lane_pid(lane)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: f"lane {lane} (pid {pid}) ended with signal SIGKILL" in daemon.log, 10)


def test_a_lane_that_dies_is_started_again_and_the_others_go_on() -> None:
    with Daemon(lanes=2) as daemon:
        assert restarts(daemon) == {"0": 0, "1": 0}
        other = daemon.lane_pid(0)
        kill(daemon, 1)
        assert daemon.get("/healthz")[0] == 200
        wait_until(lambda: is_ready(daemon), 20, "the lane is up again")
        assert daemon.lane_pid(0) == other
        assert len(daemon.lane_pids()) == 2
        assert restarts(daemon) == {"0": 0, "1": 1}
        daemon.wait_for_log("started again at once")
        assert daemon.stop() == 0
        assert "drained" in daemon.log


def test_a_lane_that_is_started_again_has_the_key(key_file: str) -> None:
    values = np.ones(1000, np.float32)
    with Daemon("--key-file", key_file) as daemon:
        kill(daemon, 0)
        wait_until(lambda: is_ready(daemon), 20, "the lane is up again")
        with Worker(daemon.port, "j", 0, 1, key=keyfile.read(key_file)) as worker:
            worker.join()
            assert worker.all_reduce("k", 0, values) == values.tobytes()


def answers(daemon: Daemon) -> bool:
    """Whether a lane accepts a connection: it answers bytes that are no frame with an ERROR."""
    with socket.create_connection(("127.0.0.1", daemon.port), 5) as sock:
        sock.sendall(pack_preface(0) + b"no frame at all".ljust(80))
        with suppress(ConnectionError):
            return sock.recv(4) == b"ORSF"
    return False


def test_a_lane_that_dies_again_and_again_is_waited_for() -> None:
    """The lane restarts although more strangers wait for it than the daemon has descriptors."""
    with ExitStack() as stack:
        daemon = stack.enter_context(Daemon(descriptors=256))
        for _ in range(2):
            kill(daemon, 0)
            wait_until(lambda: is_ready(daemon), 20, "the lane is up again")
        kill(daemon, 0)
        daemon.wait_for_log("started again in 2 s, after 3 quick deaths")
        assert daemon.lane_pids() == []
        status, text = daemon.get("/readyz")
        assert status == 503
        assert "lane 0" in text
        assert daemon.get("/healthz")[0] == 200  # restarting the whole daemon would not help
        assert "\nreducer_ready 0.0\n" in daemon.get("/metrics")[1]
        for _ in range(300):
            sock = socket.create_connection(("127.0.0.1", daemon.port), 10)
            stack.enter_context(sock).sendall(pack_preface(0))
        assert daemon.get("/healthz")[0] == 200
        wait_until(lambda: is_ready(daemon), 40, "the lane is up again")
        wait_until(lambda: answers(daemon), 10, "it takes connections")
        assert restarts(daemon) == {"0": 3}


def test_the_wait_grows_and_is_bounded() -> None:
    waits = [pause_before_restart(deaths) for deaths in (1, 2, 3, 4, 5, 6, 1_000_000)]
    assert waits == [0, 0, 2, 4, 8, 10, 10]


def test_a_daemon_may_be_told_to_end_while_a_lane_is_down() -> None:
    with Daemon(lanes=2) as daemon:
        for _ in range(2):
            kill(daemon, 0)
            wait_until(lambda: is_ready(daemon), 20, "the lane is up again")
        kill(daemon, 0)
        assert daemon.stop() == 0


def test_a_lane_that_dies_in_the_middle_of_an_answer(tmp_path: Path) -> None:
    with with_site(DIES_IN_A_LINE, tmp_path, DIED=str(tmp_path / "died")) as daemon:
        daemon.get("/metrics")
        wait_until(lambda: restarts(daemon) == {"0": 1}, 20, "its death is noticed")
        wait_until(lambda: is_ready(daemon), 20, "the lane is up again")
        assert daemon.stop() == 0


@pytest.mark.parametrize(
    ("site", "reason"),
    [
        (HAS_NO_TIME, "exit status 1: RuntimeError: the clock is broken"),
        (LOSES_ITS_TICK, "exit status 70: its event loop had lost its timer"),
    ],
)
def test_a_lane_without_ticks_ends_with_the_reason(site: str, reason: str, tmp_path: Path) -> None:
    """A lane without ticks has no deadlines, so it must not go on."""
    broken = tmp_path / "broken"
    daemon = with_site(site, tmp_path, BROKEN=str(broken))
    try:
        broken.touch()
        wait_until(lambda: reason in daemon.log, 20)
        broken.unlink()
        wait_until(lambda: is_ready(daemon), 40, "the lane is up again")
        assert restarts(daemon)["0"] >= 1
    finally:
        daemon.kill()


def test_a_timeline_that_cannot_be_written_ends_alone(tmp_path: Path) -> None:
    values = np.ones(1000, np.float32)
    with Daemon("--timeline", str(tmp_path)) as daemon, Worker(daemon.port, "j", 0, 1) as worker:
        worker.join()
        worker.all_reduce("k", 0, values)
        (file,) = tmp_path.iterdir()
        wait_until(lambda: file.stat().st_size, 10, "the first round is written")
        # As on a full disk: the file takes no more.
        limit = file.stat().st_size
        resource.prlimit(daemon.lane_pid(0), resource.RLIMIT_FSIZE, (limit, limit))
        worker.all_reduce("k", 1, values)
        wait_until(lambda: f"the timeline {file} ends: File too large" in daemon.log, 10)
        assert worker.all_reduce("k", 2, values) == values.tobytes()
        daemon.signal(signal.SIGTERM)  # a tick notices the end of a drain: ticks still work
        assert daemon.wait() == 0
        assert daemon.log.count("the timeline") == 1


def test_a_lane_is_started_again_without_a_timeline_where_the_disk_takes_no_file(
    tmp_path: Path,
) -> None:
    """Regression: the lane never came up again, and /readyz stayed 503."""
    folder = tmp_path / "timeline"
    with Daemon("--timeline", str(folder)) as daemon:
        shutil.rmtree(folder)
        folder.write_text("no folder")
        os.kill(daemon.lane_pid(0), signal.SIGKILL)
        wait_until(lambda: f"no timeline in {folder}: " in daemon.log, 10, "the lane says so")
        with Worker(daemon.port, "j", 0, 1) as worker:
            worker.join()
            worker.all_reduce("k", 0, np.ones(10, np.float32))


def test_a_lane_that_stood_still_while_many_came_is_told_to_drain() -> None:
    with ExitStack() as stack:
        daemon = stack.enter_context(Daemon())
        lane = daemon.lane_pid(0)
        os.kill(lane, signal.SIGSTOP)
        before = usage(daemon.pid).descriptors
        socks = []
        for _ in range(600):  # twice as many as fit into the lane's socket pair
            sock = socket.create_connection(("127.0.0.1", daemon.port), 10)
            socks.append(stack.enter_context(sock))
            sock.sendall(pack_preface(0))
        wait_until(lambda: usage(daemon.pid).descriptors > before + 200, 10, "these wait")
        daemon.signal(signal.SIGTERM)
        wait_until(lambda: "draining" in daemon.log, 10, "the drain has begun")
        os.kill(lane, signal.SIGCONT)
        # This socket waited, and no later one pushed it out. It must not be told "no HELLO came".
        answer = socks[400].recv(4096)
        late = "takes no connections" in daemon.log  # all this took 2 s on a slow machine
        assert b"this reducer has shut down" in answer or late
        assert daemon.wait(20) == 0
        assert "drained" in daemon.log


def test_a_lane_that_does_not_drain_is_killed_and_the_status_says_so() -> None:
    with Daemon("--drain-timeout", "10ms") as daemon:
        os.kill(daemon.lane_pid(0), signal.SIGSTOP)
        daemon.signal(signal.SIGTERM)
        assert daemon.wait(20) == 1
        assert "SIGKILL: it did not drain within 5.01 s" in daemon.log
        assert not daemon.log.endswith("drained\n")


def test_a_signal_to_the_group_ends_no_lane_that_is_about_to_start() -> None:
    """Regression: the signal killed a lane without handlers, so the drain failed with status 1."""
    with Daemon(prefix=("setsid",)) as daemon:
        (lane,) = daemon.lane_pids()
        os.kill(lane, signal.SIGKILL)
        wait_until(lambda: daemon.lane_pids() not in ([], [lane]), 10, "it is started again")
        os.killpg(daemon.pid, signal.SIGTERM)
        assert daemon.wait() == 0
        assert "drained" in daemon.log
