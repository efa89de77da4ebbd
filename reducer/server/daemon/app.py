"""The daemon's main process, from listening and starting lanes to the drain and the end."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import uvloop

from reducer import __version__, compiled, log, units
from reducer.cluster.addresses import join_address
from reducer.server import file_descriptors, serve_options
from reducer.server.daemon.acceptor import Acceptor
from reducer.server.daemon.admin import Admin, Answer, Page, json_answer, text_answer
from reducer.server.daemon.drain import drain
from reducer.server.daemon.lanes import LaneGroup
from reducer.server.daemon.status_board import StatusBoard
from reducer.server.pipe.snapshot import Snapshot
from reducer.server.pipe.usage import own_usage
from reducer.server.sockets import ListenError, announce, listen, listen_local
from reducer.version import PROTOCOL_VERSION
from reducer.wire.errors import InternalError

logger = logging.getLogger("reducer.server")

EXIT_FAILED = 1
# After this time, the thread that makes pages gives the interpreter back to the loop, which accepts
# sockets.
_SWITCH_SECONDS = 0.0002
_REOPEN_SECONDS = 1.0


def serve(options: serve_options.Config, key: bytes = b"") -> int:
    """Run the daemon until it is told to stop. Returns the exit status.

    ``key`` is the key of mode psk. The status is `drained_status` after a drain, and after a stop
    before the daemon is ready. It is 1 if the daemon cannot start, if open rounds outlast
    `drain_timeout`, if a lane does not drain, or after a second signal.
    """
    file_descriptors.keep_standard_ones()
    log.set_up(options.log_level, options.log_format, options.debug)
    try:
        compiled.check_sources()
    except InternalError as error:
        logger.error("%s", error)
        return EXIT_FAILED
    file_descriptors.raise_limit()
    if options.mode == "open" and not serve_options.is_loopback(options.host):
        logger.warning(
            "serving on %s without authentication: anyone who reaches it can join, read and change "
            "sums; a key keeps strangers out (reducer keygen, %s)",
            options.host,
            serve_options.env_name("key_file"),
        )
    if options.mode != "open":  # inherited by the lanes: no core dump may hold a key or gradients
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(Server(options, key).run())
        except Exception as error:  # the lanes end with this process
            logger.critical("the daemon has failed", exc_info=error)
            return EXIT_FAILED


class Server:
    """One daemon, whose life is `run`."""

    def __init__(self, options: serve_options.Config, key: bytes) -> None:
        self._options = options
        self._monotonic_start = time.monotonic()
        self._serves = False
        self._wall_ready = 0.0
        self._stop = asyncio.Event()
        self._force = asyncio.Event()
        self._listeners: list[socket.socket] = []
        self._marker: socket.socket
        self._port = 0
        self._lanes = LaneGroup(options, key)
        self._acceptor: Acceptor
        self._admin: Admin
        self._reopening: asyncio.Task[None] | None = None
        self._board: StatusBoard

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._unhandled)
        # One thread makes all pages: more threads would delay the loop.
        loop.set_default_executor(ThreadPoolExecutor(1))
        sys.setswitchinterval(_SWITCH_SECONDS)
        try:
            self._listeners = listen(
                self._options.host, self._options.port, "workers", self._options.congestion
            )
            if self._options.local_socket and self._options.mode != "tls":
                self._listeners += listen_local(self._listeners)
            self._port = self._listeners[0].getsockname()[1]  # a drain closes them
            self._board = StatusBoard(
                join_address(self._options.host, self._port),
                self._options.metrics_host,
                self._snapshot,
            )
            metrics = listen(self._options.metrics_host, self._options.metrics_port, "metrics")
            self._admin = Admin(metrics, self._pages())
            self._marker = announce(self._listeners[0])
        except ListenError as error:
            for listener in self._listeners:
                listener.close()
            logger.error("%s", error)
            return EXIT_FAILED
        self._install_signals()
        self._lanes.spawn(self._stop.set)
        starting = asyncio.create_task(self._lanes.wait_ready())
        stopped = asyncio.create_task(self._stop.wait())
        await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done() or starting.exception() is not None:
            return await self._end_start(starting)
        stopped.cancel()
        self._acceptor = Acceptor(
            self._listeners,
            self._options.lane_count,
            self._pass_socket,
            self._options.mode,
            self._metrics_address,
        )
        self._acceptor.start()
        await self._admin.start()
        self._say_ready()
        recording = asyncio.create_task(self._board.record())
        await self._stop.wait()
        recording.cancel()
        return await self._shutdown()

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        log.unhandled(loop, context)
        if self._reopening is None or self._reopening.done():
            self._reopening = loop.create_task(self._reopen())

    async def _reopen(self) -> None:
        """Open the metrics port again. A failure may have closed it, and a probe would end the
        daemon.
        """
        while self._serves:
            try:
                await self._admin.reopen()
                return
            except Exception as error:
                logger.error("the metrics port cannot be opened again: %s", error)
                await asyncio.sleep(_REOPEN_SECONDS)

    async def _end_start(self, starting: asyncio.Task[None]) -> int:
        """The lanes did not start, or a signal came before they were ready."""
        self._marker.close()
        starting.cancel()
        (error,) = await asyncio.gather(starting, return_exceptions=True)
        await self._lanes.close()
        await self._admin.stop()
        for listener in self._listeners:
            listener.close()
        if isinstance(error, asyncio.CancelledError):
            logger.info("stopped before the start was complete")
            return self._options.drained_status
        logger.error("%s", error)
        return EXIT_FAILED

    async def _shutdown(self) -> int:
        self._serves = False
        self._marker.close()
        self._board.close()
        drained = await drain(
            self._acceptor, self._lanes, self._admin, self._options.drain_timeout, self._force
        )
        return self._options.drained_status if drained else EXIT_FAILED

    def _install_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._stop.is_set():
            self._force.set()
        logger.info("%s", number.name)
        self._stop.set()

    def _pass_socket(self, lane: int, sock: socket.socket, preface: bytes) -> bool:
        return self._lanes.handles[lane].pass_socket(sock, preface)

    def _pages(self) -> dict[str, Page]:
        return {
            **self._board.pages(),
            "/metrics": self._metrics_page,
            "/healthz": self._health_page,
            "/readyz": self._ready_page,
            "/api/stats": self._stats_page,
        }

    @property
    def _metrics_address(self) -> str:
        return join_address(self._options.metrics_host, self._admin.port)

    def _say_ready(self) -> None:
        self._serves = True
        self._wall_ready = time.time()
        admin_port = self._admin.port
        line = {
            "event": "ready",
            "host": self._options.host,
            "port": self._port,
            "metrics_port": admin_port,
            "pid": os.getpid(),
            "lanes": self._options.lane_count,
            "mode": self._options.mode,
        }
        logger.info(
            "reducer %s on %s, %d lanes, %s of memory, mode %s, status page http://%s/",
            __version__,
            join_address(self._options.host, self._port),
            self._options.lane_count,
            units.format_size(self._options.memory),
            line["mode"],
            self._metrics_address,
        )
        try:
            print(json.dumps(line), flush=True)
        except OSError:  # nobody reads, or the disk is full
            with open(os.devnull, "wb") as nothing:  # else the flush at exit fails
                os.dup2(nothing.fileno(), sys.stdout.fileno())

    async def _snapshot(self) -> Snapshot:
        lanes = await self._lanes.snapshots()
        refused = Counter(self._acceptor.refused)
        for lane in lanes:
            refused.update(lane.numbers.refused)
        if expired := sum(handle.expired for handle in self._lanes.handles):
            refused["late"] = expired
        return Snapshot(
            tasks=len(asyncio.all_tasks()),
            monotonic_start=self._monotonic_start,
            monotonic_now=time.monotonic(),
            version=__version__,
            protocol=PROTOCOL_VERSION,
            mode=self._options.mode,
            wall_now=time.time(),
            wall_ready=self._wall_ready,
            ready=self._serves and not self._lanes.down(),
            down=self._lanes.down(),
            restarts={handle.lane: handle.restarts for handle in self._lanes.handles},
            accepted=self._acceptor.passed,
            refused=dict(refused),
            metrics_dropped=dict(self._admin.dropped),
            dropped_log_lines=log.dropped_lines(),
            usage=own_usage(),
            lanes=lanes,
        )

    async def _metrics_page(self) -> Answer:
        return await asyncio.to_thread(_metrics, await self._snapshot())

    async def _stats_page(self) -> Answer:
        return await asyncio.to_thread(_stats, await self._snapshot())

    async def _health_page(self) -> Answer:
        await self._lanes.ping()
        return text_answer(200, "ok")

    async def _ready_page(self) -> Answer:
        if not self._serves:
            return text_answer(503, "not ready")
        if down := self._lanes.down():
            return text_answer(503, f"not ready: lane {down[0]} has died and is started again")
        return text_answer(200, "ready")


# The pages are made in a thread, and the first request imports what makes them (`StatusBoard`).


def _metrics(snapshot: Snapshot) -> Answer:
    from reducer.server.daemon import metrics

    return Answer(200, metrics.CONTENT_TYPE, metrics.render(snapshot))


def _stats(snapshot: Snapshot) -> Answer:
    return json_answer(snapshot.as_json())
