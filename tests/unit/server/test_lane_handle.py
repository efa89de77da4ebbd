"""The main process's end of a lane: whatever fails, it asks again and starts another process."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Any

import pytest

from reducer import config
from reducer.server import lanes
from reducer.server.lane import LaneProcess
from reducer.server.lanes import LaneHandle
from reducer.server.orders import ORDER_PING


class Child:
    """Processes whose ends cannot be waited for, but for the last one."""

    made = 0

    def __init__(self, lane: int, hear: Callable[[dict[str, Any]], None]) -> None:
        Child.made += 1
        self._hear = hear
        self.killed = False

    async def start(self, options: config.Config, key: bytes) -> None:
        self._hear({"ready": True})

    def when_writable(self, call: Callable[[], None] | None) -> None:
        """There is never anything to give."""

    def kill(self, why: str = "") -> None:
        self.killed = True

    async def end(self) -> str:
        if Child.made < 3:
            raise MemoryError("injected")
        return "status 1"


def handle() -> LaneHandle:
    return LaneHandle(config.Config(), 0, b"", 10)


def test_a_question_that_a_lane_has_lost_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """/healthz was 503 for ever, while the jobs worked."""
    monkeypatch.setattr(lanes, "PING_SECONDS", 0.01)

    async def run() -> None:
        lane = handle()
        lane.ready.set()
        for _ in range(2):
            asked = asyncio.create_task(lane.ping())
            await asyncio.sleep(0)
            order = lane._orders.first()
            assert order is not None and order.data == ORDER_PING
            lane._orders.given()
            with pytest.raises(TimeoutError):
                await asked
        assert lane._orders.first() is None

    asyncio.run(run())


def test_another_process_is_started_whatever_has_ended_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task that keeps the lane died, and nobody looked at it."""
    monkeypatch.setattr(lanes, "LaneChild", Child)
    monkeypatch.setattr(lanes, "_FIRST_PAUSE", 0.0)

    async def run() -> None:
        lane = handle()
        keeper = asyncio.create_task(lane.keep())
        async with asyncio.timeout(10):
            while Child.made < 3:
                await asyncio.sleep(0)
        lane.kill("the test is over")
        await keeper
        assert lane.restarts >= 2 and lane.ended.is_set()

    asyncio.run(run())


def test_a_passed_socket_that_cannot_be_taken_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its worker waited for an answer until its time-out, and the lane kept the descriptor."""
    ours, theirs = socket.socketpair()

    def no_memory(*args: object, **kwargs: object) -> None:
        raise MemoryError("injected")

    fd = os.dup(theirs.fileno())
    monkeypatch.setattr(socket, "socket", no_memory)
    with pytest.raises(MemoryError):
        LaneProcess._take_socket(
            LaneProcess.__new__(LaneProcess),
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fd.to_bytes(4, "little"))],
            b"",
        )
    monkeypatch.undo()
    theirs.close()
    with ours:
        ours.settimeout(5)
        assert ours.recv(1) == b""
