"""How a daemon starts, reports that it is ready, drains and dies."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from reducer import compiled
from tests.support.cluster import WITHOUT_NATIVE, Daemon, alive, environment, run_cli
from tests.support.wait import wait_until
from tests.support.worker import Worker

ROOTS = [str(Path(__file__).resolve().parents[2])]


def free_port_holder() -> socket.socket:
    holder = socket.socket()
    holder.bind(("127.0.0.1", 0))
    holder.listen()
    return holder


def joined(stack: ExitStack, port: int, job: str = "j") -> tuple[Worker, Worker]:
    """Two workers in one thread: both say HELLO before either waits."""
    first, second = (stack.enter_context(Worker(port, job, rank, 2)) for rank in range(2))
    first.start()
    second.join()
    first.join_started()
    return first, second


def test_ready_line_is_one_line_of_json_with_real_ports() -> None:
    with Daemon(lanes=2) as daemon:
        known = {"event", "host", "port", "metrics_port", "pid", "lanes", "mode"}
        assert set(daemon.ready) == known
        assert daemon.ready["mode"] == "open"
        assert daemon.ready["event"] == "ready"
        assert daemon.ready["host"] == "127.0.0.1"
        assert daemon.ready["pid"] == daemon.pid
        assert daemon.ready["lanes"] == len(daemon.lane_pids()) == 2
        assert daemon.port > 0
        assert daemon.metrics_port > 0
        daemon.process.terminate()
        assert daemon.process.wait(30) == 0
        assert daemon.process.stdout is not None
        assert daemon.process.stdout.read() == ""


@pytest.mark.parametrize("what", ["port", "metrics-port"])
def test_port_in_use_is_named(what: str) -> None:
    with free_port_holder() as holder:
        port = holder.getsockname()[1]
        other = "metrics-port" if what == "port" else "port"
        ended = run_cli("serve", "--lanes", "1", f"--{what}", str(port), f"--{other}", "0")
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert f"127.0.0.1:{port}" in ended.stderr
    assert "ss -ltnp" in ended.stderr
    assert f"--{what} 0" in ended.stderr


def test_bind_beyond_loopback_needs_consent() -> None:
    ended = run_cli("serve", "--host", "0.0.0.0", "--port", "0")
    assert ended.returncode == 2
    for name in ("--key-file", "REDUCER_KEY_FILE", "--insecure", "REDUCER_INSECURE"):
        assert name in ended.stderr


def test_listens_on_both_families_with_consent() -> None:
    with Daemon("--host", "::", env={"REDUCER_INSECURE": "1"}) as daemon:
        for host in ("127.0.0.1", "::1"):
            with socket.create_connection((host, daemon.port), 5):
                pass


def test_pages_of_the_metrics_port() -> None:
    with ExitStack() as stack:
        daemon = stack.enter_context(Daemon(lanes=2))
        first, second = joined(stack, daemon.port)
        plan = first.contribute("k", 0, np.ones(100, np.float32))
        second.contribute("k", 0, np.ones(100, np.float32))
        first.collect("k", 0, plan, np.ones(100, np.float32))
        assert daemon.get("/healthz") == (200, "ok\n")
        assert daemon.get("/readyz") == (200, "ready\n")
        assert daemon.get("/nothing")[0] == 404
        status, text = daemon.get("/metrics")
        assert status == 200
        samples = {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        total = sum(v for k, v in samples.items() if k[0] == "reducer_contributions_total")
        assert total == 2
        assert sum(v for k, v in samples.items() if k[0] == "reducer_last_rank_total") == 1
        assert ("reducer_connections", ("lane", "1")) in samples
        assert any(key[0] == "reducer_kernel_info" for key in samples)


def test_a_busy_round_finishes_before_the_drain_ends() -> None:
    values = np.arange(100_000, dtype=np.float32)
    with ExitStack() as stack:
        daemon = stack.enter_context(Daemon())
        first, second = joined(stack, daemon.port)
        plan = first.contribute("k", 0, values)
        wait_until(lambda: daemon.lane_total("buffers_out") > 0, 5, "the round is open")
        daemon.signal(signal.SIGTERM)
        wait_until(lambda: first.poll(0.1) is not None and first.goaway, 5, "GOAWAY")
        for _ in range(3):
            first.poll(1.0)  # heartbeats keep coming from the lane
        assert daemon.process.poll() is None
        pages = ("/", "/api/status", "/api/stats", "/metrics", "/healthz")
        assert [daemon.get(page)[0] for page in pages] == [200] * len(pages)
        second.contribute("k", 0, values)
        for worker in (first, second):
            assert worker.collect("k", 0, plan, values) == (2 * values).tobytes()
        assert daemon.wait() == 0
        assert "drained" in daemon.log


def test_a_drain_ends_at_its_deadline() -> None:
    with ExitStack() as stack:
        daemon = stack.enter_context(Daemon("--drain-timeout", "300ms"))
        first, _ = joined(stack, daemon.port)
        first.contribute("k", 0, np.ones(10, np.float32))
        wait_until(lambda: daemon.lane_total("buffers_out") > 0, 5, "the round is open")
        daemon.signal(signal.SIGTERM)
        assert "shut down" in first.wait_for_error().message
        assert daemon.wait(10) == 1
        assert "without having drained" in daemon.log
        assert "exit status 1: open rounds did not finish within 0.3 s" in daemon.log


def rounds_of(daemon: Daemon, job: str) -> int:
    return int(daemon.stats()["lanes"][0]["core"]["jobs"][job]["rounds"])


def test_a_worker_that_reads_a_trickle_keeps_no_drain() -> None:
    """Regression: each byte that the worker read from the kernel's buffer gave it 2 s more."""
    values = np.ones(50_000, np.float32)
    with Daemon() as daemon, Worker(daemon.port, "slow", 0, 1, receive_buffer=2_304) as slow:
        slow.join()
        slow.contribute("k", 0, values)
        wait_until(lambda: rounds_of(daemon, "slow") == 1, 5, "the round is over")
        daemon.signal(signal.SIGTERM)
        end = time.monotonic() + 10
        while daemon.process.poll() is None and time.monotonic() < end:
            slow.links[0].sock.recv(1_000)
            time.sleep(0.1)
        assert daemon.wait(1) == 0
        assert "drained" in daemon.log


def test_who_starts_it_says_with_which_status_it_has_drained() -> None:
    with Daemon(env={"REDUCER_DRAINED_STATUS": "143"}) as daemon:
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 143
        assert "drained" in daemon.log


@pytest.mark.parametrize("shell", ["> /dev/full", "<&- >&-"], ids=["full disk", "closed"])
def test_standard_output_that_takes_nothing_changes_no_exit_status(
    shell: str, tmp_path: Path
) -> None:
    """Regression: status 120 on a full disk; an abort if the loop's descriptors were 0 and 1."""
    log = tmp_path / "log"
    serve = f"{sys.executable} -m reducer serve --port 0 --metrics-port 0 --lanes 1"
    env = environment({"PYTHONUNBUFFERED": ""})  # "" counts as not set
    with log.open("wb") as stderr:
        daemon = subprocess.Popen(["sh", "-c", f"exec {serve} {shell}"], env=env, stderr=stderr)
    try:
        wait_until(lambda: "status page http://" in log.read_text("utf-8"), 30, "it is ready")
        daemon.terminate()
        assert daemon.wait(30) == 0
    finally:
        daemon.kill()
        daemon.wait()
    assert "drained" in log.read_text("utf-8")


def test_a_second_signal_forces() -> None:
    with ExitStack() as stack:
        daemon = stack.enter_context(Daemon("--drain-timeout", "60s"))
        first, _ = joined(stack, daemon.port)
        first.contribute("k", 0, np.ones(10, np.float32))
        wait_until(lambda: daemon.lane_total("buffers_out") > 0, 5, "the round is open")
        lanes = daemon.lane_pids()
        daemon.signal(signal.SIGINT)
        wait_until(lambda: "draining" in daemon.log, 5, "the drain has begun")
        daemon.signal(signal.SIGINT)
        assert daemon.wait(5) == 1
        assert "second signal" in daemon.log
        assert not any(map(alive, lanes))


def test_a_signal_during_the_start_ends_it() -> None:
    slow = "import sys, time\nif 'reducer.server.lane.process' in sys.orig_argv: time.sleep(60)\n"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").write_text(slow, encoding="utf-8")
        process = subprocess.Popen(
            [sys.executable, "-m", "reducer", "serve", "--port", "0", "--metrics-port", "0"],
            env=environment({"PYTHONPATH": os.pathsep.join([folder, *ROOTS])}),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_until(lambda: children.read_text(encoding="ascii"), 20, "the lanes are started")
        process.terminate()
        output, _ = process.communicate(timeout=10)
        assert process.returncode == 0
        assert output == b""


def test_a_lane_that_cannot_start_ends_the_daemon_with_the_reason() -> None:
    options = ("--kernels", "native", "--port", "0", "--metrics-port", "0")
    ended = run_with_site(WITHOUT_NATIVE, "serve", *options)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert "native kernels are required" in ended.stderr


def run_with_site(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the daemon with ``code`` as sitecustomize in each of its processes."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").write_text(code, encoding="utf-8")
        return run_cli(*arguments, env={"PYTHONPATH": os.pathsep.join([folder, *ROOTS])})


def test_lanes_die_with_a_daemon_that_is_killed() -> None:
    with Daemon(lanes=2) as daemon:
        lanes = daemon.lane_pids()
        for lane in lanes:
            os.kill(lane, signal.SIGSTOP)  # so it cannot notice the end of its orders
        daemon.process.kill()
        try:
            wait_until(lambda: not any(map(alive, lanes)), 5, "the lanes are gone")
        finally:
            for lane in filter(alive, lanes):
                os.kill(lane, signal.SIGKILL)
        daemon.process.wait(5)


def test_lanes_ignore_the_signals_of_the_group() -> None:
    with Daemon(lanes=1) as daemon:
        (lane,) = daemon.lane_pids()
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(lane, number)
        assert daemon.get("/healthz")[0] == 200
        assert alive(lane)


def test_lanes_inherit_no_listener() -> None:
    with Daemon(lanes=2) as daemon:
        listening = {
            line.split()[9]
            for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
            if line.split()[3] == "0A"
        }
        for lane in daemon.lane_pids():
            held = {os.readlink(f) for f in Path(f"/proc/{lane}/fd").iterdir() if f.is_symlink()}
            inodes = {name[8:-1] for name in held if name.startswith("socket:")}
            assert not inodes & listening


def test_config_prints_values_and_sources(tmp_path: Path) -> None:
    file = tmp_path / "reducer.toml"
    file.write_text('memory = "1GiB"\nlanes = 3\n', encoding="utf-8")
    ended = run_cli("config", "--config", str(file), "--port", "7", env={"REDUCER_LANES": "auto"})
    assert ended.returncode == 0
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in ended.stdout.splitlines()}
    assert rows["memory"] == ["1GiB", f"file {file}"]
    assert rows["lanes"] == ["auto", "environment REDUCER_LANES"]
    assert rows["port"] == ["7", "command line --port"]
    assert rows["credit"] == ["4MiB", "default"]


def test_log_lines_as_json() -> None:
    with Daemon("--log-format", "json") as daemon:
        both = ("status page http://", "sums run")  # two processes write them
        wait_until(lambda: all(text in daemon.log for text in both), 5, "the first log lines")
        lines = [json.loads(line) for line in daemon.log.splitlines()]
        how = "compiled" if compiled.is_compiled() else "interpreted"
        assert [line["message"] for line in lines if line["logger"] == "reducer.lane"] == [
            f"sums run on the native kernels, the protocol runs {how}"
        ]
        assert {line["level"] for line in lines} == {"info"}
        assert "reducer.server" in {line["logger"] for line in lines}
