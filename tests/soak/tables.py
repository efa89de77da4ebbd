"""Reducers that hold tables with backups are killed while workers push and connections are cut.

At the end the parameters are, to the unit, the ledger: the sum of all updates that were pushed,
each of which was answered as applied.
"""

from __future__ import annotations

import functools
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import reducer_client
from reducer_client.registry.daemon import DaemonRegistry
from tests.soak import Figures, Say, milliseconds
from tests.support.cluster import ROOT, Daemon, environment
from tests.support.harms import Storm
from tests.support.proxy import Proxies
from tests.support.reducers import Reducers
from tests.support.table_places import Places
from tests.support.tables import flat, integers, ledger, zeros
from tests.support.wait import wait_until

WORKERS = 4
REDUCERS = 3
SECONDS = 60.0
CUTS = 0.0005  # of all frames end their connection
JOB = "soak-tables"


class Pusher:
    """One worker process, and the receipts that it has told so far."""

    def __init__(self, addresses: list[str], registry: str, worker: int, stop: Path) -> None:
        self.receipts: list[dict[str, Any]] = []
        self.is_ready = False
        self._worker = worker
        arguments = [",".join(addresses), registry, JOB, str(worker), str(stop)]
        self._process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-m", "tests.support.table_pusher", *arguments],
            cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            if "ready" in told:
                self.is_ready = True
            else:
                self.receipts.append(told)

    def end(self) -> None:
        """Wait for the end. AssertionError with what the process has written if it has failed."""
        try:
            assert self._process.stderr is not None
            errors = self._process.stderr.read()
            status = self._process.wait(SECONDS)
        except BaseException:
            self._process.kill()
            raise
        self._reader.join()
        assert status == 0, errors

    def kill(self) -> str:
        """End the process. Returns how it stood, and what it has written."""
        status = self._process.poll()
        self._process.send_signal(signal.SIGABRT)  # faulthandler writes the stacks
        self._process.wait()
        self._reader.join()
        assert self._process.stderr is not None
        state = "ran" if status is None else f"had ended with {status}"
        return f"worker {self._worker} {state}: {self._process.stderr.read()}"


@contextmanager
def _pushers(addresses: list[str], registry: str, stop: Path) -> Iterator[list[Pusher]]:
    pushers = [Pusher(addresses, registry, worker, stop) for worker in range(WORKERS)]
    try:
        yield pushers
    except BaseException:
        for pusher in pushers:
            sys.stderr.write(pusher.kill())
        raise


def _first_after(pushers: list[Pusher], dead: float) -> float:
    """When the first receipt came of a push that was begun after this time; 0: none yet."""
    answered = [
        receipt["answered"]
        for pusher in pushers
        for receipt in pusher.receipts[-200:]
        if receipt["begun"] > dead
    ]
    return min(answered, default=0.0)


def run(count: int, seed: int, say: Say) -> Figures:
    """`count` reducers that have partitions are killed, each when all have a full backup again."""
    rng = random.Random(seed)
    took: list[float] = []
    refills: list[float] = []
    storm = Storm(seed, CUTS, ("cut", "end"))
    with (
        tempfile.TemporaryDirectory() as folder,
        Daemon("--registry", str(Path(folder, "registry"))) as keeper,
        Reducers(REDUCERS) as reducers,
        Proxies(reducers.addresses, storm, framed=True) as proxies,
    ):
        stop = Path(folder, "stop")
        registry = DaemonRegistry(keeper.address, JOB)
        places = Places(registry, JOB, reducers.addresses)
        with _pushers(proxies.addresses, keeper.address, stop) as pushers:
            wait_until(lambda: all(p.is_ready for p in pushers), SECONDS, "all workers")
            storm.active = True
            started = 0.0  # when the last victim was started again
            for number in range(count):
                wait_until(places.have_backups, SECONDS, "a full backup everywhere")
                if started:
                    refills.append(time.monotonic() - started)
                victim = rng.choice(places.used())
                before = places.entries
                killed = time.monotonic()
                reducers.kill(victim)
                first = functools.partial(_first_after, pushers, time.monotonic())
                try:
                    took.append(wait_until(first, SECONDS, "a receipt") - killed)
                except AssertionError:
                    say(f"reducer {victim} was killed. Before: {before}. Now: {places.entries}")
                    raise
                started = time.monotonic()
                reducers.start(victim)
                places.started(victim)
                say(f"kill {number + 1} of {count}: {1e3 * took[-1]:.0f} ms to the next receipt")
            storm.active = False
            stop.touch()
            for pusher in pushers:
                pusher.end()
        registry.close()
        receipts = [receipt for pusher in pushers for receipt in pusher.receipts]
        assert {receipt["outcome"] for receipt in receipts} == {"applied"}
        expected = ledger(zeros(), (integers(int(receipt["seed"])) for receipt in receipts))
        with reducer_client.parameter_server(
            proxies.addresses, job=JOB, reader=True, replicas=1, registry=keeper.address
        ) as ps:
            assert np.array_equal(flat(ps.attach("net").pull()), expected)
    return {
        "kill to the next receipt": milliseconds(took),
        "restart to full backups": milliseconds(refills),
        "pushes, all in the ledger": f"{len(receipts):,}",
        "connections cut": f"{storm.done['cut'] + storm.done['end']:,}",
        "lost or doubled": "0",
    }
