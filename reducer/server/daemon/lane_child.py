"""One lane process as the main process sees it: start, orders, answers, end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from reducer.server import serve_options
from reducer.server.pipe.lane_options import LaneOptions
from reducer.server.pipe.orders import ORDER_KEY
from reducer.server.watchdog import EXIT_WITHOUT_BEAT

# The longest line of an answer: a report has a line for each run, with some of its ranks and
# rounds.
_LINE_LIMIT = 64 << 20
# The kernel doubles this value, and counts 768 bytes for each socket. A question therefore waits
# for at most 85 sockets.
_ORDERS_BUFFER = 32_768
# Between two checks for the end of a process: without memory, its notification may be lost.
WATCH_SECONDS = 1.0


class LaneChild:
    """A process of one lane. ``hear`` is called with each answer.

    ``core``: the core to which the process binds itself; None for all.
    """

    def __init__(
        self, lane: int, hear: Callable[[dict[str, Any]], None], core: int | None = None
    ) -> None:
        self._lane = lane
        self._core = core
        self._hear = hear
        self._last_words = ""
        self._process: subprocess.Popen[bytes]
        self._orders: socket.socket
        self._answers: asyncio.ReadTransport
        self._reading: asyncio.Task[None]
        self._exited: asyncio.Future[None]

    def __str__(self) -> str:
        return f"lane {self._lane} (pid {self._process.pid})"

    async def start(self, options: serve_options.Config, key: bytes) -> None:
        """Spawn the process. Raises OSError or MemoryError if that fails; nothing is left then."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_LINE_LIMIT)
        with contextlib.ExitStack() as undo:
            self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            undo.callback(self._orders.close)
            self._orders.setblocking(False)
            self._orders.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ORDERS_BUFFER)
            with theirs:
                if key:  # not as an argument or variable: others can read those
                    self._orders.send(ORDER_KEY + key)
                read_fd, write_fd = os.pipe()
                with os.fdopen(write_fd, "wb", buffering=0):
                    pipe = undo.enter_context(os.fdopen(read_fd, "rb", buffering=0))
                    fds = theirs.fileno(), write_fd
                    place = self._lane, self._core
                    self._process = _spawn(_lane_options(options, *place, *fds, bool(key)))
            undo.callback(self._process.wait)
            undo.callback(self._process.kill)
            self._answers, _ = await loop.connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), pipe
            )
            undo.callback(self._answers.close)
            pidfd = os.pidfd_open(self._process.pid)
            undo.callback(os.close, pidfd)
            self._exited = loop.create_future()
            loop.add_reader(pidfd, self._on_exit, pidfd)
            undo.callback(loop.remove_reader, pidfd)
            self._reading = loop.create_task(self._read_answers(reader))
            undo.pop_all()

    def send(self, order: bytes, sock: socket.socket | None) -> None:
        """Send an order, with a copy of the socket.

        Raises BlockingIOError if the socket pair is full.
        """
        if sock is None:
            self._orders.send(order)
        else:
            socket.send_fds(self._orders, [order], [sock.fileno()])

    def when_writable(self, call: Callable[[], None] | None) -> None:
        """Call ``call`` whenever orders can be sent; None ends this."""
        loop = asyncio.get_running_loop()
        if call is None:
            loop.remove_writer(self._orders.fileno())
        else:
            loop.add_writer(self._orders.fileno(), call)

    def kill(self, why: str = "") -> None:
        """Send SIGKILL; ``why`` becomes a part of the text that `end` returns."""
        if self._process.returncode is None:
            self._last_words = why
            self._process.kill()

    async def end(self) -> str:
        """Wait for the end of the process, and release its descriptors.

        Returns how the process has ended; empty for exit status 0.
        """
        while self._process.poll() is None:  # without memory, the future may never be set
            await asyncio.wait([self._exited], timeout=WATCH_SECONDS)
        status = self._process.wait()
        await asyncio.wait([self._reading], timeout=WATCH_SECONDS)
        self._reading.cancel()
        self._answers.close()
        await asyncio.sleep(0)  # the loop closes the transport in its next pass
        self.when_writable(None)
        self._orders.close()
        if not status:
            return ""
        if status == EXIT_WITHOUT_BEAT:
            self._last_words = "its event loop had lost its timer"
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        return f"{how}: {self._last_words}" if self._last_words else how

    def _on_exit(self, pidfd: int) -> None:
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        self._exited.set_result(None)

    async def _read_answers(self, reader: asyncio.StreamReader) -> None:
        try:
            # A process that is killed may leave a part of a line.
            while (line := await reader.readline()).endswith(b"\n"):
                message = json.loads(line)
                self._last_words = message.get("failed", self._last_words)
                self._hear(message)
        except Exception as error:  # no other task reads answers
            self.kill(f"its answers cannot be read: {error!r}")


def _spawn(options: LaneOptions) -> subprocess.Popen[bytes]:
    # The lane ignores both signals, but only after half a second, so it starts with both blocked.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        return subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "reducer.server.lane.process",
                json.dumps(asdict(options)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(options.orders_fd, options.answers_fd),
            env=serve_options.child_environment(),
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _lane_options(
    options: serve_options.Config,
    lane: int,
    core: int | None,
    orders_fd: int,
    answers_fd: int,
    psk: bool,
) -> LaneOptions:
    return LaneOptions(
        lane=lane,
        lanes=options.lane_count,
        core=core,
        parent=os.getpid(),
        orders_fd=orders_fd,
        answers_fd=answers_fd,
        memory=options.memory // options.lane_count,
        credit=options.credit,
        records=options.records,
        stall_after=options.stall_after,
        drain_timeout=options.drain_timeout,
        slow_reader_timeout=options.slow_reader_timeout,
        congestion=options.congestion,
        job_memory=-(-options.job_memory // options.lane_count),
        max_total_runs=options.max_total_runs,
        max_runs=options.max_runs,
        max_reducers=options.max_reducers,
        max_keys=options.max_keys,
        kernels=options.kernels,
        psk=psk,
        tls=(options.tls_cert, options.tls_key, options.tls_ca) if options.tls_cert else (),
        log_level=options.log_level,
        log_format=options.log_format,
        debug=options.debug,
        timeline=options.timeline,
        registry="" if lane else options.registry,
    )
