"""Starts, feeds and watches the lane processes; knows nothing of frames."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from reducer import config
from reducer.server.lane import (
    ORDER_DRAIN,
    ORDER_KEY,
    ORDER_REPORT,
    ORDER_SOCKET,
    LaneOptions,
)

logger = logging.getLogger("reducer.lanes")

START_SECONDS = 60.0
REPORT_SECONDS = 1.0
# A line of answers; a snapshot names at most a few thousand ranks of a few jobs.
_LINE_LIMIT = 64 << 20
# Sockets that wait for one busy lane before more are refused.
_MAX_WAITING = 4096


class LaneHandle:
    """One lane process, as the main process sees it."""

    def __init__(self, options: config.Config, lane: int, key: bytes) -> None:
        self.lane = lane
        self.failure = ""
        self.ready = asyncio.Event()
        self.drained = asyncio.Event()
        self.ended = asyncio.Event()
        self._options = options
        self._key = key
        self._waiting: deque[tuple[socket.socket, bytes]] = deque()
        self._reports: deque[asyncio.Future[dict[str, Any]]] = deque()
        self._process: subprocess.Popen[bytes]
        self._orders: socket.socket
        self._pidfd = -1
        self._reading: asyncio.Task[None]
        self._ending: asyncio.Task[None]
        self._answers: asyncio.ReadTransport

    @property
    def pid(self) -> int:
        return self._process.pid

    async def start(self) -> None:
        """Spawn the process; `ready` is set when it can take sockets."""
        loop = asyncio.get_running_loop()
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._orders.setblocking(False)
        if self._key:  # not as an argument or variable: others can read those
            self._orders.send(ORDER_KEY + self._key)
        read_fd, write_fd = os.pipe()
        arguments = json.dumps(asdict(self._lane_options(theirs.fileno(), write_fd)))
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "reducer.server.lane", arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), write_fd),
                env=config.child_environment(),
            )
        os.close(write_fd)
        self._pidfd = os.pidfd_open(self._process.pid)
        loop.add_reader(self._pidfd, self._on_exit)
        reader = asyncio.StreamReader(limit=_LINE_LIMIT)
        pipe = os.fdopen(read_fd, "rb", buffering=0)
        self._answers, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        self._reading = loop.create_task(self._read_answers(reader))

    def _lane_options(self, orders_fd: int, answers_fd: int) -> LaneOptions:
        options = self._options
        return LaneOptions(
            lane=self.lane,
            lanes=options.lane_count,
            parent=os.getpid(),
            orders_fd=orders_fd,
            answers_fd=answers_fd,
            memory=options.memory // options.lane_count,
            credit=options.credit,
            stall_after=options.stall_after,
            drain_timeout=options.drain_timeout,
            slow_reader_bytes=options.slow_reader_bytes,
            slow_reader_seconds=options.slow_reader_seconds,
            job_memory=-(-options.job_memory // options.lane_count),
            max_jobs=options.max_jobs,
            max_runs=options.max_runs,
            job_keys=options.job_keys,
            require_native=options.require_native,
            no_native=options.no_native,
            psk=bool(self._key),
            tls=(options.tls_cert, options.tls_key, options.tls_ca) if options.tls_cert else (),
            log_level=options.log_level,
            log_format=options.log_format,
            debug=options.debug,
            timeline=options.timeline,
        )

    async def _read_answers(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            message = json.loads(line)
            if "ready" in message:
                self.ready.set()
            elif "drained" in message:
                self.drained.set()
            elif "failed" in message:
                self.failure = message["failed"]
            elif "snapshot" in message and self._reports:
                report = self._reports.popleft()
                if not report.done():
                    report.set_result(message["snapshot"])

    def _on_exit(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        while self._waiting:
            self._waiting.popleft()[0].close()
        self._ending = asyncio.get_running_loop().create_task(self._end(self._process.wait()))

    async def _end(self, status: int) -> None:
        await self._reading  # its last words, if there were any
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        if not self.drained.is_set() or status:
            self.failure = f"lane {self.lane} (pid {self.pid}) ended with {how}" + (
                f": {self.failure}" if self.failure else ""
            )
        self.ended.set()

    def pass_socket(self, sock: socket.socket, preface: bytes) -> bool:
        """Hand a connected socket over and close our copy; False, and still the caller's, if the
        lane takes no more."""
        if self.ended.is_set() or len(self._waiting) >= _MAX_WAITING:
            return False
        self._waiting.append((sock, preface))
        if len(self._waiting) == 1:
            self._pass_waiting()
        return True

    def _pass_waiting(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_writer(self._orders.fileno())
        while self._waiting and not self.ended.is_set():
            sock, preface = self._waiting[0]
            try:
                socket.send_fds(self._orders, [ORDER_SOCKET, preface], [sock.fileno()])
            except BlockingIOError:
                loop.add_writer(self._orders.fileno(), self._pass_waiting)
                return
            except OSError as error:
                logger.warning("lane %d cannot take a socket: %s", self.lane, error)
            self._waiting.popleft()[0].close()

    async def snapshot(self) -> dict[str, Any]:
        """The lane's numbers; raises TimeoutError if it does not answer in time."""
        report: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._order(ORDER_REPORT)
        self._reports.append(report)
        return await asyncio.wait_for(report, REPORT_SECONDS)

    def drain(self) -> None:
        self._order(ORDER_DRAIN)

    def _order(self, order: bytes) -> None:
        try:
            self._orders.send(order)
        except (BlockingIOError, BrokenPipeError, ConnectionError) as error:
            raise TimeoutError(f"lane {self.lane} takes no orders: {error}") from error

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()

    async def close(self) -> None:
        """Wait for the end of the process and release what belongs to it."""
        await self.ended.wait()
        await self._ending
        self._answers.close()
        await asyncio.sleep(0)  # the loop closes the transport in its next turn
        asyncio.get_running_loop().remove_writer(self._orders.fileno())
        self._orders.close()


class LaneGroup:
    """All lanes of one daemon."""

    def __init__(self, options: config.Config, key: bytes) -> None:
        self.handles = [LaneHandle(options, lane, key) for lane in range(options.lane_count)]
        self._watches: list[asyncio.Task[None]] = []
        self.died = asyncio.Event()

    async def spawn(self) -> None:
        """Start all processes."""
        for handle in self.handles:
            await handle.start()
            self._watches.append(asyncio.create_task(self._watch(handle)))

    async def wait_ready(self) -> None:
        """Until all lanes take sockets; RuntimeError with the reason if one cannot."""
        for handle in self.handles:
            waits = [asyncio.create_task(event.wait()) for event in (handle.ready, handle.ended)]
            _, rest = await asyncio.wait(
                waits, timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            for wait in rest:
                wait.cancel()
            if not handle.ready.is_set():
                reason = self.failure() or f"lane {handle.lane} did not start in {START_SECONDS} s"
                raise RuntimeError(reason)

    async def _watch(self, handle: LaneHandle) -> None:
        await handle.ended.wait()
        self.died.set()

    def failure(self) -> str:
        """Why the first lane that ended badly did so; empty if none did."""
        return next((handle.failure for handle in self.handles if handle.failure), "")

    async def snapshots(self) -> list[dict[str, Any]]:
        """Numbers of every lane; raises TimeoutError if one does not answer."""
        return list(await asyncio.gather(*(handle.snapshot() for handle in self.handles)))

    async def drain(self, seconds: float) -> None:
        """Let all lanes finish; those that take longer than ``seconds`` are killed."""
        for handle in self.handles:
            try:
                handle.drain()
            except TimeoutError as error:
                logger.warning("%s", error)
        ends = [asyncio.create_task(handle.ended.wait()) for handle in self.handles]
        _, late = await asyncio.wait(ends, timeout=seconds)
        for task in late:
            task.cancel()
        if late:
            logger.warning("%d lanes did not end in time and are killed", len(late))

    async def close(self) -> None:
        """Kill what still runs and wait for it."""
        started: Sequence[LaneHandle] = self.handles[: len(self._watches)]
        for handle in started:
            handle.kill()
        for handle in started:
            await handle.close()
        await asyncio.gather(*self._watches)
