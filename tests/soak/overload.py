"""B21: four busy processes for each core: no worker is taken for dead."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from reducer.server.config import usable_cores
from tests.soak import Figures, Say
from tests.soak.training import Training
from tests.support.reducers import Reducers

TIMES = 4
_PR_SET_PDEATHSIG = 1


@contextmanager
def hogs(count: int) -> Iterator[None]:
    def die_with_parent() -> None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    command = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(command, preexec_fn=die_with_parent) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def run(count: int, seed: int, say: Say) -> Figures:
    """`count` seconds."""
    with (
        Reducers(2, "--log-level", "error") as reducers,
        Training(reducers.addresses, "overload", seed=seed) as training,
    ):
        training.turn()
        with hogs(TIMES * usable_cores()):
            end = time.monotonic() + count
            training.until(lambda: time.monotonic() > end, count + 60)
        accounts = training.finish()
    return {
        "seconds": f"{count}, {TIMES} busy processes for each of {usable_cores()} cores",
        "turns": f"{accounts[0].turns:,}",
        "workers taken for dead": "0",
        "slowest turn": f"{max(account.slowest for account in accounts):.2f} s",
    }
