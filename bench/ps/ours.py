"""Starts our parameter server: `reducer serve` and the workers of `bench.ps.worker`."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.fleet import Fleet, FleetError
from bench.ps.cluster import HOST, Case, Cluster, Worker


class Reducer:
    """`reducer serve` on a port that stays the same when the reducer is started again."""

    def __init__(self, fleet: Fleet, lanes: int, registry: Path | None = None) -> None:
        self._fleet = fleet
        self._lanes = str(lanes)
        self._options = ["--registry", str(registry)] if registry else []
        self._port = 0
        self.process = self._start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()

    def restart(self) -> None:
        """Start the killed reducer again; returns once it accepts."""
        self.process.wait()
        self.process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "reducer", "serve", "--host", "127.0.0.1", "--insecure"]
        command += ["--lanes", self._lanes, "--port", str(self._port), "--metrics-port", "0"]
        command += ["--log-level", "warning", *self._options]
        process = self._fleet.start(HOST, command, stdout=subprocess.PIPE)
        line = process.stdout.readline() if process.stdout else ""
        if not line:
            raise FleetError(f"the reducer at {self.address} did not start")
        self._port = json.loads(line)["port"]
        return process


def start_ours(fleet: Fleet, case: Case) -> Cluster:
    """Reducers without backups, and the workers."""
    return _start(fleet, case, [Reducer(fleet, case.lanes) for _ in range(case.servers)], {})


@contextmanager
def start_with_backup(fleet: Fleet, case: Case) -> Iterator[tuple[Cluster, list[Reducer]]]:
    """At least two reducers, with one backup of each part of the table, and the workers.

    The registry is at one more reducer, which is not in the list and holds no part of the table.
    """
    with tempfile.TemporaryDirectory() as folder:
        registry = Reducer(fleet, 1, Path(folder) / "registry")
        reducers = [Reducer(fleet, case.lanes) for _ in range(max(2, case.servers))]
        server = {"registry": registry.address, "replicas": 1}
        yield _start(fleet, case, reducers, server), reducers


def _start(
    fleet: Fleet, case: Case, reducers: Sequence[Reducer], server: Mapping[str, object]
) -> Cluster:
    """``server``: further arguments of `parameter_server`."""
    setup = {
        "addresses": [reducer.address for reducer in reducers],
        "workers": case.workers,
        "bytes": case.bytes,
        "momentum": case.momentum,
        "server": server,
    }
    workers = [_start_worker(fleet, {**setup, "worker": number}) for number in range(case.workers)]
    return Cluster([reducer.process for reducer in reducers], workers)


def _start_worker(fleet: Fleet, setup: dict[str, object]) -> Worker:
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "bench.ps.worker"]
    worker = Worker(fleet.start(HOST, command, stdin=pipe, stdout=pipe))
    worker.order(json.dumps(setup))
    return worker
