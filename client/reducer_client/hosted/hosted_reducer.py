"""The hosted reducer of this machine: a child process, started again if it ends."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Generator, Mapping, Sequence

from reducer import keyfile
from reducer_client.hosted.child_daemon import STOP_SECONDS, ChildDaemon
from reducer_client.hosted.failures import NotStartedError

logger = logging.getLogger("reducer_client")

_START_SECONDS = 30.0
_SETTLED_SECONDS = 60.0
_LONGEST_PAUSE = 10.0
_IN_USE = "Another process has this port"  # `server.sockets`


class HostedReducer:
    """Runs the process from `start` to `stop`, at one address.

    A thread of its own starts the process, because the process ends with the thread that has
    started it.

    Args:
        host: the address to listen on.
        ports: the first and the last port to try; (0, 0) means any free port.
        key: the reducers' key.
        options: more arguments of ``reducer serve``.
        environment: the environment of the process.
        replaced: the address of a reducer that ended with its program, and whose port this one
            gets. `start` then returns at once, and the process is started until it runs.
    """

    def __init__(
        self,
        host: str,
        ports: tuple[int, int],
        key: bytes,
        options: Sequence[str],
        environment: Mapping[str, str],
        replaced: str = "",
    ) -> None:
        self._host = host
        self._ports = ports
        self._key = key
        self._options = options
        self._environment = environment
        self._lock = threading.Lock()  # of _daemon and _stops
        self._daemon: ChildDaemon | None = None
        self._stops = False
        self._first_try = threading.Event()
        self._address = replaced
        if replaced:
            self._first_try.set()
        self._error: Exception | None = None
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hosted-reducer", daemon=True)

    @property
    def pid(self) -> int | None:
        """The process; None while there is none."""
        with self._lock:
            return None if self._daemon is None else self._daemon.pid

    def start(self) -> str:
        """Start the process and return the address.

        Raises NotStartedError, OSError or RuntimeError if that is impossible.
        """
        self._thread.start()
        self._first_try.wait()
        if not self._address:
            raise self._error or NotStartedError("the thread of the hosted reducer has failed")
        return self._address

    def stop(self, linger: float = 0.0) -> None:
        """End the process after ``linger`` seconds. A process that does not drain is killed.

        A forked child must not call this method: the process is the parent's.
        """
        time.sleep(linger)
        with self._lock:
            self._stops = True
            if self._daemon is not None:
                self._daemon.terminate()
        self._wake.set()
        if not self._thread.is_alive():
            return
        self._thread.join(STOP_SECONDS)
        with self._lock:
            if self._daemon is not None:  # such as a stopped process
                self._daemon.kill()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._serve()
        finally:
            self._first_try.set()

    def _serve(self) -> None:
        pause = 0.1
        while not self._stops:
            began = time.monotonic()
            why = self._serve_once()
            if not self._address and _IN_USE in why:
                tried, last = self._ports
                if tried < last:  # another job has taken the port since free_port() looked
                    self._ports = (tried + 1, last)
                    continue
                self._error = NotStartedError(
                    f"port {last} on {self._host} is in use, the last of REDUCER_HOSTED_PORTS: "
                    "give a larger range"
                )
            if self._stops or not self._address:
                return
            logger.warning(
                "the hosted reducer at %s ended and starts again: %s", self._address, why
            )
            pause = 0.1 if time.monotonic() - began > _SETTLED_SECONDS else 2 * pause
            self._wake.wait(min(pause, _LONGEST_PAUSE))

    def _serve_once(self) -> str:
        """Run the process until it ends. Returns why it ended."""
        try:
            with key_file(self._key) as fd:
                daemon = self._start(fd)
                try:
                    self._address = self._address or daemon.wait_ready(
                        time.monotonic() + _START_SECONDS
                    )
                    self._ports = (int(self._address.rpartition(":")[2]),) * 2
                    self._first_try.set()
                    status = daemon.wait()
                    last = daemon.log_tail().splitlines()[-1:]
                    return f"status {status}; {''.join(last)}"
                finally:
                    with self._lock:
                        self._daemon = None
                    daemon.stop()
        except Exception as error:  # `start` raises it
            self._error = error
            return str(error)

    def _start(self, key_fd: int) -> ChildDaemon:
        port = free_port(self._host, *self._ports)
        self._ports = (port, self._ports[1])
        options = [
            *("--host", self._host),
            *("--port", str(port)),
            *("--metrics-port", "0"),
            *("--key-file", f"/proc/self/fd/{key_fd}"),
            *self._options,
        ]
        daemon = ChildDaemon(options, self._environment, (key_fd,), own_session=True)
        with self._lock:
            self._daemon = daemon
            if self._stops:
                daemon.terminate()
        return daemon


def free_port(host: str, first: int, last: int) -> int:
    """The first port of the range on which nobody listens; the last one if all are in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in range(first, last + 1):
        with socket.socket(family, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            return port
    return last


@contextlib.contextmanager
def key_file(key: bytes) -> Generator[int]:
    """A file in memory with the key, which no other user can open."""
    fd = keyfile.in_memory(keyfile.text_of(key))
    try:
        yield fd
    finally:
        os.close(fd)
