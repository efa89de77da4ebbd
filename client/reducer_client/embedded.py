"""Embedded reducers on loopback, for notebooks, tests and first steps."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager

from reducer_client.config.hosting import daemon_environment
from reducer_client.errors import of_hosted
from reducer_client.hosted.child_daemon import ChildDaemon
from reducer_client.reports import logger


@contextmanager
def local_reducers(
    count: int = 1,
    *,
    lanes: int = 1,
    memory: str = "1GiB",
    congestion: str = "",
    key_file: str | None = None,
    start_timeout: float = 30.0,
) -> Generator[list[str]]:
    """Start reducers on 127.0.0.1 and yield their addresses. The reducers end with the block.

    The reducers also end when this process ends in any way, or the thread that entered the block.

    Args:
        count: number of reducers.
        lanes: lane processes of each reducer.
        memory: memory budget of each reducer, as for ``reducer serve --memory``.
        congestion: TCP congestion control of each reducer; "" means the system's.
        key_file: file with the key of the reducers, as for ``connect``. By default
            ``REDUCER_KEY_FILE``.
        start_timeout: seconds within which all reducers must accept connections.

    Raises:
        ValueError: ``count`` is below 1.
        ReducerUnavailableError: a reducer did not start. The text has the end of its log.
    """
    if count < 1:
        raise ValueError(f"count={count}: expected at least 1 reducer")
    with ExitStack() as stack:
        options = ["--lanes", str(lanes), "--memory", memory, "--congestion", congestion]
        options += [] if key_file is None else ["--key-file", key_file]
        daemons = [stack.enter_context(_on_loopback(options)) for _ in range(count)]
        deadline = time.monotonic() + start_timeout
        with of_hosted():
            addresses = [daemon.wait_ready(deadline) for daemon in daemons]
        yield addresses


@contextmanager
def _on_loopback(options: Sequence[str]) -> Generator[ChildDaemon]:
    anywhere = ["--host", "127.0.0.1", "--port", "0", "--metrics-port", "0"]
    daemon = ChildDaemon([*anywhere, *options], daemon_environment())
    try:
        yield daemon
        if code := daemon.status():
            logger.warning("a local reducer ended with %d:\n%s", code, daemon.log_tail())
    finally:
        daemon.stop()
