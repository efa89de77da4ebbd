"""A worker that sums over the reducers that its job finds; prints JSON lines.

    python -m tests.support.hosted_worker connect|torch SECONDS [TEXT]

The launcher's variables tell the rank. The worker prints a line when it has joined, and one at the
end. It sums until SECONDS have passed on rank 0, or until the client of rank 0 has logged TEXT;
"kill" on its standard input kills its hosted reducer.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import reducer_client
from reducer_client import Group, ReducerError

COUNT = 300_007
KEYS = ("a", "b")


def values(rank: int, turn: int) -> Any:
    rng = np.random.default_rng((rank, turn))
    return rng.standard_normal(COUNT, dtype=np.float32)


@contextlib.contextmanager
def joined(how: str) -> Iterator[Group]:
    if how == "connect":
        with reducer_client.connect() as group:
            yield group
        return
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("reducer")
    backend: Any = dist.group.WORLD
    try:
        yield backend.reducer_group
    finally:
        dist.destroy_process_group()


def main(how: str, seconds: float, text: str | None = None) -> None:
    logs: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logs.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("reducer_client").addHandler(handler)
    logging.getLogger("reducer_client").setLevel(logging.INFO)
    result: dict[str, Any] = {}
    try:
        with joined(how) as group:
            own = group.reducers_in_use.own
            say(
                joined=group.rank,
                addresses=group.settings.addresses,
                weights=group.settings.weights,
                hosted=len(group.reducers_in_use.hosted),
                local=group.stats()["local_connections"],
                pid=None if own is None else own.pid,
            )
            end = time.monotonic() + seconds
            result = train(group, lambda: time.monotonic() > end or said(text, logs))
            result["heard"] = said(text, logs)
    except (ReducerError, ValueError) as error:
        result = {"error": type(error).__name__, "text": str(error)}
    say(**result, logs=logs)


def said(text: str | None, logs: list[str]) -> bool:
    return text is not None and any(text in line for line in logs)


def train(group: Group, is_over: Callable[[], bool]) -> dict[str, Any]:
    """Sum until `is_over` on rank 0. All ranks return the same digest."""
    digest, turn = hashlib.blake2b(), 0
    slowest = 0.0
    while True:
        start = time.monotonic()
        works = [group.all_reduce(values(group.rank, turn), key=key) for key in KEYS]
        for work in works:
            result = work.wait(60)
            if turn < 3:
                digest.update(result.data)
        over = group.broadcast(np.array([is_over()]), 0, key="over")
        slowest = max(slowest, time.monotonic() - start)
        turn += 1
        if over.wait(60)[0] and turn >= 3:
            return {"digest": digest.hexdigest(), "turns": turn, "slowest": slowest}
        if select.select([sys.stdin], [], [], 0)[0] and sys.stdin.readline().strip() == "kill":
            own = group.reducers_in_use.own
            assert own is not None and own.pid is not None
            os.kill(own.pid, signal.SIGKILL)


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), *sys.argv[3:])
