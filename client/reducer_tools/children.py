"""Starts the worker processes of the tools, which end with their parent."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from reducer.parent import die_with_parent

EXIT_SECONDS = 10.0

Worker = tuple[BaseProcess, Connection]


@contextmanager
def start_workers(
    main: Callable[..., None], arguments: Iterable[tuple[Any, ...]], *, duplex: bool = False
) -> Generator[list[Worker]]:
    """Start a process for each of ``arguments``, with this process's end of its pipe.

    Each process calls ``main`` with its own end of the pipe and its arguments. It ends when this
    process ends in any way, and leaves Ctrl-C to it. After the block the processes have
    EXIT_SECONDS each to end; if the block raises, they have none. Then they are killed and reaped.
    """
    context = multiprocessing.get_context("spawn")
    workers: list[Worker] = []
    try:
        for each in arguments:
            here, there = context.Pipe(duplex)
            process = context.Process(
                target=_work, args=(os.getpid(), main, there, *each), daemon=True
            )
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


def _work(parent: int, main: Callable[..., None], *arguments: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(parent)
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
