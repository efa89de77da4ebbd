"""A training of several worker processes of one side, whose workers are lost and replaced."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from bench.fleet import Fleet, FleetError, ThisMachine

HOST = "this machine"
PATIENCE = 180.0  # seconds; more than three of torchft's timeouts
Line = dict[str, Any]


class Contender(NamedTuple):
    """A side with its settings. ``silence`` is after how long a worker that is silent is lost."""

    side: str
    silence: float  # seconds
    timeout: float | None = None  # seconds; torchft's, of a collective and all else

    def __str__(self) -> str:
        waits = "" if self.timeout is None else f", timeout {self.timeout:g} s"
        return f"{self.side}, silence {self.silence:g} s{waits}"


class Loss(NamedTuple):
    """One worker that is lost: `kill` is SIGKILL, `stop` is SIGSTOP."""

    pause: float  # seconds of steps before it
    slot: int
    how: str


class Cost(NamedTuple):
    """What one loss and the worker that replaces the lost one cost; times in seconds."""

    how: str
    recovery: float  # until each other worker has ended a step without the lost worker
    dropped: int  # steps that another worker computed and whose gradients were not used
    join: float  # of the new worker, from ready to its first step with all
    stall: float  # longest time of another worker without a step, while the new worker joins


class Worker:
    """A process; ``lines`` grows as its lines come."""

    def __init__(self, fleet: Fleet, case: Mapping[str, Any], errors: Path) -> None:
        self.slot = case["slot"]
        self.lines: list[Line] = []
        self._errors = errors
        with errors.open("w") as file:
            self.process = fleet.start(
                HOST, [sys.executable, "-m", "bench.worker_loss.worker"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file,
            )  # fmt: skip
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(case) + "\n")
        self.process.stdin.close()
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def done(self) -> list[Line]:
        return [line for line in list(self.lines) if line.get("done")]

    def dropped(self, since: float) -> int:
        lines = list(self.lines)
        return sum(line.get("done") is False and line["at"] > since for line in lines)

    def lose(self, how: str) -> float:
        """The time of the loss."""
        at = time.monotonic()
        os.kill(self.process.pid, signal.SIGKILL if how == "kill" else signal.SIGSTOP)
        return at

    def end(self) -> None:
        self.process.kill()
        self.process.wait()

    def errors(self) -> str:
        return self._errors.read_text(errors="replace")[-2000:]

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(json.loads(line))


class Job:
    def __init__(self, fleet: Fleet, case: Mapping[str, Any], folder: Path, count: int) -> None:
        self._fleet, self._case, self._folder = fleet, case, folder
        self._started = 0
        self._ended = 0
        self.workers = [self._start(slot) for slot in range(count)]  # those that live, by slot
        self.all = list(self.workers)
        self._wait(lambda: all(len(w.done) > 5 for w in self.workers), "all workers make steps")

    def suffer(self, loss: Loss) -> Cost:
        """Lose a worker and replace it."""
        time.sleep(loss.pause)
        count = len(self.workers)
        lost = self.workers.pop(loss.slot)
        at = lost.lose(loss.how)
        without = self._wait_for_all(at, count - 1, "a step without the lost worker")
        lost.end()
        new = self._start(loss.slot)
        self.all.append(new)
        self._wait(lambda: any(line["event"] == "ready" for line in list(new.lines)), "ready")
        ready = new.lines[0]["at"]
        others = list(self.workers)
        self.workers.insert(loss.slot, new)
        self._wait_for_all(ready, count, "a step with the new worker")
        joined = _first(new, ready, count)
        ends = [[s["at"] for s in w.done if ready - 1 < s["at"]] for w in others]
        return Cost(
            loss.how, without - at, max(w.dropped(at) for w in others), joined - ready,
            max((b - a for times in ends for a, b in pairwise(times) if a < joined and b > ready),
                default=0.0),
        )  # fmt: skip

    def summary(self) -> str:
        """How many steps there were, their median time, and what went wrong."""
        by_step: dict[int, set[str]] = {}
        for worker in self.all:
            for step in worker.done:
                by_step.setdefault(step["step"], set()).add(step["digest"])
        differing = sum(len(digests) > 1 for digests in by_step.values())
        took = [b["at"] - a["at"] for w in self.all for a, b in pairwise(w.done)]
        return (
            f"{len(by_step):,} steps, median {statistics.median(took) * 1e3:.1f} ms, "
            f"{differing} with differing parameters; {self._ended} workers ended by themselves"
        )

    def _start(self, slot: int) -> Worker:
        self._started += 1
        errors = self._folder / f"worker{self._started}.log"
        return Worker(self._fleet, {**self._case, "slot": slot}, errors)

    def _wait_for_all(self, since: float, count: int, what: str) -> float:
        """The time at which each worker has ended a step of `count` workers."""
        self._wait(lambda: all(_first(w, since, count) for w in self.workers), what)
        return max(_first(w, since, count) for w in self.workers)

    def _wait(self, is_done: Callable[[], Any], what: str) -> None:
        """Wait until it is done. A worker that ends by itself is started again, and counted."""
        until = time.monotonic() + PATIENCE
        while not is_done():
            if time.monotonic() > until:
                raise FleetError(f"{what}: not in {PATIENCE:g} s: {self.workers[0].errors()}")
            for index, worker in enumerate(self.workers):
                if worker.process.poll() is None:
                    continue
                if not worker.done:
                    raise FleetError(f"{what}: a worker made no step: {worker.errors()}")
                self._ended += 1
                self.workers[index] = self._start(worker.slot)
                self.all.append(self.workers[index])
            time.sleep(0.02)


def _first(worker: Worker, since: float, count: int) -> float:
    """When the worker first ended a step of `count` workers after `since`; 0 if it has not."""
    first = 0.0
    for line in reversed(list(worker.lines)):
        if line["at"] <= since:
            break
        if line.get("done") and line["workers"] == count:
            first = line["at"]
    return first


@contextmanager
def start(contender: Contender, count: int, width: int) -> Iterator[Job]:
    """A job with its reducers, or with its lighthouse."""
    case = {
        "side": contender.side, "workers": count, "width": width,
        "silence": contender.silence, "timeout": contender.timeout,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as name, Fleet(ThisMachine()) as fleet:
        folder = Path(name)
        if contender.side == "torchft":
            with _lighthouse(contender) as address:
                yield Job(fleet, {**case, "lighthouse": address}, folder, count)
        else:
            addresses = fleet.start_reducers([HOST], "--registry", str(folder / "registry"))
            addresses += fleet.start_reducers([HOST])
            yield Job(fleet, {**case, "addresses": addresses}, folder, count)


@contextmanager
def _lighthouse(contender: Contender) -> Iterator[str]:
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(
        bind="[::]:0", min_replicas=1, join_timeout_ms=10_000, quorum_tick_ms=100,
        heartbeat_timeout_ms=round(contender.silence * 1e3),
    )  # fmt: skip
    try:
        yield server.address()
    finally:
        server.shutdown()
