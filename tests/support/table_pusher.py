"""A worker process that pushes integers to a table with backups, until a file says stop.

python -m tests.support.table_pusher ADDRESSES REGISTRY JOB WORKER STOP

Prints a line of JSON for each receipt: the seed of the gradient, the outcome, and the times when
the push was begun and answered.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from pathlib import Path

import reducer_client
from reducer_client.tables import Push, Table
from tests.support.tables import LEDGER, integers, zeros

SEEDS = 1_000_000  # of each worker
IN_FLIGHT = 4


def tell(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def answer(waiting: deque[tuple[int, float, Push]]) -> None:
    seed, begun, push = waiting.popleft()
    receipt = push.wait()
    tell(seed=seed, outcome=receipt.outcome, begun=begun, answered=time.monotonic())


def push_until(table: Table, worker: int, stop: Path) -> None:
    waiting: deque[tuple[int, float, Push]] = deque()
    seed = worker * SEEDS
    while not stop.exists():
        waiting.append((seed, time.monotonic(), table.push(integers(seed))))
        seed += 1
        if len(waiting) >= IN_FLIGHT:
            answer(waiting)
        if seed % 16 == 0:
            table.pull()
    while waiting:
        answer(waiting)


def main() -> int:
    addresses, registry, job, worker, stop = sys.argv[1:]
    with reducer_client.parameter_server(
        addresses, job=job, worker=int(worker), replicas=1, registry=registry, timeout=60.0
    ) as ps:
        table = ps.table("net", zeros(), optimizer=LEDGER)
        tell(ready=True)
        push_until(table, int(worker), Path(stop))
    return 0


if __name__ == "__main__":
    sys.exit(main())
