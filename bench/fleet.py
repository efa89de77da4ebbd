"""Reducers and worker processes of a benchmark, on the hosts of a lab or on this machine.

A worker is ``python -m MODULE``. It reads one JSON object (its case) from standard input and prints
JSON lines. All programs write their errors to the stderr of this process, and end with the fleet.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from reducer_tools.netlab import Lab

ROOT = Path(__file__).resolve().parents[1]
_STOP_SECONDS = 10.0


class Place(Protocol):
    """The hosts of programs: a `Lab` or `ThisMachine`."""

    def address(self, host: str) -> str: ...
    def command(self, host: str, arguments: Sequence[str]) -> list[str]: ...


class ThisMachine:
    """Every host is this machine's loopback, with the kernel's default congestion control."""

    def address(self, host: str) -> str:
        return "127.0.0.1"

    def command(self, host: str, arguments: Sequence[str]) -> list[str]:
        return list(arguments)


class OneHost:
    """Every host is the loopback of one namespace, where the lab sets the congestion control."""

    def __init__(self, lab: Lab, host: str) -> None:
        self._lab = lab
        self._host = host

    def address(self, host: str) -> str:
        return "127.0.0.1"

    def command(self, host: str, arguments: Sequence[str]) -> list[str]:
        return self._lab.command(self._host, arguments)


class FleetError(Exception):
    """A program of the fleet failed, or was silent too long. Programs write to stderr."""


class Fleet:
    """Starts programs and ends every one of them on exit."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._stack = ExitStack()
        self._started: list[tuple[str, subprocess.Popen[str]]] = []
        self._reducers: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._stack.close()

    def address(self, host: str) -> str:
        return self._place.address(host)

    def start_reducers(self, hosts: Sequence[str], *options: str, lanes: int = 1) -> list[str]:
        """Start ``reducer serve`` on each host; returns the addresses once all accept."""
        started = [self._start_reducer(host, lanes, options) for host in hosts]
        addresses = []
        for host, daemon in zip(hosts, started, strict=True):
            line = daemon.stdout.readline() if daemon.stdout else ""
            if not line:
                raise FleetError(f"the reducer on {host} did not start")
            addresses.append(f"{self._place.address(host)}:{json.loads(line)['port']}")
        self._reducers += started
        return addresses

    def run_workers(
        self,
        hosts: Sequence[str],
        module: str,
        cases: Sequence[Mapping[str, Any]],
        seconds: float,
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Run one worker on each host; yields (rank, line) as lines come.

        The rank of a worker is the position of its host.

        Raises:
            FleetError: a worker ended with an error, or no line came for ``seconds``.
        """
        command = [sys.executable, "-m", module]
        pipe = subprocess.PIPE
        workers = [self.start(host, command, stdin=pipe, stdout=pipe) for host in hosts]
        for worker, case in zip(workers, cases, strict=True):
            assert worker.stdin is not None
            worker.stdin.write(json.dumps(case) + "\n")
            worker.stdin.close()
        yield from _lines(workers, seconds)

    def start(
        self,
        host: str,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> subprocess.Popen[str]:
        """Start any program on a host, with ``env`` added to its environment.

        ``options`` go to `subprocess.Popen`; by default the program's output goes to stderr.
        """
        process = subprocess.Popen(
            self._place.command(host, command),
            text=True,
            cwd=ROOT,
            env={**_environment(), **(env or {})},
            **{"stdout": sys.stderr, **options},
        )
        self._stack.callback(_stop, process)
        self._started.append((host, process))
        return process

    def check(self) -> None:
        """Raise `FleetError` if a program has ended."""
        for host, process in self._started:
            if process.poll() is not None:
                program = " ".join(map(str, process.args))  # type: ignore[arg-type]  # a list
                raise FleetError(f"on {host} {program} ended with code {process.returncode}")

    def reducer_cpu_seconds(self) -> float:
        """User and system time of all reducers and their lanes since they started."""
        return sum(cpu_seconds(daemon.pid, with_children=True) for daemon in self._reducers)

    def _start_reducer(
        self, host: str, lanes: int, options: Sequence[str]
    ) -> subprocess.Popen[str]:
        address = self._place.address(host)
        command = [sys.executable, "-m", "reducer", "serve", "--host", address, "--port", "0"]
        command += ["--metrics-port", "0", "--lanes", str(lanes), "--insecure"]
        command += ["--log-level", "warning", *options]
        return self.start(host, command, stdout=subprocess.PIPE)


def cpu_seconds(pid: int, with_children: bool = False) -> float:
    """User and system time of a process, and of its living children if wanted."""
    # clock_getcpuclockid(3) has nanoseconds; /proc/PID/stat has ticks of 10 ms.
    total = time.clock_gettime((~pid << 3) | 2)
    if with_children:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        total += sum(cpu_seconds(int(child), with_children=True) for child in children)
    return total


def _environment() -> dict[str, str]:
    """Our environment without REDUCER_*, which must not change a benchmark."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("REDUCER_")}
    paths = [str(ROOT), str(ROOT / "client"), kept.get("PYTHONPATH", "")]
    kept["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    kept.setdefault("OMP_NUM_THREADS", "1")
    return kept


def _lines(
    workers: Sequence[subprocess.Popen[str]], seconds: float
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the lines of all workers as they come, until all workers have ended."""
    with selectors.DefaultSelector() as selector:
        for rank, worker in enumerate(workers):
            selector.register(worker.stdout.fileno(), selectors.EVENT_READ, rank)  # type: ignore[union-attr]
        rests = [b""] * len(workers)
        while selector.get_map():
            ready = selector.select(seconds)
            if not ready:
                waiting = sorted(key.data for key in selector.get_map().values())
                raise FleetError(f"no word for {seconds:g} s; workers {waiting} are still running")
            for key, _ in ready:
                rank = key.data
                piece = os.read(key.fd, 65_536)
                if not piece:
                    selector.unregister(key.fd)
                    _check_end(rank, workers[rank])
                    continue
                *whole, rests[rank] = (rests[rank] + piece).split(b"\n")
                for line in whole:
                    yield rank, json.loads(line)


def _check_end(rank: int, worker: subprocess.Popen[str]) -> None:
    code = worker.wait(_STOP_SECONDS)
    if code != 0:
        raise FleetError(f"worker {rank} ended with code {code}")


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
