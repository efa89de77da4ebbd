"""Embedded reducers on loopback, for notebooks, tests and first steps."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import IO, Any

from reducer_client.config import daemon_environment
from reducer_client.errors import ReducerUnavailableError
from reducer_client.reports import logger

# Runs in the child before the daemon, so that the child ends with its parent even after kill -9.
# (A preexec_fn would be unsafe in a process with threads.)
_BOOT = """
import runpy, sys
from reducer.parent import die_with_parent
die_with_parent(int(sys.argv[1]))
sys.argv = ["reducer", *sys.argv[2:]]
runpy.run_module("reducer", run_name="__main__", alter_sys=True)
"""
_STOP_TIMEOUT = 5.0
_SHOWN = 4000


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
        daemons = [stack.enter_context(_Daemon(options)) for _ in range(count)]
        deadline = time.monotonic() + start_timeout
        yield [daemon.wait_ready(deadline) for daemon in daemons]


class _Daemon:
    """One ``reducer serve`` process, with its log in a temporary file."""

    def __init__(self, options: list[str]) -> None:
        self._options = [
            "serve",
            *("--host", "127.0.0.1"),
            *("--port", "0"),
            *("--metrics-port", "0"),
            *options,
        ]

    def __enter__(self) -> _Daemon:
        self._log: IO[bytes] = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, str(os.getpid()), *self._options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=daemon_environment(),
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        ended_early = self._process.poll() if kind is None else None
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if ended_early:
            logger.warning("a local reducer ended with %d:\n%s", ended_early, self._log_tail())
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()

    def wait_ready(self, deadline: float) -> str:
        """Wait until the reducer accepts connections and return its address.

        Raises ReducerUnavailableError with the end of the log if the reducer is not ready at the
        deadline or has ended.
        """
        ready = self._read_ready_line(deadline)
        try:
            event: dict[str, Any] = json.loads(ready)
            return f"{event['host']}:{event['port']}"
        except (ValueError, KeyError, TypeError):
            code = self._process.poll()
            late = "was not ready in time (start_timeout; is the machine overloaded?)"
            state = late if code is None else f"ended with code {code}"
            raise ReducerUnavailableError(
                f"a local reducer {state}: reducer {' '.join(self._options)}\n{self._log_tail()}"
            ) from None

    def _read_ready_line(self, deadline: float) -> bytes:
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        readable = select.poll()
        readable.register(fd, select.POLLIN)
        line = b""
        while not line.endswith(b"\n"):
            left = max(0.0, deadline - time.monotonic())
            if not readable.poll(left * 1000):
                return line
            piece = os.read(fd, 4096)
            if not piece:
                self._process.wait(_STOP_TIMEOUT)
                return line
            line += piece
        return line

    def _log_tail(self) -> str:
        self._log.seek(0)
        return self._log.read()[-_SHOWN:].decode(errors="replace").strip()
