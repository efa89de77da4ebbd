"""One worker of `bench.ps throughput` and `bench.ps failover` on our side.

The worker reads its setup, prints a line when it has the table, and takes the orders of
`bench/ps/pslite/pushpull.cc`:

    run N    N times: push everything and pull everything; prints a line of JSON for each time
    push N   N times: push everything, and wait for the receipt; the same lines
    check    pulls, and compares with what all workers have pushed if each has taken the same orders

Every push of every worker has the same numbers, so the table after n pushes does not depend on
their order, and NumPy's kernels tell every bit of it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from reducer.kernels import load
from reducer.optimizers import SGD
from reducer.parent import die_with_parent
from reducer_client.tables import parameter_server

Array = npt.NDArray[np.float32]
PERIOD = 97


def main() -> None:
    die_with_parent(os.getppid())
    setup = json.loads(sys.stdin.readline())
    optimizer = SGD(0.01, convention="torch", momentum=setup["momentum"])
    pulled = np.zeros(setup["bytes"] // 4, np.float32)
    expected = Expected(optimizer)
    with parameter_server(
        setup["addresses"],
        job="bench",
        worker=setup["worker"],
        workers=setup["workers"],
        **setup["server"],
    ) as server:
        table = server.table("net", {"x": pulled}, optimizer=optimizer, mode="async")
        pushed = np.resize(expected.gradient, pulled.size)
        say(ready=True)
        for line in sys.stdin:
            order, *times = line.split()
            if order == "check":
                table.pull(out={"x": pulled})
                expected.compare(pulled)
                say(checked=True)
                continue
            for _ in range(int(times[0])):
                push(table, pushed, pulled if order == "run" else None)
            expected.apply(int(times[0]) * setup["workers"])


def push(table: Any, pushed: Array, pulled: Array | None) -> None:
    """Push, pull if there is an array for it, and wait for the receipt."""
    begun = time.monotonic()
    push = table.push({"x": pushed}, copy=False)  # as ps-lite's ZPush
    moved = pushed.nbytes
    if pulled is not None:
        table.pull(out={"x": pulled})
        moved += pulled.nbytes
    push.wait()
    at = time.monotonic()
    say(seconds=at - begun, bytes=moved, begun=begun, at=at)


def say(**line: object) -> None:
    print(json.dumps(line), flush=True)


class Expected:
    """The expected table after some pushes. The gradient repeats with PERIOD, so the table does."""

    def __init__(self, optimizer: SGD) -> None:
        self.gradient: Array = np.arange(1, PERIOD + 1, dtype=np.float32)
        self._optimizer = optimizer
        self._kernels = load("numpy")
        self._values = np.zeros(PERIOD, np.float32)
        self._slots = [np.full(PERIOD, slot.initial, np.float32) for slot in optimizer.slots]
        self._step = 0

    def apply(self, pushes: int) -> None:
        slots = [slot.data for slot in self._slots]
        for _ in range(pushes):
            self._step += 1
            scalars = self._optimizer.scalars(self._step)
            self._kernels.apply(
                self._optimizer.rule,
                PERIOD,
                self._values.data,
                self.gradient.data,
                slots,
                scalars,
            )

    def compare(self, pulled: Array) -> None:
        """Raises `SystemExit` unless the bits are equal."""
        expected = np.resize(self._values, pulled.size)
        wrong = np.flatnonzero(expected.view(np.uint32) != pulled.view(np.uint32))
        if wrong.size:
            first = wrong[0]
            raise SystemExit(
                f"{wrong.size} of {pulled.size} elements are wrong after {self._step} pushes; "
                f"element {first}: expected {expected[first]}, got {pulled[first]}"
            )


if __name__ == "__main__":
    main()
