"""Two tables of a job on a real daemon: one of mode async, and one with steps without worker 2."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from reducer.wire.table_messages import TableCall
from tests.support.table_worker import TableWorker, describe
from tests.support.wire_lane import WireLane

WORKERS = 3
STEPS = 4
SILENCE_MS = 120_000  # longer than a test: the workers send no heartbeats
COUNT, SHARDS = 40, 3  # of each table
NET = replace(describe(mode="step", bound=99, workers=WORKERS, quorum=2), name="net")
ASYNC = replace(describe(mode="async"), name="async")
_ONES = np.ones(COUNT, np.float32)


@contextmanager
def tables(port: int, job: str) -> Iterator[list[TableWorker]]:
    """The workers, after some steps and updates; step STEPS + 1 waits for workers 1 and 2."""
    lane = WireLane(port)
    workers = [
        TableWorker(lane, number, job=job, silence_ms=SILENCE_MS) for number in range(WORKERS)
    ]
    try:
        _work(workers)
        yield workers
        for description in (ASYNC, NET):
            workers[0].call(TableCall("drop", name=description.name))
        workers[0].read()
    finally:
        for worker in workers:
            worker.lose()


def _work(workers: list[TableWorker]) -> None:
    for description in (ASYNC, NET):
        for worker in workers:
            worker.table(description)
            worker.values(_ONES)
            worker.read()
        if description is ASYNC:
            for worker in workers:
                worker.push_all(_ONES, 1)
                worker.read()
            workers[0].pull_all()
    for step in range(1, STEPS + 1):
        for worker in workers[:2]:
            enter(worker, step)
        workers[0].step_call("folded", step)
        workers[0].read()
    enter(workers[0], STEPS + 1)


def enter(worker: TableWorker, step: int) -> None:
    """Enter the step. Steps up to STEPS get a contribution, too."""
    worker.step_call("enter", step, weight=1)
    worker.read()
    if step <= STEPS:
        worker.push_all(_ONES, step)
        worker.read()
