"""B21: four busy processes for each core: no worker is taken for dead."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from reducer.cores import usable_cores
from reducer.parent import die_with_parent
from tests.soak import Figures, Say
from tests.soak.training import Training
from tests.support.reducers import Reducers

TIMES = 4


@contextmanager
def hogs(count: int) -> Iterator[None]:
    stay = partial(die_with_parent, os.getpid())
    command = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(command, preexec_fn=stay) for _ in range(count)]
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
