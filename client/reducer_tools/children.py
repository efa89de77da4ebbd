"""Starts the worker processes of the tools, which end with their parent, and gathers their results.

A worker sends messages through its pipe. The last one is `Done` or `Failure`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from reducer.parent import die_with_parent

EXIT_SECONDS = 10.0
# Seconds after the first failure in which the other workers may report their failures.
_GRACE = 3.0

Worker = tuple[BaseProcess, Connection]


class WorkerError(RuntimeError):
    """A worker died or failed. The text names the rank and the cause."""


@dataclass(frozen=True)
class Done:
    """The last message of a worker, with its result."""

    value: Any = None


@dataclass(frozen=True)
class Failure:
    """Why a worker failed. ``follows``: it failed because another worker had ended."""

    text: str
    follows: bool = False


def preload(*modules: str) -> None:
    """Begin to import modules in a process from which `start_workers` can fork its workers.

    Only the main thread may call this.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(modules))
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process inherits this
    try:
        forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGINT, handler)


@contextmanager
def start_workers(
    main: Callable[..., None],
    arguments: Iterable[tuple[Any, ...]],
    *,
    duplex: bool = False,
    preloaded: bool = False,
) -> Generator[list[Worker]]:
    """Start a process for each of ``arguments``, with this process's end of its pipe.

    Each process calls ``main`` with its own end of the pipe and its arguments. It ends when this
    process ends in any way, and leaves Ctrl-C to it. After the block the processes have
    EXIT_SECONDS each to end; if the block raises, they have none. Then they are killed and reaped.

    ``preloaded``: the processes have the modules of `preload`, which are imported only once.
    """
    context: Any = multiprocessing.get_context("forkserver" if preloaded else "spawn")
    workers: list[Worker] = []
    try:
        for each in arguments:
            here, there = context.Pipe(duplex)
            process = context.Process(target=_work, args=(main, there, *each), daemon=True)
            process.start()
            there.close()
            workers.append((process, here))
        yield workers
        for worker, _ in workers:
            worker.join(EXIT_SECONDS)
    finally:
        for worker, connection in workers:
            worker.kill()
            worker.join()
            connection.close()


def _work(main: Callable[..., None], *arguments: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(os.getppid())  # the process of `preload`, if any, ends with its own parent
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():  # it ended before the call
        os._exit(1)
    main(*arguments)


def describe_exit(process: BaseProcess) -> str:
    """How a process ended too early, as the verb phrase after "the worker".

    Waits up to EXIT_SECONDS for the end of a process that has closed its pipe.
    """
    process.join(EXIT_SECONDS)
    code = process.exitcode
    if code is None:
        return "closed its pipe but did not end"
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with status {code} before it was done"


def collect(workers: Sequence[Worker], emit: Callable[[int, Any], None]) -> list[Any]:
    """Call ``emit`` with the rank of the sender and each message, until all workers are done.

    Returns:
        The values of their `Done`, by rank.

    Raises:
        WorkerError: a worker died or failed.
    """
    running = {connection: rank for rank, (_, connection) in enumerate(workers)}
    values: list[Any] = [None] * len(workers)
    failures: dict[int, Failure] = {}
    deadline: float | None = None
    while running:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = wait(list(running), left)
        if not ready:
            break
        for connection in ready:
            assert isinstance(connection, Connection)
            rank = running[connection]
            message = _receive(connection, workers[rank][0])
            if isinstance(message, Done):
                values[rank] = message.value
            elif isinstance(message, Failure):
                failures[rank] = message
                deadline = deadline or time.monotonic() + _GRACE
            else:
                emit(rank, message)
                continue
            del running[connection]
    if failures:
        raise WorkerError(_describe(failures))
    return values


def _receive(connection: Connection, process: BaseProcess) -> Any:
    """The next message of a worker, or a failure if the process has ended without one."""
    try:
        return connection.recv()
    except (EOFError, ConnectionError):
        return Failure(f"the worker (pid {process.pid}) {describe_exit(process)}")


def _describe(failures: dict[int, Failure]) -> str:
    """A text of the failures, by rank. Failures that follow from another rank's failure are left
    out, unless there are no others.
    """
    causes = {rank: f for rank, f in failures.items() if not f.follows} or failures
    ranks_by_text: dict[str, list[int]] = {}
    for rank, failure in sorted(causes.items()):
        ranks_by_text.setdefault(failure.text, []).append(rank)
    return "\n".join(
        f"rank {', '.join(map(str, ranks))}: {text}" for text, ranks in ranks_by_text.items()
    )
