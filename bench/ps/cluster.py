"""A parameter server of one side, with workers that take orders (see `bench.ps.worker`)."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.fleet import FleetError, cpu_seconds

HOST = "this machine"
START_SECONDS = 60.0
Line = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """``bytes``: size of the table, float32. ``key_bytes``: what one key of ps-lite has. ``lanes``:
    processes of each of our reducers; a server of ps-lite has several threads.
    """

    workers: int
    servers: int
    bytes: int
    key_bytes: int
    momentum: float
    lanes: int = 1

    def __str__(self) -> str:
        return f"{self.workers}/{self.servers}"


class SilenceError(FleetError):
    """A worker printed nothing for too long, but is still running."""


class Worker:
    """A worker process, which prints lines of JSON."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines: queue.SimpleQueue[Line | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def cpu_seconds(self) -> float:
        return cpu_seconds(self.process.pid)

    def order(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def take(self, seconds: float) -> Line:
        """The next line.

        Raises:
            SilenceError: no line came for ``seconds``.
            FleetError: the worker has ended.
        """
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            raise SilenceError(f"{self._name}: no line for {seconds:g} s") from None
        if line is None:
            raise FleetError(f"{self._name} ended with code {self.process.wait()}")
        return line

    @property
    def _name(self) -> str:
        return f"worker {' '.join(map(str, self.process.args))}"  # type: ignore[arg-type]  # a list

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(json.loads(line))
        self._lines.put(None)


class Cluster:
    """Running servers and workers. The fleet that started the processes ends them."""

    def __init__(self, servers: Sequence[subprocess.Popen[str]], workers: Sequence[Worker]) -> None:
        self.servers = list(servers)
        self.workers = list(workers)
        for worker in workers:
            worker.take(START_SECONDS)

    def run(self, times: int, patience: float) -> list[list[Line]]:
        """Let every worker push and pull that often; returns the lines of each worker.

        Raises `FleetError` if a worker fails, or takes longer than ``patience`` seconds for one.
        """
        for worker in self.workers:
            worker.order(f"run {times}")
        return [[worker.take(patience) for _ in range(times)] for worker in self.workers]

    def check(self, patience: float) -> None:
        """Compare the table with all pushes. Raises `FleetError` if it is wrong."""
        for worker in self.workers:
            worker.order("check")
        for worker in self.workers:
            worker.take(patience)

    def server_cpu_seconds(self) -> float:
        return sum(cpu_seconds(server.pid, with_children=True) for server in self.servers)

    def worker_cpu_seconds(self) -> float:
        return sum(worker.cpu_seconds for worker in self.workers)
