"""Runs all ranks of a measurement as processes of this host."""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from reducer_client import PeerLostError, ReducerError
from reducer_client.config import Settings
from reducer_tools.bench.events import Event, Turn
from reducer_tools.bench.rank import Emit, measure
from reducer_tools.bench.sweep import Sweep
from reducer_tools.children import Worker, describe_exit, start_workers

# Seconds after the first failure in which the other ranks may report their failures.
_GRACE = 3.0


class WorkerError(RuntimeError):
    """A worker died or failed. The text names the rank and the cause."""


@dataclass(frozen=True)
class _Failure:
    """Why a rank failed. ``follows``: it failed because another rank had ended."""

    text: str
    follows: bool = False


@dataclass(frozen=True)
class _Done:
    wrong: int


def run_workers(settings: Settings, sweep: Sweep, emit: Emit, progress: bool) -> int:
    """Measure with ``settings.world_size`` processes of this host; ``emit`` gets rank 0's events.

    All processes have ended when this returns or raises, also after Ctrl-C.

    Returns:
        The number of wrong elements over all ranks.

    Raises:
        WorkerError: a worker died or failed.
    """
    ranks = range(settings.world_size)
    arguments = [(replace(settings, rank=rank), sweep, progress) for rank in ranks]
    with start_workers(_work, arguments) as workers:
        return _collect(workers, emit)


def _work(connection: Connection, settings: Settings, sweep: Sweep, progress: bool) -> None:
    def emit(event: Event) -> None:
        if settings.rank == 0 and (progress or not isinstance(event, Turn)):
            connection.send(event)

    try:
        connection.send(_Done(measure(settings, sweep, emit)))
    except (ReducerError, ValueError) as error:
        connection.send(_Failure(str(error), isinstance(error, PeerLostError)))
    except Exception:
        connection.send(_Failure(traceback.format_exc()))


def _collect(workers: Sequence[Worker], emit: Emit) -> int:
    running = {connection: rank for rank, (_, connection) in enumerate(workers)}
    failures: dict[int, _Failure] = {}
    deadline: float | None = None
    wrong = 0
    while running:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = wait(list(running), left)
        if not ready:
            break
        for connection in ready:
            assert isinstance(connection, Connection)
            rank = running[connection]
            message = _receive(connection, workers[rank][0])
            if isinstance(message, _Done):
                wrong = message.wrong
            elif isinstance(message, _Failure):
                failures[rank] = message
                deadline = deadline or time.monotonic() + _GRACE
            else:
                emit(message)
                continue
            del running[connection]
    if failures:
        raise WorkerError(_describe(failures))
    return wrong


def _receive(connection: Connection, process: BaseProcess) -> Event | _Done | _Failure:
    """The next message of a worker, or a failure if the process has ended without one."""
    try:
        message: Event | _Done | _Failure = connection.recv()
    except (EOFError, ConnectionError):
        return _Failure(f"the worker (pid {process.pid}) {describe_exit(process)}")
    return message


def _describe(failures: dict[int, _Failure]) -> str:
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
