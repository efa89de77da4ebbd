"""One ``reducer serve`` process that ends with the thread that started it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from reducer.cluster.addresses import join_address
from reducer_client.hosted.failures import NotStartedError

# Runs in the child before the daemon, so that the child ends with its parent even after kill -9.
# (A preexec_fn would be unsafe in a process with threads.)
_BOOT = """
import runpy, sys
from reducer.parent import die_with_parent
die_with_parent(int(sys.argv[1]))
sys.argv = ["reducer", *sys.argv[2:]]
runpy.run_module("reducer", run_name="__main__", alter_sys=True)
"""
STOP_SECONDS = 5.0
_SHOWN = 4000


class ChildDaemon:
    """The process, with its log in memory.

    The process also ends when this process ends in any way, or the thread that made the object.

    Args:
        options: the arguments of ``reducer serve``.
        environment: the process's environment.
        descriptors: file descriptors that the process inherits.
        own_session: whether signals to this program's group, such as Ctrl-C, do not reach the
            process.

    Raises NotStartedError if the system cannot start a process.
    """

    def __init__(
        self,
        options: Sequence[str],
        environment: Mapping[str, str],
        descriptors: Sequence[int] = (),
        own_session: bool = False,
    ) -> None:
        self._options = ["serve", *options]
        # In memory: a container may have no directory that can be written to.
        self._log = open(os.memfd_create("reducer-log"), "w+b")  # noqa: SIM115 - as the process
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, str(os.getpid()), *self._options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env=environment,
                pass_fds=descriptors,
                start_new_session=own_session,
            )
        except OSError as error:
            self._log.close()
            raise NotStartedError(f"a local reducer cannot be started: {error}") from None

    @property
    def pid(self) -> int:
        return self._process.pid

    def status(self) -> int | None:
        """The exit status; None while the process runs."""
        return self._process.poll()

    def wait_ready(self, deadline: float) -> str:
        """Wait until the reducer accepts connections and return its address.

        Raises NotStartedError with the end of the log if the reducer is not ready at the
        deadline (of ``time.monotonic``) or has ended.
        """
        ready = self._read_ready_line(deadline)
        try:
            event: dict[str, Any] = json.loads(ready)
            host = str(event["host"])
            return join_address(host, event["port"])
        except (ValueError, KeyError, TypeError):
            code = self._process.poll()
            late = "was not ready in time (is the machine overloaded?)"
            state = late if code is None else f"ended with code {code}"
            raise NotStartedError(
                f"a local reducer {state}: reducer {' '.join(self._options)}\n{self.log_tail()}"
            ) from None

    def wait(self) -> int:
        """Wait for the end of the process and return its exit status."""
        return self._process.wait()

    def terminate(self) -> None:
        """Let the reducer drain. Does nothing if the process has ended."""
        self._process.terminate()

    def kill(self) -> None:
        """End the process at once. Does nothing if the process has ended."""
        self._process.kill()

    def stop(self) -> None:
        """Let the reducer drain, kill it after 5 s, and free the log."""
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()

    def log_tail(self) -> str:
        """The end of the log."""
        self._log.seek(0)
        return self._log.read()[-_SHOWN:].decode(errors="replace").strip()

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
                self._process.wait(STOP_SECONDS)
                return line
            line += piece
        return line
