"""A lane process that cannot tick, or cannot answer, ends: without ticks nothing has a deadline."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from reducer.core.lane import Lane
from reducer.server.data.timeline import Timeline
from reducer.server.lane import process as lane_module
from reducer.server.lane.process import LaneProcess
from reducer.server.pipe.lane_options import LaneOptions
from reducer.server.pipe.orders import ORDER_SOCKET
from tests.support.faults import Faulty


class Cycles:
    """A stand-in, since garbage collection must go on in the tests' process."""

    def tick(self, lane: Lane) -> None:
        """Does nothing."""


class Failing:
    """A stand-in for a part that a tick calls."""

    def fail(self, *args: Any) -> None:
        raise MemoryError("injected")

    tick = flush = drained = fail


class Loop(asyncio.SelectorEventLoop):
    fails = False

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:
        if self.fails and getattr(callback, "__name__", "") == "_tick":
            raise MemoryError("injected")
        return super().call_later(delay, callback, *args, context=context)


def no_collection(process: LaneProcess, failing: Any) -> None:
    process._cycles = failing


def no_timeline(process: LaneProcess, failing: Any) -> None:
    process._shell.executor.timeline = failing


def no_end_of_a_drain(process: LaneProcess, failing: Any) -> None:
    process._lane = failing
    process._drain_until = time.monotonic() + 100


def no_next_tick(process: LaneProcess, failing: Any) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, Loop)
    loop.fails = True


@contextmanager
def a_lane(monkeypatch: pytest.MonkeyPatch) -> Iterator[LaneProcess]:
    monkeypatch.setattr(lane_module, "Cycles", Cycles)
    orders, far = socket.socketpair()
    reads, writes = os.pipe()
    options = LaneOptions(
        lane=1, lanes=2, core=None, parent=os.getpid(), orders_fd=orders.detach(),
        answers_fd=writes, memory=1 << 30, credit=1 << 20, records=1 << 20, stall_after=5.0,
        drain_timeout=1.0, slow_reader_timeout=10.0, congestion="", job_memory=0,
        max_total_runs=10, max_runs=10, max_reducers=10, max_keys=10, kernels="auto", psk=False,
        tls=(), log_level="info", log_format="text", debug="", timeline="", registry="",
    )  # fmt: skip
    with far, closing(os.fdopen(reads)):
        yield LaneProcess(options, lambda: None)


def on_a_lane(
    test: Callable[[LaneProcess], Coroutine[Any, Any, None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run the test on a lane that does not run, and so closes nothing itself."""
    with a_lane(monkeypatch) as process:
        asyncio.run(test(process))
        process._orders.close()
        os.close(process._options.answers_fd)


@contextmanager
def passed_on(process: LaneProcess) -> Iterator[socket.socket]:
    """Pass a connection to the lane; yields the worker's end."""
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname(), 5) as worker:
        process._take_socket(ORDER_SOCKET, [listener.accept()[0].detach()])
        yield worker


async def serve(process: LaneProcess, harm: Callable[[LaneProcess, Any], None]) -> None:
    loop = asyncio.get_running_loop()
    loop.call_later(0.1, harm, process, Failing())
    try:
        async with asyncio.timeout(10):
            await process.run()
    finally:  # a real lane leaves this to the end of its process
        loop.remove_reader(process._orders.fileno())
        process._orders.close()
        process._answers.close()
        await asyncio.sleep(0)


def no_answer(process: LaneProcess, failing: Any) -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        os.dup2(full.fileno(), process._options.answers_fd)
    process._answer(pong=True)


def test_a_lane_ends_with_its_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the lane lived on, and `/healthz` reported for ever that it does not answer."""
    full = pytest.raises(OSError, match="No space left")
    with a_lane(monkeypatch) as process, asyncio.Runner(loop_factory=Loop) as runner, full:
        runner.run(serve(process, no_answer))


def test_a_full_disk_ends_the_timeline_and_not_the_lane(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def tick(process: LaneProcess) -> None:
        timeline = process._shell.executor.timeline = Timeline(str(tmp_path), 7, 0)
        with open("/dev/full", "wb", buffering=0) as full:
            os.dup2(full.fileno(), timeline._fd)
        process._tick(0.0)
        assert process._failure is None
        assert process._shell.executor.timeline is None

    on_a_lane(tick, monkeypatch)
    assert f"the timeline {tmp_path}" in caplog.text and "No space left on device" in caplog.text


async def a_drain_that_fails_once(process: LaneProcess) -> None:
    shell = process._shell
    process._shell = Faulty(shell, "feed", MemoryError("injected"))
    with pytest.raises(MemoryError):
        process._drain()
    until = process._drain_until
    assert not shell._lane._roster.draining
    process._drain()
    assert process._drain_until == until, "the deadline of the rounds was moved"
    assert shell._lane._roster.draining == lane_module.WHY_IT_ENDS


def test_a_drain_that_fails_is_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: no run was told, so their rounds waited until the end of the lane."""
    on_a_lane(a_drain_that_fails_once, monkeypatch)


async def a_socket_whose_task_is_lost(process: LaneProcess) -> None:
    loop: Any = asyncio.get_running_loop()

    async def never(*args: object) -> None:
        await asyncio.Event().wait()

    loop.connect_accepted_socket = never
    with passed_on(process) as worker:
        process._end_adoptions(loop.time(), 0.0)
        await asyncio.sleep(0)
        assert len(process._adopting) == 1
        late = loop.time() + lane_module.ADOPT_SECONDS
        process._end_adoptions(late, lane_module.ADOPT_SECONDS)
        assert len(process._adopting) == 1, "ended although the process was stopped"
        process._end_adoptions(late + lane_module.ADOPT_SECONDS, 0.0)
        await asyncio.sleep(0)
        assert worker.recv(1) == b"" and not process._adopting
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_a_socket_whose_task_is_lost_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the loop had no memory for the task, and the worker waited until its timeout."""
    on_a_lane(a_socket_whose_task_is_lost, monkeypatch)


async def a_task_that_is_late(process: LaneProcess) -> None:
    loop: Any = asyncio.get_running_loop()
    connect, rest = loop.connect_accepted_socket, asyncio.Event()

    async def late(*args: Any) -> None:
        await connect(*args)
        await rest.wait()

    loop.connect_accepted_socket = late
    with passed_on(process):
        while not process._shell.connections:
            await asyncio.sleep(0)
        process._end_adoptions(loop.time() + lane_module.ADOPT_SECONDS, 0.0)
        await asyncio.sleep(0.1)
        assert not process._adopting and len(process._shell.connections) == 1
        rest.set()
    while process._shell.connections:
        await asyncio.sleep(0.01)


def test_a_connection_whose_task_is_late_is_not_closed_under_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: the connection stayed with its run's memory, and no drain could end."""
    on_a_lane(a_task_that_is_late, monkeypatch)


async def a_socket_without_memory(process: LaneProcess) -> None:
    loop: Any = asyncio.get_running_loop()
    told: list[object] = []
    loop.set_exception_handler(lambda loop, context: told.append(context["exception"]))

    async def fail(*args: object) -> None:
        raise OSError(errno.ENOBUFS, "injected")

    loop.connect_accepted_socket = fail
    with passed_on(process) as worker:
        gc.disable()  # as in a lane
        for _ in range(3):
            await asyncio.sleep(0)
        gc.enable()
        assert worker.recv(1) == b""
    (error,) = told
    assert isinstance(error, OSError) and not process._adopting


def test_a_socket_that_the_system_has_no_memory_for_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: the socket was taken for a dead one."""
    on_a_lane(a_socket_without_memory, monkeypatch)


@pytest.mark.parametrize("harm", [no_collection, no_timeline, no_end_of_a_drain, no_next_tick])
def test_a_lane_ends_with_its_ticks(
    harm: Callable[[LaneProcess, Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the lane lived on without heartbeats and deadlines, and was not restarted."""
    with a_lane(monkeypatch) as process, asyncio.Runner(loop_factory=Loop) as runner:
        with pytest.raises(MemoryError, match="injected"):
            runner.run(serve(process, harm))
        assert process._shell.counters.internal_errors == 0
