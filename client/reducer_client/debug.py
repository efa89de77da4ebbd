"""``REDUCER_DEBUG``: log lines of a worker on stderr, in the form of a reducer's lines.

Without the variable, all records go to the loggers ``reducer_client`` and ``reducer_client.*``, and
the program decides how to handle them.
"""

from __future__ import annotations

import logging
import os
import socket
from typing import TYPE_CHECKING

from reducer import __version__, log
from reducer.version import PROTOCOL_VERSION
from reducer_client.config import Settings, resolve_debug
from reducer_client.hosted.reducers import Reducers

if TYPE_CHECKING:
    from reducer_client.engine import Engine

ROOT = "reducer_client"
join_logger = logging.getLogger(f"{ROOT}.join")
rounds_logger = logging.getLogger(f"{ROOT}.rounds")

_handler: logging.Handler | None = None


def follow_environment() -> None:
    """Do what REDUCER_DEBUG asks for. Raises ValueError for a bad value."""
    wanted = resolve_debug()
    if wanted is not None:
        set_up(*wanted)


def set_up(wanted: log.Debug, form: str) -> None:
    """Write the records to stderr only. Further calls add no second handler."""
    global _handler
    logger = logging.getLogger(ROOT)
    if _handler is None:
        _handler = logging.StreamHandler()
        logger.addHandler(_handler)
        logger.propagate = False
    context = {"host": socket.gethostname(), "pid": os.getpid()}
    _handler.setFormatter(log.formatter(form, context))
    wanted.apply(ROOT)


def about(settings: Settings) -> dict[str, object]:
    """The fields that every log record of a group has."""
    return {"job": settings.job, "rank": settings.rank}


def joined(settings: Settings, engine: Engine, mode: str, reducers: Reducers) -> None:
    """Log the group's release, reducers, connections, mode and chunks in one line.

    ``mode`` is the security mode of the dedicated reducers.
    """
    hosted = len(reducers.hosted)
    if hosted:
        of_hosted = "psk" if reducers.key else "open"
        all_hosted = hosted == len(settings.addresses)
        mode = of_hosted if all_hosted else f"{mode}, the last {hosted} hosted and {of_hosted}"
    chunks = ", ".join(f"{chunk} B from {least} B" for least, chunk in settings.chunk_table)
    join_logger.info(
        "open-reduction-server %s, protocol %s: rank %d of %d in run %s on %s; %d connections, "
        "%d of them over Unix sockets, mode %s; chunks of %s",
        *(__version__, PROTOCOL_VERSION, settings.rank, settings.world_size),
        *(engine.run_id, ", ".join(settings.addresses), engine.connections),
        *(engine.local_connections, mode, chunks),
        extra={"about": {**about(settings), "run": engine.run_id}},
    )
