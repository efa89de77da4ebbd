"""The main process's handle of a lane: it repeats lost requests and restarts lost processes."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from reducer.server import file_descriptors, serve_options
from reducer.server.daemon import lane_child, lanes
from reducer.server.daemon.lane_child import LaneChild
from reducer.server.daemon.lanes import LaneGroup, LaneHandle
from reducer.server.data.shell import LaneShell
from reducer.server.lane.process import LaneProcess
from reducer.server.pipe.orders import ORDER_DRAIN, ORDER_PING, ORDER_SOCKET
from tests.support.cluster import usage


class Child:
    """A process; waiting for its end fails, except for the third process."""

    made = 0

    def __init__(self, lane: int, hear: Callable[[dict[str, Any]], None], core: int | None) -> None:
        Child.made += 1
        self._hear = hear
        self.killed = False

    async def start(self, options: serve_options.Config, key: bytes) -> None:
        self._hear({"ready": True})

    def when_writable(self, call: Callable[[], None] | None) -> None:
        """Nothing is ever written."""

    def kill(self, why: str = "") -> None:
        self.killed = True

    async def end(self) -> str:
        if Child.made < 3:
            raise MemoryError("injected")
        return "status 1"


def handle() -> LaneHandle:
    return LaneHandle(serve_options.Config(), 0, b"", 10)


def test_a_question_that_a_lane_has_lost_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: /healthz stayed 503, while the jobs worked."""
    monkeypatch.setattr(lanes, "PING_SECONDS", 0.01)

    async def run() -> None:
        lane = handle()
        lane.ready.set()
        for _ in range(2):
            asked = asyncio.create_task(lane.ping())
            await asyncio.sleep(0)
            order = lane._orders.first()
            assert order is not None and order.data == ORDER_PING
            lane._orders.sent()
            with pytest.raises(TimeoutError):
                await asked
        assert lane._orders.first() is None

    asyncio.run(run())


async def keep_three(lane: LaneHandle) -> None:
    """Run `keep` until it has made the third process."""
    keeper = asyncio.create_task(lane.keep())
    async with asyncio.timeout(10):
        while Child.made < 3:
            await asyncio.sleep(0)
    lane.kill("the test is over")
    await keeper


def test_another_process_is_started_whatever_has_ended_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the task that keeps the lane died unnoticed."""
    monkeypatch.setattr(Child, "made", 0)
    monkeypatch.setattr(lanes, "LaneChild", Child)
    monkeypatch.setattr(lanes, "_FIRST_PAUSE", 0.0)

    async def run() -> None:
        lane = handle()
        await keep_three(lane)
        assert lane.restarts >= 2 and lane.ended.is_set()

    asyncio.run(run())


class Unstartable(Child):
    """The start of the second process fails for lack of memory."""

    async def start(self, options: serve_options.Config, key: bytes) -> None:
        if Unstartable.made == 2:
            raise MemoryError("injected")
        await super().start(options, key)


def test_another_process_is_started_where_one_could_not_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start fails for lack of memory, not of a descriptor."""
    monkeypatch.setattr(Child, "made", 0)
    monkeypatch.setattr(lanes, "LaneChild", Unstartable)
    monkeypatch.setattr(lanes, "_FIRST_PAUSE", 0.0)

    async def run() -> None:
        lane = handle()
        await keep_three(lane)
        assert lane.ended.is_set()

    asyncio.run(run())


def test_a_failure_between_two_processes_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the lane was never restarted, and /healthz said ok."""
    monkeypatch.setattr(Child, "made", 0)
    monkeypatch.setattr(lanes, "LaneChild", Child)
    monkeypatch.setattr(lanes, "AGAIN_SECONDS", 0.0)
    failures = [MemoryError("injected")]

    async def run() -> None:
        lane = handle()
        pause = lane._pause

        async def fail_once(how: str, quick_deaths: int) -> None:
            if failures:
                raise failures.pop()
            await pause(how, 0)

        monkeypatch.setattr(lane, "_pause", fail_once)
        await keep_three(lane)
        assert lane.ended.is_set() and not failures

    asyncio.run(run())


def test_a_lane_that_nobody_would_start_again_ends_the_daemon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        group, gave_up = LaneGroup(serve_options.Config(lanes=1), b""), asyncio.Event()

        async def fail() -> None:
            raise MemoryError("injected")

        monkeypatch.setattr(group.handles[0], "keep", fail)
        group.spawn(gave_up.set)
        async with asyncio.timeout(10):
            await gave_up.wait()
        await group.close()
        assert "lane 0 cannot be started again" in group.failure()

    asyncio.run(run())


def test_the_end_of_a_process_is_found_though_nobody_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: /readyz stayed ready with a dead lane."""
    monkeypatch.setattr(lane_child, "WATCH_SECONDS", 0.01)

    def lose(child: LaneChild, pidfd: int) -> None:
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)

    monkeypatch.setattr(LaneChild, "_on_exit", lose)

    async def run() -> None:
        child = LaneChild(0, lambda answer: None)
        await child.start(serve_options.Config(), b"")
        child.kill()
        async with asyncio.timeout(10):
            assert await child.end() == "signal SIGKILL"

    asyncio.run(run())


def test_a_process_whose_answers_cannot_be_taken_is_killed() -> None:
    """Regression: its answers were no longer read, and /healthz stayed 503."""
    why = []

    def hear(answer: dict[str, Any]) -> None:
        raise MemoryError("injected")

    async def run() -> None:
        child = LaneChild(0, hear)
        child.kill = why.append  # type: ignore[method-assign,assignment]
        reader = asyncio.StreamReader()
        reader.feed_data(b'{"pong": 1}\n')
        await child._read_answers(reader)

    asyncio.run(run())
    assert len(why) == 1 and "injected" in why[0]


def test_nothing_is_left_of_a_process_that_cannot_be_watched() -> None:
    """Regression: the process could neither be ended nor was its end noticed."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        before = usage(os.getpid())
        child = LaneChild(0, lambda answer: None)

        def fail(*arguments: object) -> None:
            raise MemoryError("injected")

        loop.add_reader, add_reader = fail, loop.add_reader  # type: ignore[method-assign,assignment]
        try:
            with pytest.raises(MemoryError):
                await child.start(serve_options.Config(), b"")
        finally:
            loop.add_reader = add_reader  # type: ignore[method-assign]
        await asyncio.sleep(0)
        assert child._process.returncode is not None
        assert usage(os.getpid()).descriptors == before.descriptors

    asyncio.run(run())


def a_lane(ours: socket.socket, at_once: int = 4) -> LaneProcess:
    """A lane process that can only take orders."""
    lane = LaneProcess.__new__(LaneProcess)
    ours.setblocking(False)
    lane._orders, lane._order, lane._unpassed = ours, bytearray(64), 0
    lane._shell = cast(LaneShell, SimpleNamespace(newcomers_at_once=at_once))
    return lane


def no_memory(*args: object, **kwargs: object) -> Any:
    raise MemoryError("injected")


def no_socket(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(socket, "socket", no_memory)


def no_list(patch: pytest.MonkeyPatch) -> None:
    passed, turns = file_descriptors.passed, iter([no_memory])
    patch.setattr(file_descriptors, "passed", lambda found: next(turns, passed)(found))


@pytest.mark.parametrize("harm", [no_socket, no_list])
def test_a_passed_socket_that_cannot_be_taken_is_closed(
    harm: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: its worker waited until its timeout, and the lane kept the descriptor."""
    ours, main = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    passed, worker = socket.socketpair()
    with ours, main, worker:
        with passed:
            socket.send_fds(main, [ORDER_SOCKET + bytes(16)], [passed.fileno()])
        lane = a_lane(ours)
        harm(monkeypatch)
        with pytest.raises(MemoryError):
            lane._on_orders()
        monkeypatch.undo()
        worker.settimeout(5)
        assert worker.recv(1) == b""


@pytest.mark.parametrize("at_once", [1, 4])
def test_a_lane_takes_no_more_sockets_at_once_than_its_shell_wants(at_once: int) -> None:
    """Regression: 1,500 simultaneous workers were taken before any HELLO was read: 600 lost."""
    ours, main = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, main:
        lane = a_lane(ours, at_once)
        for _ in range(5):
            main.send(ORDER_SOCKET)  # without descriptors
        lane._on_orders()
        assert lane._unpassed == at_once


class Deaf(Child):
    """A lane that loses the first order to drain."""

    def __init__(self, lane: int, hear: Callable[[dict[str, Any]], None], core: int | None) -> None:
        super().__init__(lane, hear, core)
        self._told = 0
        self._ended = asyncio.Event()

    def send(self, order: bytes, sock: socket.socket | None) -> None:
        self._told += order == ORDER_DRAIN
        if self._told == 2:
            self._ended.set()

    async def end(self) -> str:
        await self._ended.wait()
        return ""


def test_an_order_to_drain_that_is_lost_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the lane served on until it was killed, and the drain failed."""
    monkeypatch.setattr(lanes, "LaneChild", Deaf)
    monkeypatch.setattr(lanes, "AGAIN_SECONDS", 0.01)

    async def run() -> None:
        group = LaneGroup(serve_options.Config(lanes=1), b"")
        group.spawn(lambda: None)
        await group.wait_ready()
        await group.drain(10.0)
        assert not group.failure()
        await group.close()

    asyncio.run(run())
