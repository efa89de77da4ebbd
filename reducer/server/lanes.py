"""Starts, feeds and watches the lane processes; knows nothing of frames.

Law: a lane that dies takes nothing with it but its own state. Another process takes its place, and
its runs form there anew (PROTOCOL.md, section 11). Until then its sockets wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections import deque
from typing import Any, NamedTuple

from reducer import config
from reducer.server.lane import ORDER_DRAIN, ORDER_REPORT, ORDER_SOCKET
from reducer.server.lane_child import LaneChild

logger = logging.getLogger("reducer.lanes")

START_SECONDS = 60.0
REPORT_SECONDS = 1.0
# Sockets that wait for one busy lane before more are refused.
_MAX_WAITING = 4096
# A process that has lived for less than this has died quickly. After the third such death in a row
# the next start waits, each time twice as long, but never as long as a job without another reducer
# waits for this one (30 s).
_STEADY_SECONDS = 60.0
_QUICK_DEATHS = 3
_FIRST_PAUSE = 2.0
_LAST_PAUSE = 10.0


def pause_before_restart(quick_deaths: int) -> float:
    """Seconds before the next start, after so many quick deaths in a row."""
    if quick_deaths < _QUICK_DEATHS:
        return 0.0
    doublings = min(quick_deaths - _QUICK_DEATHS, 16)
    return min(_FIRST_PAUSE * 2.0**doublings, _LAST_PAUSE)


class _Order(NamedTuple):
    data: bytes
    sock: socket.socket | None = None


class LaneHandle:
    """One lane, over all processes that serve it one after the other."""

    def __init__(self, options: config.Config, lane: int, key: bytes) -> None:
        self.lane = lane
        self.restarts = 0
        self.failure = ""  # how the lane has ended, where it should have gone on or drained
        self.ready = asyncio.Event()  # a process takes sockets
        self.ended = asyncio.Event()  # no process ever will again
        self._options = options
        self._key = key
        self._child: LaneChild | None = None
        self._started = False
        self._stopping = asyncio.Event()
        self._killed = ""
        self._orders: deque[_Order] = deque()  # all that its process is told, in this order
        self._sockets = 0  # of the orders
        self._report: asyncio.Future[dict[str, Any] | None] | None = None

    async def keep(self) -> None:
        """Start a process, and another one whenever it dies, until `drain` or `kill`.

        Where the first one does not become ready none follows, and `failure` says why.
        """
        quick_deaths = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            how = await self._live()
            if self._stopping.is_set() or not self._started:
                self.failure = how
                break
            quick_deaths = quick_deaths + 1 if time.monotonic() - began < _STEADY_SECONDS else 1
            await self._pause(how, quick_deaths)
        self.ended.set()
        for order in self._orders:
            if order.sock is not None:
                order.sock.close()
        self._orders.clear()

    async def _live(self) -> str:
        """One process, from its start to its end. How it has ended: empty for exit status 0."""
        child = LaneChild(self.lane, self._hear)
        try:
            await child.start(self._options, self._key)
        except OSError as error:
            return f"lane {self.lane} could not be started: {error.strerror}"
        self._child = child
        if self._killed:
            child.kill(self._killed)
        late = asyncio.get_running_loop().call_later(START_SECONDS, self._give_up, child)
        how = await child.end()
        late.cancel()
        self.ready.clear()
        self._child = None
        self._answer_report(None)
        return how and f"{child} ended with {how}"

    def _give_up(self, child: LaneChild) -> None:
        if not self.ready.is_set():
            child.kill(f"it was not ready in {START_SECONDS:g} s")

    async def _pause(self, how: str, quick_deaths: int) -> None:
        self.restarts += 1
        seconds = pause_before_restart(quick_deaths)
        when = "at once" if not seconds else f"in {seconds:g} s, after {quick_deaths} quick deaths"
        logger.error("%s; its runs fail over, and it is started again %s", how, when)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    def _hear(self, answer: dict[str, Any]) -> None:
        if "ready" in answer:
            self._started = True
            self.ready.set()
            self._give_orders()
        elif "snapshot" in answer:
            self._answer_report(answer["snapshot"])

    def pass_socket(self, sock: socket.socket, preface: bytes) -> bool:
        """Hand a connected socket over and close our copy; False, and still the caller's, if the
        lane takes no more. One that has no process now gets it with the next."""
        if self.ended.is_set() or self._sockets >= _MAX_WAITING:
            return False
        self._sockets += 1
        self._order(ORDER_SOCKET + preface, sock)
        return True

    async def snapshot(self) -> dict[str, Any] | None:
        """The lane's numbers, None while it has no process.

        Raises TimeoutError if it does not answer in time. All who ask meanwhile share the answer.
        """
        if not self.ready.is_set():
            return None
        if self._report is None:
            self._report = asyncio.get_running_loop().create_future()
            self._order(ORDER_REPORT)
        return await asyncio.wait_for(asyncio.shield(self._report), REPORT_SECONDS)

    def _answer_report(self, numbers: dict[str, Any] | None) -> None:
        report, self._report = self._report, None
        if report is not None:
            report.set_result(numbers)

    def drain(self) -> None:
        """Let the process finish what it has been given, and end."""
        self._stopping.set()
        self._order(ORDER_DRAIN)

    def kill(self, why: str) -> None:
        """End the process at once; ``why`` becomes a part of `failure`."""
        self._stopping.set()
        self._killed = self._killed or why
        if self._child is not None:
            self._child.kill(self._killed)

    def _order(self, data: bytes, sock: socket.socket | None = None) -> None:
        self._orders.append(_Order(data, sock))
        if len(self._orders) == 1:
            self._give_orders()

    def _give_orders(self) -> None:
        child = self._child
        if child is None or not self.ready.is_set():
            return
        child.when_writable(None)
        while self._orders:
            order = self._orders[0]
            try:
                child.send(order.data, order.sock)
            except BlockingIOError:
                child.when_writable(self._give_orders)
                return
            except (BrokenPipeError, ConnectionResetError):
                return  # its end will be heard of
            except OSError as error:
                logger.warning("lane %d cannot be told %r: %s", self.lane, order.data[:1], error)
            self._orders.popleft()
            if order.sock is not None:
                self._sockets -= 1
                order.sock.close()


class LaneGroup:
    """All lanes of one daemon."""

    def __init__(self, options: config.Config, key: bytes) -> None:
        self.handles = [LaneHandle(options, lane, key) for lane in range(options.lane_count)]
        self._keepers: list[asyncio.Task[None]] = []

    def spawn(self) -> None:
        """Start all processes."""
        self._keepers = [asyncio.create_task(handle.keep()) for handle in self.handles]

    async def wait_ready(self) -> None:
        """Until all lanes take sockets; RuntimeError with the reason if one cannot."""
        for handle in self.handles:
            waits = [asyncio.create_task(event.wait()) for event in (handle.ready, handle.ended)]
            _, rest = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in rest:
                wait.cancel()
            if handle.ended.is_set():
                raise RuntimeError(handle.failure)

    def failure(self) -> str:
        """How the first lane has ended that did not drain; empty if none did so."""
        return next((handle.failure for handle in self.handles if handle.failure), "")

    def down(self) -> list[int]:
        """Lanes that have no process now."""
        return [handle.lane for handle in self.handles if not handle.ready.is_set()]

    async def snapshots(self) -> list[dict[str, Any]]:
        """Numbers of every lane that has a process; TimeoutError if one does not answer."""
        found = await asyncio.gather(*(handle.snapshot() for handle in self.handles))
        return [numbers for numbers in found if numbers is not None]

    async def drain(self, seconds: float) -> None:
        """Let all lanes finish; those that take longer than ``seconds`` are killed."""
        for handle in self.handles:
            handle.drain()
        await asyncio.wait(self._keepers, timeout=seconds)
        for handle in self.handles:
            handle.kill(f"it did not drain within {seconds:g} s")

    async def close(self) -> None:
        """Kill what still runs and wait for it."""
        for handle in self.handles:
            handle.kill("the daemon ends")
        await asyncio.gather(*self._keepers)
