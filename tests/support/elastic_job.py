"""An elastic job of real processes: reducers, one of them with a registry, and workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.cluster import Daemon, environment
from tests.support.ports import free_ports
from tests.support.router import Router

ENDLESS = 1 << 40  # steps of a worker that is ended
# Seconds after each step of a worker without an end. With less, such workers take the cores from
# the workers that a test waits for.
SLOW = 0.05
PATIENCE = 60.0


class ElasticWorker:
    """One process of a program of `tests.support`; its lines are read from a file."""

    def __init__(self, folder: Path, name: int, program: str, options: dict[str, Any]) -> None:
        self.name = name
        self._said: list[dict[str, Any]] = []
        self._read = 0
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"tests.support.{program}", json.dumps(options)],
                stdout=out, stderr=err, env=environment(),
            )  # fmt: skip

    @property
    def said(self) -> list[dict[str, Any]]:
        with self._out.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]  # the last line may be half of one
        self._read += len(whole)
        self._said += [json.loads(line) for line in whole.splitlines()]
        return self._said

    @property
    def errors(self) -> str:
        return self._err.read_text() + str([s for s in self.said if s["event"] == "error"])

    def first(self, event: str) -> dict[str, Any]:
        return next(each for each in self.said if each["event"] == event)

    @property
    def steps(self) -> list[dict[str, Any]]:
        return [each for each in self.said if each["event"] == "step"]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def end(self) -> None:
        """End the process, whatever its state."""
        if self.process.poll() is None:
            self.go_on()
            self.kill()

    def wait(self) -> int:
        return self.process.wait(PATIENCE)


class ElasticJob:
    """Reducer 0 keeps the registry. The context manager ends all that still runs."""

    def __init__(
        self, folder: Path, reducers: int = 2, worker_silence: float = 5.0,
        router: Router | None = None, program: str = "elastic_worker",
    ) -> None:  # fmt: skip
        """With a router of hosts w0, w1 ... and r0, r1 ..., each process has its own network."""
        self.folder = folder
        self.silence = worker_silence
        self.router = router
        self._program = program
        self.ports = free_ports(reducers)
        self.addresses = [
            f"{'127.0.0.1' if router is None else router.address(f'r{n}')}:{port}"
            for n, port in enumerate(self.ports)
        ]
        self.daemons = [self._daemon(number) for number in range(reducers)]
        self.workers: list[ElasticWorker] = []

    def _daemon(self, number: int) -> Daemon:
        host = self.addresses[number].rpartition(":")[0]
        options = ["--host", host, "--insecure", "--port", str(self.ports[number])]
        if number == 0:
            options += ["--registry", str(self.folder / "registry")]
        prefix = () if self.router is None else self.router.command(f"r{number}", [])
        return Daemon(*options, prefix=prefix)

    def restart_registry(self, lose: bool = False) -> None:
        """Start reducer 0 again after `kill_registry`."""
        if lose:
            (self.folder / "registry").unlink()
        self.daemons[0] = self._daemon(0)

    def kill_registry(self) -> None:
        self.daemons[0].kill()

    def start(self, name: int, **options: Any) -> ElasticWorker:
        worker = ElasticWorker(self.folder, name, self._program, {
            "addresses": self.addresses, "job": "elastic", "name": name, "pause": 0.01,
            "join_timeout": 40.0, "worker_silence": self.silence, **options,
        })  # fmt: skip
        self.workers.append(worker)
        return worker

    def wait_until(self, done: Any, what: str) -> None:
        until = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < until, what + "".join(w.errors for w in self.workers)
            time.sleep(0.02)

    def wait_for_step(self, workers: list[ElasticWorker], step: int) -> None:
        self.wait_until(
            lambda: all(w.steps and w.steps[-1]["step"] >= step for w in workers),
            f"no step {step} in time",
        )

    def wait_for_members(self, worker: ElasticWorker, count: int) -> None:
        """Wait for a step whose sums hold the contributions of `count` workers alone."""
        self.wait_until(
            lambda: worker.steps and {n for _, n in worker.steps[-1]["ledgers"][0]} == {count},
            f"no sum of {count} workers in time",
        )

    def check(self) -> None:
        """Every sum is that of its ledger, and equal steps have equal bits and ledgers."""
        by_step: dict[tuple[int, int], list[dict[str, Any]]] = {}
        for worker in self.workers:
            for step in worker.steps:
                assert step["exact"], (worker.name, step)
                by_step.setdefault((step["era"], step["step"]), []).append(step)
        for at, steps in by_step.items():
            assert len({step["digest"] for step in steps}) == 1, (at, steps)
            assert len({json.dumps(step["ledgers"]) for step in steps}) == 1, (at, steps)

    def __enter__(self) -> ElasticJob:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self.workers:
            worker.end()
        for daemon in self.daemons:
            daemon.stop()
