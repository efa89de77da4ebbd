"""The process of one lane, which `reducer.server.daemon.lane_child` starts.

It has no listener. Orders arrive over a socket pair: a letter and what belongs to the letter, such
as a connected socket or the key. Answers go back on a pipe, as lines of JSON. The process dies with
its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, cast

import uvloop

from reducer import compiled, log
from reducer import kernels as kernel_sets
from reducer.core.lane import Lane
from reducer.core.surface import events
from reducer.core.surface.settings import LaneSettings
from reducer.parent import die_with_parent
from reducer.server import file_descriptors
from reducer.server.data.buffers import BufferPool
from reducer.server.data.connection import Connection
from reducer.server.data.shell import LaneShell
from reducer.server.data.timeline import Timeline
from reducer.server.data.turns import SHARED_SECONDS
from reducer.server.gates.dialer import Dialer
from reducer.server.gates.gate import Admit, Gate, Newcomer
from reducer.server.gates.proofs import KeyProof, OpenProof, Proof
from reducer.server.gates.psk_gate import PskGate
from reducer.server.gates.tls import TlsFiles, make_context, make_context_of_client
from reducer.server.gates.tls_gate import TlsGate
from reducer.server.gates.tls_proof import CertificateProof
from reducer.server.lane.cycles import Cycles
from reducer.server.pipe.lane_options import LaneOptions
from reducer.server.pipe.orders import (
    ORDER_DRAIN,
    ORDER_KEY,
    ORDER_PING,
    ORDER_REPORT,
    ORDER_SOCKET,
)
from reducer.server.pipe.reports import line_of
from reducer.server.pipe.snapshot import LaneNumbers, fields_of
from reducer.server.pipe.usage import own_usage
from reducer.server.registry.file import RegistryFile
from reducer.server.registry.writer import RegistryWriter
from reducer.server.sockets import tune
from reducer.server.watchdog import Watchdog
from reducer.wire.handshake import MAX_KEY_BYTES

logger = logging.getLogger("reducer.lane")

TICK_SECONDS = 0.05
# Time for workers to read their last frames after the rounds are over. The main process waits for 5
# s beyond the drain, and the rest of the exit may take a second.
CLOSE_SECONDS = 3.0
WHY_IT_ENDS = "it was told to stop"
LAG_WARNING_SECONDS = 0.2
# Time for the loop to start a connection, and for a task to make a report between the jobs' turns.
# If it takes longer, the loop has lost the task for lack of memory.
ADOPT_SECONDS = 2.0
LOST_REPORT_SECONDS = 30.0
# Reports take at most a fifth of a lane's time, even if one is requested after another: each second
# of work is followed by this many seconds of rest.
REST = 4.0
_ORDER_BYTES = 64
_DESCRIPTOR_SPACE = socket.CMSG_SPACE(4)


class _Answers(asyncio.Protocol):
    """The pipe to the main process. A lane that cannot answer ends, as it would count as dead."""

    def __init__(self, lane: LaneProcess) -> None:
        self._lane = lane

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._lane.fail(exc)


class _Adoption:
    """A passed socket until the loop has made its transport; it has time until ``until``.

    ``protocol``: the protocol object, once the loop has asked for it.
    """

    def __init__(
        self, sock: socket.socket, until: float, make: Callable[[], Connection | Newcomer]
    ) -> None:
        self.sock = sock
        self.until = until
        self.protocol: Connection | Newcomer | None = None
        self._make = make

    def begin(self) -> Connection | Newcomer:
        self.protocol = self._make()
        return self.protocol

    @property
    def has_begun(self) -> bool:
        """Whether the socket belongs to a protocol object, which closes it."""
        return self.protocol is not None and self.protocol.is_made


class LaneProcess:
    """The event loop side of one lane. Each tick calls ``beat``."""

    def __init__(self, options: LaneOptions, beat: Callable[[], None]) -> None:
        self._options = options
        self._kernels = kernel_sets.load(options.kernels)
        self._pool = BufferPool(options.memory)
        self._registry = RegistryFile(options.registry) if options.registry else None
        self._writer: RegistryWriter | None = None
        settings = _settings(options, self._kernels, self._registry)
        self._lane = Lane(settings)
        self._shell = LaneShell(
            self._lane,
            self._kernels,
            self._pool,
            options.slow_reader_timeout,
        )
        self._shell.executor.timeline = _timeline(options)
        self._orders = socket.socket(fileno=options.orders_fd)
        key = _receive_key(self._orders) if options.psk else b""
        self._gate = _gate(options, settings, key, self._shell.connection)
        self._dialer = Dialer(
            _proof(options, key), self._shell.link, self._shell.feed, options.congestion
        )
        self._shell.executor.dial = self._dialer.dial
        self._orders.setblocking(False)
        self._adopting: dict[asyncio.Task[None], _Adoption] = {}
        self._report: asyncio.Task[None] | None = None
        self._report_until = 0.0
        self._rests_until = 0.0  # no report begins before that
        self._lag = 0.0
        self._lag_lines = log.RateLimit(10.0)
        self._order = bytearray(_ORDER_BYTES)
        self._drain_until: float | None = None
        self._drains = False  # all runs were sent GOAWAY
        self._unpassed = 0
        self._failure: Exception | None = None
        self._in_time = True
        self._cycles: Cycles | None = None  # None until the start is complete
        self._beat = beat
        self._answers: asyncio.WriteTransport
        self._finished: asyncio.Event

    async def run(self) -> bool:
        """Serve until the drain is over. Returns whether all rounds ended in time.

        Raises the error that keeps the lane from continuing.
        """
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._unhandled)
        self._finished = asyncio.Event()
        pipe = os.fdopen(self._options.answers_fd, "wb", buffering=0)
        self._answers, _ = await loop.connect_write_pipe(lambda: _Answers(self), pipe)
        if self._registry is not None:
            self._writer = RegistryWriter(self._registry, self._shell.feed)
            self._shell.executor.store = self._writer.store
        loop.add_reader(self._orders.fileno(), self._on_orders)
        self._tick(loop.time())
        self._answer(ready=True)
        if self._options.lane == 0:
            name = self._kernels.NAME
            level = logging.INFO if name == "native" else logging.WARNING
            how = "compiled" if compiled.is_compiled() else "interpreted"
            logger.log(level, "sums run on the %s kernels, the protocol runs %s", name, how)
        self._cycles = Cycles()
        await self._finished.wait()
        if self._failure is not None:
            raise self._failure
        await self._close_connections()
        if (timeline := self._shell.executor.timeline) is not None:
            timeline.close()
        loop.remove_reader(self._orders.fileno())
        if self._report is not None:
            self._report.cancel()
            await asyncio.wait([self._report], timeout=1.0)  # a lost task never ends
        self._orders.close()
        self._answers.close()
        return self._in_time

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._shell.counters.internal_errors += 1
        log.unhandled(loop, context)

    def _on_orders(self) -> None:
        for _ in range(self._shell.newcomers_at_once):
            try:
                size, ancillary, _, _ = self._orders.recvmsg_into([self._order], _DESCRIPTOR_SPACE)
            except BlockingIOError:
                return
            try:
                order, fds = bytes(self._order[:size]), file_descriptors.passed(ancillary)
            except Exception:
                for fd in file_descriptors.passed(ancillary):
                    os.close(fd)
                raise
            if not order:
                logger.error("the main process is gone")
                os._exit(1)
            if order.startswith(ORDER_SOCKET):
                self._take_socket(order, fds)
            elif order == ORDER_PING:
                self._answer(pong=True)
            elif order == ORDER_REPORT:
                self._maybe_report()
            elif order == ORDER_DRAIN:
                self._drain()

    def _drain(self) -> None:
        """Begin to drain. The main process repeats the order, since a part may have failed."""
        if self._drain_until is None:
            self._drain_until = time.monotonic() + self._options.drain_timeout
        if not self._drains:
            self._shell.feed(events.Drain(WHY_IT_ENDS))
            self._drains = True

    def _take_socket(self, order: bytes, fds: Sequence[int]) -> None:
        if not fds:
            # The kernel had no descriptor for the socket and has closed it (EMFILE).
            self._unpassed += 1
            return
        try:
            preface = order[1:]
            sock = socket.socket(fileno=fds[0])
        except Exception:
            os.close(fds[0])
            raise
        try:
            tune(sock)
            loop = asyncio.get_running_loop()
            make: Callable[[], Connection | Newcomer] = self._shell.connection
            if self._gate is not None:
                make = functools.partial(self._gate.newcomer, preface)
            adoption = _Adoption(sock, loop.time() + ADOPT_SECONDS, make)
            task = loop.create_task(self._adopt(loop, adoption))
            self._adopting[task] = adoption
            task.add_done_callback(self._adopted)
        except Exception:  # the worker dials again
            sock.close()
            raise

    def _adopted(self, task: asyncio.Task[None]) -> None:
        self._adopting.pop(task, None)

    def _end_adoptions(self, now: float, lag: float) -> None:
        """Close the sockets whose tasks the loop has lost: their workers dial again.

        If the process was stopped for `lag` seconds, the tasks had no turn in that time.
        """
        for task, adoption in list(self._adopting.items()):
            adoption.until += lag
            if adoption.until <= now:
                del self._adopting[task]
                if not adoption.has_begun:
                    task.cancel()
                    adoption.sock.close()

    async def _adopt(self, loop: asyncio.AbstractEventLoop, adoption: _Adoption) -> None:
        try:
            factory = cast("Callable[[], asyncio.BufferedProtocol]", adoption.begin)
            await loop.connect_accepted_socket(factory, adoption.sock)
        except OSError as error:
            adoption.sock.close()
            if error.errno in file_descriptors.NO_MEMORY:
                raise
            logger.debug("a passed socket was dead already: %s", error)

    def _tick(self, expected: float) -> None:
        try:
            self._tick_once(expected)
        except Exception as error:
            # Without ticks there are no deadlines, and a hang would last forever.
            try:
                self.fail(error)
            except BaseException:
                os._exit(1)

    def fail(self, error: Exception) -> None:
        """The lane cannot continue: it ends, and the main process starts it again."""
        self._failure = error
        self._finished.set()

    def _tick_once(self, expected: float) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        lag = max(0.0, now - expected)
        self._lag = max(lag, self._lag * 0.98)
        if lag > LAG_WARNING_SECONDS and self._lag_lines.admit(now) is not None:
            logger.warning("the event loop lags %.0f ms: this machine is overloaded", lag * 1000)
        self._shell.tick()
        self._end_adoptions(now, lag)
        if self._gate is not None:
            self._gate.tick()
        self._dialer.tick()
        if self._writer is not None:
            self._writer.tick()
        if self._cycles is not None:
            self._cycles.tick(self._lane)
        if (timeline := self._shell.executor.timeline) is not None:
            self._write_timeline(timeline)
        if self._drain_until is not None:
            self._maybe_finish(self._drain_until)
        loop.call_later(TICK_SECONDS, self._tick, now + TICK_SECONDS)
        self._beat()

    def _write_timeline(self, timeline: Timeline) -> None:
        try:
            timeline.flush()
        except OSError as error:
            logger.warning("the timeline %s ends: %s", timeline.path, error.strerror)
            timeline.close()
            self._shell.executor.timeline = None

    def _maybe_finish(self, deadline: float) -> None:
        if self._lane.drained(time.monotonic()):
            self._finished.set()
        elif time.monotonic() > deadline and not self._finished.is_set():
            text = f"open rounds did not finish within {self._options.drain_timeout:g} s"
            logger.warning(text)
            self._answer(failed=text)
            self._in_time = False
            self._finished.set()

    async def _close_connections(self) -> None:
        if self._gate is not None:
            self._gate.close()
        await self._dialer.close()
        self._shell.feed(events.Shutdown(WHY_IT_ENDS))
        for connection in list(self._shell.connections.values()):
            connection.close(WHY_IT_ENDS)
        deadline = time.monotonic() + CLOSE_SECONDS
        while self._shell.connections:
            await asyncio.sleep(TICK_SECONDS)
            if time.monotonic() > deadline:
                for connection in list(self._shell.connections.values()):
                    connection.abort(WHY_IT_ENDS)

    def _maybe_report(self) -> None:
        """Begin a report, which answers all requests that come before its end.

        A report that takes too long is cancelled by the next request.
        """
        now = time.monotonic()
        if self._report is not None and now >= self._report_until:
            self._report.cancel()
            self._report = None
        if self._report is None or self._report.done():
            self._report = asyncio.get_running_loop().create_task(self._tell())
            self._report_until = now + LOST_REPORT_SECONDS

    async def _tell(self) -> None:
        try:
            await self._tell_parts()
        except Exception as error:
            context = {"message": "a report has failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    async def _tell_parts(self) -> None:
        """Make a line for each run, between the jobs' turns; send all lines at the end."""
        await asyncio.sleep(max(0.0, self._rests_until - time.monotonic()))
        began = time.thread_time()
        lines = []
        for part in self._lane.parts(time.monotonic()):
            lines.append(line_of(part=part))
            took = time.thread_time() - began
            if took >= SHARED_SECONDS:
                await asyncio.sleep(REST * took)
                began = time.thread_time()
        self._answers.writelines([*lines, line_of(snapshot=self._snapshot())])
        self._rests_until = time.monotonic() + REST * (time.thread_time() - began)

    def _snapshot(self) -> LaneNumbers:
        shell, pool = self._shell, self._pool
        return LaneNumbers(
            lane=self._options.lane,
            kernels=self._kernels.NAME,
            compiled=compiled.is_compiled(),
            core=self._lane.snapshot(),
            loop_lag_seconds=self._lag,
            connections=len(shell.connections),
            slow_readers=shell.executor.slow_readers,
            turns=shell.turns.count,
            fold_seconds=shell.executor.fold_seconds,
            unpassed=self._unpassed,
            refused={} if self._gate is None else dict(self._gate.refused),
            unproven=0 if self._gate is None else len(self._gate),
            **fields_of(shell.counters),
            tasks=len(asyncio.all_tasks()),
            buffers_out=pool.out,
            buffers_unsent=pool.unsent,
            buffer_bytes=pool.out_bytes,
            cached_bytes=pool.cached_bytes,
            allocated=pool.allocated,
            dropped_log_lines=log.dropped_lines(),
            **fields_of(own_usage()),
        )

    def _answer(self, **message: Any) -> None:
        self._answers.write(line_of(**message))


def _gate(options: LaneOptions, settings: LaneSettings, key: bytes, admit: Admit) -> Gate | None:
    """What those who connect to this lane must prove; None in mode open."""
    if options.tls:
        return TlsGate(make_context(TlsFiles(*options.tls)), admit)
    if options.psk:
        return PskGate(key, options.lane, settings.incarnation, admit)
    return None


def _proof(options: LaneOptions, key: bytes) -> Proof:
    """How this lane proves itself to the lanes that it connects to."""
    if options.tls:
        return CertificateProof(make_context_of_client(TlsFiles(*options.tls)))
    return KeyProof(key) if options.psk else OpenProof()


def _receive_key(orders: socket.socket) -> bytes:
    """Receive the key, the first order, which the parent has sent before this process started."""
    order = orders.recv(2 * MAX_KEY_BYTES)
    if not order.startswith(ORDER_KEY):
        raise RuntimeError("the main process sent no key")
    return order[len(ORDER_KEY) :]


def _timeline(options: LaneOptions) -> Timeline | None:
    """The timeline; None if none is configured or the file cannot be opened."""
    if not options.timeline:
        return None
    try:
        return Timeline(options.timeline, options.parent, options.lane)
    except OSError as error:
        logger.warning("no timeline in %s: %s", options.timeline, error.strerror)
        return None


def _settings(
    options: LaneOptions, kernels: kernel_sets.KernelSet, registry: RegistryFile | None
) -> LaneSettings:
    return LaneSettings(
        lane=options.lane,
        lanes=options.lanes,
        incarnation=secrets.token_bytes(16),
        budget=options.memory,
        credit=options.credit,
        records=options.records,
        crc32c=kernels.crc32c,
        acc_itemsize=kernels.acc_itemsize,
        stall_after=options.stall_after,
        job_budget=options.job_memory,
        max_total_runs=options.max_total_runs,
        max_runs=options.max_runs,
        max_reducers=options.max_reducers,
        max_keys=options.max_keys,
        descriptors=file_descriptors.limit(),
        registry_contents=None if registry is None else registry.contents,
        traced=bool(options.timeline),
    )


def _bind(core: int | None) -> str:
    """Bind this process and the threads that it will start to a core. Returns why that failed.

    The kernel places memory on the NUMA node of the core that first writes to it, so this comes
    before the buffers. It fails if the daemon has lost the core since its start (cpuset).
    """
    try:
        if core is not None:
            os.sched_setaffinity(0, {core})
    except OSError as error:
        return f"this lane cannot be bound to core {core} ({error.strerror}), and runs on any core"
    return ""


def main() -> NoReturn:
    options = LaneOptions(**json.loads(sys.argv[1]))
    die_with_parent(options.parent)
    unbound = _bind(options.core)
    # Both signals reach the whole process group (Ctrl-C, systemd); only the main process acts.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    log.set_up(options.log_level, options.log_format, options.debug, lane=options.lane)
    if unbound:
        logger.warning(
            "%s: start the daemon again on the cores that it may use now (%s)",
            unbound,
            ", ".join(map(str, sorted(os.sched_getaffinity(0)))),
        )
    last_words = os.dup(options.answers_fd)
    status = 1
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    try:
        status = 0 if runner.run(LaneProcess(options, Watchdog().beat).run()) else 1
    except BaseException as error:
        logger.critical("the lane fails", exc_info=error)
        line = json.dumps({"failed": f"{type(error).__name__}: {error}"})
        with contextlib.suppress(OSError):
            os.write(last_words, line.encode() + b"\n")
    logging.shutdown()
    # Skip the loop's close: it may fail, and never end, because of objects that are still open or
    # of tasks that the loop has lost.
    os._exit(status)


if __name__ == "__main__":
    main()
