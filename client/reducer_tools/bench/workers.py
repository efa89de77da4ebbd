"""Runs all ranks of a measurement as processes of this host."""

from __future__ import annotations

import traceback
from dataclasses import replace
from multiprocessing.connection import Connection

from reducer_client import PeerLostError, ReducerError
from reducer_client.config import Settings
from reducer_tools.bench.events import Event, Turn
from reducer_tools.bench.rank import Emit, measure
from reducer_tools.bench.sweep import Sweep
from reducer_tools.children import Done, Failure, collect, start_workers


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
        wrong: list[int] = collect(workers, lambda _, event: emit(event))
    return wrong[0]


def _work(connection: Connection, settings: Settings, sweep: Sweep, progress: bool) -> None:
    def emit(event: Event) -> None:
        if settings.rank == 0 and (progress or not isinstance(event, Turn)):
            connection.send(event)

    try:
        connection.send(Done(measure(settings, sweep, emit)))
    except (ReducerError, ValueError) as error:
        connection.send(Failure(str(error), isinstance(error, PeerLostError)))
    except Exception:
        connection.send(Failure(traceback.format_exc()))
