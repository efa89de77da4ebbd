"""Starts, feeds and watches the lane processes, without knowledge of frames.

Law: a lane that dies loses only its own state. Another process takes its place, and the lane's runs
form there anew (PROTOCOL.md, section 11). Until then new sockets wait, for 2 s at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from reducer.core.surface.numbers import Part
from reducer.log import RateLimit
from reducer.server import file_descriptors, serve_options, topology
from reducer.server.daemon.lane_child import LaneChild
from reducer.server.pipe.orders import ORDER_PING, ORDER_REPORT, WAIT_SECONDS, Orders
from reducer.server.pipe.reports import numbers_of, part_of, put_together
from reducer.server.pipe.snapshot import LaneReport

logger = logging.getLogger("reducer.lanes")

START_SECONDS = 60.0
PING_SECONDS = 1.0
AGAIN_SECONDS = 1.0  # between two orders to drain
REPORT_SECONDS = 4.0  # a busy lane reports late, since jobs go first; `reducer status` waits 5 s
_SWEEP_SECONDS = 0.25  # between two checks of the waiting sockets
# A process that has lived for less than this has died quickly. A death after a longer life counts
# as the first of a new row. After the third death in a row the next start is delayed, each time
# twice as long.
# The longest delay is shorter than the time that a job without another reducer waits for this one
# (30 s).
_STEADY_SECONDS = 60.0
_QUICK_DEATHS = 3
_FIRST_PAUSE = 2.0
_LAST_PAUSE = 10.0


def pause_before_restart(quick_deaths: int) -> float:
    """Seconds before the next start, after this number of quick deaths in a row."""
    if quick_deaths < _QUICK_DEATHS:
        return 0.0
    doublings = min(quick_deaths - _QUICK_DEATHS, 16)
    return min(_FIRST_PAUSE * 2.0**doublings, _LAST_PAUSE)


class LaneHandle:
    """One lane, over all processes that serve it one after another.

    ``room``: how many sockets may wait for it. ``core``: the core to which its processes bind
    themselves; None for all.
    """

    def __init__(
        self,
        options: serve_options.Config,
        lane: int,
        key: bytes,
        room: int,
        core: int | None = None,
    ) -> None:
        self.lane = lane
        self.restarts = 0
        self.failure = ""  # how the lane has ended, if it did not drain
        self.ready = asyncio.Event()  # a process takes sockets
        self.ended = asyncio.Event()  # no process will take sockets again
        self._options = options
        self._key = key
        self._core = core
        self._child: LaneChild | None = None
        self._started = False
        self._stopping = asyncio.Event()
        self._killed = ""
        self._orders = Orders(room)
        self._is_full = False  # the process has not read its orders
        self._sweep: asyncio.TimerHandle | None = None
        self._asked: dict[bytes, asyncio.Future[Any]] = {}  # by the question
        self._parts: list[Part] = []  # of a report that is not complete yet
        self._limit = RateLimit(1.0)

    async def keep(self) -> None:
        """Start a process, and another one whenever it dies, until `drain` or `kill`.

        If the first process does not become ready, no other is started, and `failure` gives the
        reason.
        """
        quick_deaths = 0
        while not self._stopping.is_set():
            try:
                began = time.monotonic()
                how = await self._live()
                if self._stopping.is_set() or not self._started:
                    self.failure = how
                    break
                lived = time.monotonic() - began
                quick_deaths = quick_deaths + 1 if lived < _STEADY_SECONDS else 1
                await self._pause(how, quick_deaths)
            except Exception:
                logger.exception("lane %d is started again after an internal error", self.lane)
                await asyncio.sleep(AGAIN_SECONDS)
        self.ended.set()
        self._orders.close()
        if self._sweep is not None:
            self._sweep.cancel()

    async def _live(self) -> str:
        """Run one process. Returns how the process has ended; empty for exit status 0."""
        child = LaneChild(self.lane, self._hear, self._core)
        try:
            await child.start(self._options, self._key)
        except OSError as error:
            return f"lane {self.lane} could not be started: {error.strerror}"
        except Exception as error:  # as below
            return f"lane {self.lane} could not be started: {error!r}"
        try:
            how = await self._end_of(child)
        except Exception as bug:  # else no process would be started again
            logger.exception("%s is killed after an internal error", child)
            child.kill()
            how = f"an internal error: {bug!r}"
        finally:
            self.ready.clear()
            self._child = None
            self._is_full = False
            self._parts = []
        for question in list(self._asked):
            self._answered(question, None)
        return how and f"{child} ended with {how}"

    async def _end_of(self, child: LaneChild) -> str:
        self._child = child
        if self._killed:
            child.kill(self._killed)
        late = asyncio.get_running_loop().call_later(START_SECONDS, self._kill_if_not_ready, child)
        how = await child.end()
        late.cancel()
        return how

    def _kill_if_not_ready(self, child: LaneChild) -> None:
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
        elif "part" in answer:
            self._parts.append(part_of(answer["part"]))
        elif "snapshot" in answer:
            parts, self._parts = self._parts, []
            numbers = numbers_of(answer["snapshot"])
            self._answered(ORDER_REPORT, put_together(numbers, parts))
        elif "pong" in answer:
            self._answered(ORDER_PING, None)

    def pass_socket(self, sock: socket.socket, preface: bytes) -> bool:
        """Hand a connected socket to the lane, and close this process's copy.

        Returns False if the lane takes no more; the socket is then still the caller's. While the
        lane has no process, the socket waits for the next one, WAIT_SECONDS at most.
        """
        loop = asyncio.get_running_loop()
        if self.ended.is_set() or not self._orders.take(sock, preface, loop.time()):
            return False
        self._maybe_give_orders()
        if self._sweep is None and self._orders.first() is not None:
            self._sweep = loop.call_later(_SWEEP_SECONDS, self._close_late)
        return True

    @property
    def expired(self) -> int:
        """How many sockets were closed because they had waited too long."""
        return self._orders.expired

    def _close_late(self) -> None:
        loop = asyncio.get_running_loop()
        before = self.expired
        waits = self._orders.close_late(loop.time())
        self._sweep = loop.call_later(_SWEEP_SECONDS, self._close_late) if waits else None
        if self.expired > before:
            self._warn(
                f"takes no connections: {self.expired:,} were closed after {WAIT_SECONDS:g} s"
            )

    async def snapshot(self) -> LaneReport | None:
        """The lane's report, None while it has no process.

        Raises TimeoutError if the lane does not answer in time. Requests that come before the
        answer share it.
        """
        found: LaneReport | None = await self._ask(ORDER_REPORT, REPORT_SECONDS)
        return found

    async def ping(self) -> None:
        """Return when the lane has answered, or at once if it has no process. Raises as `snapshot`
        does.
        """
        await self._ask(ORDER_PING, PING_SECONDS)

    async def _ask(self, question: bytes, seconds: float) -> Any:
        if not self.ready.is_set():
            return None
        answer = self._asked.get(question)
        if answer is None:
            answer = self._asked[question] = asyncio.get_running_loop().create_future()
            self._orders.ask(question)
            self._maybe_give_orders()
        try:
            return await asyncio.wait_for(asyncio.shield(answer), seconds)
        except TimeoutError:  # the lane may have lost the question: the next request asks again
            if self._asked.get(question) is answer and not self._orders.waits(question):
                del self._asked[question]
            raise

    def _answered(self, question: bytes, found: LaneReport | None) -> None:
        answer = self._asked.pop(question, None)
        if answer is not None:
            answer.set_result(found)

    def drain(self) -> None:
        """Order the process to finish its open rounds and to end."""
        self._stopping.set()
        self._orders.drain()
        self._maybe_give_orders()

    def kill(self, why: str) -> None:
        """End the process at once; ``why`` becomes a part of `failure`."""
        self._stopping.set()
        self._killed = self._killed or why
        if self._child is not None:
            self._child.kill(self._killed)

    def _maybe_give_orders(self) -> None:
        if not self._is_full:
            self._give_orders()

    def _give_orders(self) -> None:
        child = self._child
        if child is None or not self.ready.is_set():
            return
        child.when_writable(None)
        self._is_full = False
        while (order := self._orders.first()) is not None:
            try:
                child.send(order.data, order.sock)
            except BlockingIOError:
                self._is_full = True
                child.when_writable(self._give_orders)
                return
            except (BrokenPipeError, ConnectionResetError):
                return  # `keep` notices the end of the process
            except OSError as error:
                self._warn(f"cannot be sent order {order.data[:1]!r}: {error}")
            self._orders.sent()

    def _warn(self, text: str) -> None:
        held = self._limit.admit(asyncio.get_running_loop().time())
        if held is not None:
            more = f" ({held} more since the last such line)" if held else ""
            logger.warning("lane %d %s%s", self.lane, text, more)


class LaneGroup:
    """All lanes of one daemon."""

    def __init__(self, options: serve_options.Config, key: bytes) -> None:
        lanes = options.lane_count
        room = max(1, file_descriptors.room_for_waiting() // lanes)
        self.handles = [
            LaneHandle(options, lane, key, room, core)
            for lane, core in enumerate(_cores(options, lanes))
        ]
        self._keepers: list[asyncio.Task[None]] = []

    def spawn(self, on_failure: Callable[[], None]) -> None:
        """Start all processes. `on_failure` is called if a lane can no longer be started again."""
        for handle in self.handles:
            keeper = asyncio.create_task(handle.keep())
            keeper.add_done_callback(functools.partial(_on_keeper_end, handle, on_failure))
            self._keepers.append(keeper)

    async def wait_ready(self) -> None:
        """Wait until all lanes take sockets; raises RuntimeError with the reason if one cannot."""
        for handle in self.handles:
            waits = [asyncio.create_task(event.wait()) for event in (handle.ready, handle.ended)]
            _, rest = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in rest:
                wait.cancel()
            if handle.ended.is_set():
                raise RuntimeError(handle.failure)

    def failure(self) -> str:
        """How the first lane that did not drain has ended; empty if all lanes drained."""
        return next((handle.failure for handle in self.handles if handle.failure), "")

    def down(self) -> list[int]:
        """Lanes that have no process now."""
        return [handle.lane for handle in self.handles if not handle.ready.is_set()]

    async def snapshots(self) -> list[LaneReport]:
        """The report of every lane that has a process; TimeoutError if one does not answer."""
        found = await asyncio.gather(*(handle.snapshot() for handle in self.handles))
        return [report for report in found if report is not None]

    async def ping(self) -> None:
        """Return once every lane that has a process has answered; TimeoutError if one does not."""
        await asyncio.gather(*(handle.ping() for handle in self.handles))

    async def drain(self, seconds: float) -> None:
        """Let all lanes finish; a lane that takes longer than ``seconds`` is killed.

        The order is repeated, because a lane may have lost it.
        """
        now = asyncio.get_running_loop().time
        until = now() + seconds
        rest: Collection[asyncio.Task[None]] = self._keepers
        while rest and now() < until:
            for handle in self.handles:
                handle.drain()
            _, rest = await asyncio.wait(rest, timeout=min(AGAIN_SECONDS, until - now()))
        for handle in self.handles:
            handle.kill(f"it did not drain within {seconds:g} s")

    async def close(self) -> None:
        """Kill the processes that still run, and wait for them."""
        for handle in self.handles:
            handle.kill("the daemon ends")
        await asyncio.gather(*self._keepers, return_exceptions=True)


def _cores(options: serve_options.Config, lanes: int) -> Sequence[int | None]:
    """The core of each lane; None for a lane that may run on all cores."""
    if not options.pin:
        return [None] * lanes
    cores = topology.cores_for_lanes(options.host, lanes)
    shown = ", ".join(f"{lane} to core {core}" for lane, core in enumerate(cores))
    logger.info("lanes are bound to cores: %s", shown)
    return cores


def _on_keeper_end(
    handle: LaneHandle, on_failure: Callable[[], None], keeper: asyncio.Task[None]
) -> None:
    bug = None if keeper.cancelled() else keeper.exception()
    if bug is not None:
        handle.failure = f"lane {handle.lane} cannot be started again: {bug!r}"
        handle.ended.set()
        on_failure()
