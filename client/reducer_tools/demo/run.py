"""Runs the demo: starts reducers and workers, shows progress and prints the report."""

from __future__ import annotations

import sys
import tempfile
from multiprocessing.connection import Connection, wait
from pathlib import Path

import numpy as np

from reducer_client.embedded import local_reducers
from reducer_tools.children import Worker, start_workers
from reducer_tools.demo import report
from reducer_tools.demo.display import Display, open_display
from reducer_tools.demo.messages import RUNS, Failure, Progress, RunResult, WorkerSettings


class DemoError(RuntimeError):
    """A worker failed. The text has its traceback."""


def run(out: Path, *, workers: int = 4, reducers: int = 2, epochs: int = 15) -> int:
    """Train over the reducers, then over gloo; print a table and draw the losses into ``out``.

    Returns:
        The exit code: 0 if all ranks hold the same parameters, bit for bit, and the accuracy is at
        most ACCURACY_TOLERANCE below gloo's.

    Raises:
        DemoError: a worker failed.
    """
    with local_reducers(reducers) as addresses, tempfile.TemporaryDirectory() as folder:
        print(f"{reducers} reducers at {', '.join(addresses)}; {workers} DDP workers", flush=True)
        _save_digits(Path(folder))
        arguments = [
            (WorkerSettings(rank, workers, addresses, folder, epochs),) for rank in range(workers)
        ]
        with (
            start_workers(_work, arguments) as started,
            open_display(sys.stdout, RUNS, epochs) as display,
        ):
            results = _collect(started, display)
    return _show(results, out)


def _work(connection: Connection, settings: WorkerSettings) -> None:
    from reducer_tools.demo.worker import main  # imports torch, which only workers need

    main(settings, connection)


def _save_digits(folder: Path) -> None:
    """Write scikit-learn's 1,797 handwritten digits to a file for the workers."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    np.savez(folder / "digits.npz", images=digits.images, labels=digits.target)


def _collect(started: list[Worker], display: Display) -> dict[str, list[RunResult]]:
    results: dict[str, list[RunResult]] = {run: [] for run in RUNS}
    reading = {connection: rank for rank, (_, connection) in enumerate(started)}
    missing = len(RUNS) * len(started)
    while missing:
        for ready in wait(list(reading)):
            assert isinstance(ready, Connection)
            try:
                message = ready.recv()
            except EOFError:
                raise DemoError(f"worker {reading[ready]} ended without a result") from None
            if isinstance(message, Progress):
                display.show(message)
            elif isinstance(message, RunResult):
                results[message.run].append(message)
                missing -= 1
                if message.run == RUNS[-1]:
                    del reading[ready]  # the worker ends after its last run
            elif isinstance(message, Failure):
                raise DemoError(f"worker {message.rank} failed:\n{message.text}")
    return {run: sorted(ranks, key=lambda r: r.rank) for run, ranks in results.items()}


def _show(results: dict[str, list[RunResult]], out: Path) -> int:
    picture = out / "loss.png"
    report.draw_losses(results, picture)
    print(f"\n{report.format_table(results)}\n")
    print(f"loss curves: {picture}")
    faults = report.find_faults(results)
    for fault in faults:
        print(f"FAILED: {fault}")
    if not faults:
        first = results[RUNS[0]][0]
        print(
            f"all {len(results[RUNS[0]])} workers hold the same parameters, bit for bit "
            f"(sha256 {first.digest[:16]})"
        )
    return 1 if faults else 0
