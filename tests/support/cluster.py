"""Real daemons for tests: processes of ``reducer serve --port 0``."""

from __future__ import annotations

import json
import os
import resource
import selectors
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from tests.support.wait import wait_until

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 60.0
STOP_SECONDS = 30.0

# A sitecustomize that hides the native kernels from every process of a daemon.
WITHOUT_NATIVE = """
import sys
class Finder:
    def find_spec(self, name, *rest):
        if name == "reducer.kernels._native": raise ImportError("not built")
sys.meta_path.insert(0, Finder())
"""


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Our environment without REDUCER_*, which could change tests, plus ``extra``.

    REDUCER_IO_THREADS stays: a run of the tests may choose the number of I/O loops.
    """
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("REDUCER_") or key == "REDUCER_IO_THREADS"
    }
    paths = [str(ROOT), str(ROOT / "client"), kept.get("PYTHONPATH", "")]
    kept["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return {**kept, "PYTHONWARNINGS": "error", **(extra or {})}


def run_cli(
    *arguments: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m reducer ...`` until it ends."""
    return subprocess.run(
        [sys.executable, "-m", "reducer_tools", *arguments],
        env=environment(env),
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )


class Daemon:
    """A running ``reducer serve``. The context manager stops it and asserts a clean end."""

    def __init__(
        self,
        *arguments: str,
        lanes: int = 1,
        env: Mapping[str, str] | None = None,
        descriptors: int | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        command = [
            *prefix,
            sys.executable,
            "-m",
            "reducer",
            "serve",
            "--port",
            "0",
            "--metrics-port",
            "0",
        ]
        command += ["--lanes", str(lanes), *arguments]
        self.process = subprocess.Popen(
            command,
            env=environment(env),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=_limit(descriptors),
        )
        self._log: list[str] = []
        self._reader = threading.Thread(target=self._collect, daemon=True)
        self._reader.start()
        self.ready = self._read_ready()
        self.port: int = self.ready["port"]
        self.metrics_port: int = self.ready["metrics_port"]
        self.address = f"127.0.0.1:{self.port}"

    def _collect(self) -> None:
        assert self.process.stderr is not None
        self._log.extend(self.process.stderr)

    def _read_ready(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            deadline = time.monotonic() + START_SECONDS
            if not selector.select(deadline - time.monotonic()):
                self.kill()
                raise AssertionError(f"no ready line in {START_SECONDS} s\n{self.log}")
        line = self.process.stdout.readline()
        if not line:
            self.wait()
            raise AssertionError(f"the daemon did not start\n{self.log}")
        ready: dict[str, Any] = json.loads(line)
        return ready

    @property
    def log(self) -> str:
        """Everything on stderr so far."""
        return "".join(self._log)

    def wait_for_log(self, text: str) -> None:
        """Wait for a line in the log, which may come later than the lane's answer on a socket."""
        wait_until(lambda: text in self.log, 5, f"{text!r} in the log")

    @property
    def pid(self) -> int:
        return self.process.pid

    def lane_pids(self) -> list[int]:
        """The child processes of the daemon."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text(encoding="ascii")
        return [int(pid) for pid in children.split()]

    def lane_pid(self, lane: int) -> int:
        """The process of a running lane."""
        for pid in self.lane_pids():
            command = Path(f"/proc/{pid}/cmdline").read_bytes()  # empty for a zombie
            if command and json.loads(command.split(b"\0")[-2])["lane"] == lane:
                return pid
        raise AssertionError(f"lane {lane} does not run")

    def get(self, path: str) -> tuple[int, str]:
        """The status and body of a page on the metrics port."""
        url = f"http://127.0.0.1:{self.metrics_port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def stats(self) -> dict[str, Any]:
        """/api/stats."""
        status, body = self.get("/api/stats")
        assert status == 200, body
        found: dict[str, Any] = json.loads(body)
        return found

    def lane_total(self, field: str) -> int:
        """The sum of one number over the lanes' snapshots."""
        return sum(lane[field] for lane in self.stats()["lanes"])

    def rss(self) -> int:
        """Resident bytes of the daemon and its lanes."""
        return sum(used.resident for used in self.usages().values())

    def usages(self) -> dict[int, Usage]:
        """The resources of the daemon and of each lane, by pid."""
        return {pid: usage(pid) for pid in [self.pid, *self.lane_pids()]}

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, timeout: float = STOP_SECONDS) -> int:
        """The exit status; stderr is complete afterwards."""
        status = self.process.wait(timeout)
        self._reader.join(timeout)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        return status

    def stop(self) -> int:
        """SIGTERM, then wait."""
        if self.process.poll() is None:
            self.process.terminate()
        return self.wait()

    def kill(self) -> int:
        if self.process.poll() is None:
            self.process.kill()
        return self.wait()

    def __enter__(self) -> Daemon:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is not None:
            self.wait()
            return
        try:
            status = self.stop()
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        if error is None:
            assert status == 0, f"exit status {status}\n{self.log}"
            assert "unhandled" not in self.log and "Traceback" not in self.log, self.log
        else:
            sys.stderr.write(self.log)


class Usage(NamedTuple):
    """Resources of a process: resident bytes, descriptors, threads (also of C++)."""

    resident: int
    descriptors: int
    threads: int


def usage(pid: int) -> Usage:
    """The present resources of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return Usage(
        pages * resource.getpagesize(),
        len(os.listdir(f"/proc/{pid}/fd")),
        len(os.listdir(f"/proc/{pid}/task")),
    )


def peak_resident(pid: int) -> int:
    """The peak resident bytes of the process (VmHWM)."""
    return _status_bytes(pid, "VmHWM")


def anonymous(pid: int) -> int:
    """The memory of the process, without files."""
    return _status_bytes(pid, "RssAnon")


def _status_bytes(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields[name].removesuffix("kB")) << 10


def alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def _limit(descriptors: int | None) -> Callable[[], None] | None:
    if descriptors is None:
        return None
    limits = (descriptors, descriptors)
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limits)
