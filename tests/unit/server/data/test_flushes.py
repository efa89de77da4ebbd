"""Waiting frames are written although a flush has failed: the next tick flushes again.

The same holds for connections that wait for the end of a pass which has no time for all.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import pytest

from reducer.server.data.buffers import BufferPool
from reducer.server.data.connection import Connection
from reducer.server.data.shell import ENDED_AT_ONCE, FLUSHED_AT_ONCE, LaneShell
from reducer.server.data.turns import SECONDS
from tests.support.bare_lane import BUDGET, KERNELS, Sink, bare_lane

FRAME = bytes(100)


class Loop(asyncio.SelectorEventLoop):
    """A loop whose `call_soon` fails for flush number `fails`; 1 is the next one.

    `failures` counts what has failed on purpose, in `call_soon` or in a transport.
    """

    fails = 0
    failures = 0

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:
        if getattr(callback, "__name__", "") == "_flush":
            self.fails -= 1
            if self.fails == 0:
                self.fail()
        return super().call_soon(callback, *args, context=context)

    def fail(self) -> NoReturn:
        self.failures += 1
        raise MemoryError("injected")


def fail() -> NoReturn:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, Loop)
    loop.fail()


class Failing(Sink):
    """A transport that fails once to write and to end."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = True
        self.before: Callable[[], None] = lambda: None

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        if self.fails:
            self.before()
            fail()
        super().writelines(list_of_data)

    def abort(self) -> None:
        self.fails = False
        fail()


class Ended(Sink):
    """A transport that records its end, by end of file or abort; `socket` has its queue."""

    socket: socket.socket

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.ended = False
        self._fails = fails

    def can_write_eof(self) -> bool:
        if self._fails:
            fail()
        return True

    def write_eof(self) -> None:
        self.ended = True

    def abort(self) -> None:
        self.ended = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.socket


class Lingering(Ended):
    """A transport whose worker does not close after the end of file."""

    cut_off = False

    def abort(self) -> None:
        self.cut_off = True


class LongEnded(Ended):
    """A transport whose end takes longer than a turn."""

    def write_eof(self) -> None:
        time.sleep(SECONDS)
        super().write_eof()


class UnreadableError(ConnectionError):
    """An error whose text cannot be made."""

    def __str__(self) -> str:
        fail()


class LongError(ConnectionError):
    """An error whose text takes longer than a turn."""

    def __str__(self) -> str:
        time.sleep(SECONDS)
        return "reset"


class Lane:
    """A lane with connections. `has_time`: a pass has time for all, even on a slow machine."""

    def __init__(self, sinks: list[Sink], has_time: bool = False) -> None:
        self.loop = asyncio.get_running_loop()
        assert isinstance(self.loop, Loop)
        self.loop.set_exception_handler(lambda loop, context: None)
        self.shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
        self.sinks = sinks
        self.connections = [self._connect(sink) for sink in sinks]
        if has_time:
            self.shell.turns.seconds = 60.0

    def _connect(self, sink: Sink) -> Connection:
        connection = self.shell.connection()
        connection.connection_made(sink)
        return connection

    def send(self) -> None:
        for connection in self.connections:
            connection.send([FRAME], len(FRAME))

    async def wait(self) -> list[int]:
        """Tick; returns how many frames each sink has taken."""
        self.shell.tick()
        for _ in range(4 + len(self.sinks) // FLUSHED_AT_ONCE):
            await asyncio.sleep(0)
        return [sink.taken // len(FRAME) for sink in self.sinks]


async def no_callback() -> None:
    lane = Lane([Sink()])
    lane.loop.fails = 1  # type: ignore[attr-defined]
    with pytest.raises(MemoryError):
        lane.send()
    assert await lane.wait() == [1]
    lane.send()
    assert await lane.wait() == [2]


async def no_next_callback() -> None:
    """A tick has sent more than a pass can write."""
    lane = Lane([Sink() for _ in range(2 * FLUSHED_AT_ONCE)])
    lane.loop.fails = 2  # type: ignore[attr-defined]
    lane.shell._ticks = True
    lane.send()
    lane.shell._ticks = False
    for _ in range(4):
        await asyncio.sleep(0)
    assert sum(sink.taken for sink in lane.sinks) == FLUSHED_AT_ONCE * len(FRAME)
    assert await lane.wait() == [1] * len(lane.sinks)


async def no_time_for_a_tick() -> None:
    """Regression: the job's earlier writes did not count: 64 answers of 1 MiB were one step."""
    lane = Lane([Sink(), Sink()])
    lane.shell._ticks = True
    lane.send()
    lane.shell._ticks = False
    lane.connections[0].turn.written = 1.0
    await asyncio.sleep(0)
    assert not any(sink.taken for sink in lane.sinks)
    assert await lane.wait() == [1, 1]


async def one_that_cannot_be_ended() -> None:
    lane = Lane([Sink(), Failing(), Sink()])
    lane.send()
    await lane.wait()  # the flush fails
    before, _, after = await lane.wait()
    assert (before, after) == (1, 1)
    lane.send()
    before, _, after = await lane.wait()
    assert (before, after) == (2, 2)


async def one_that_lacks_a_frame() -> None:
    """The peer could not decode the frames after the lost one, so the connection ends."""
    (connection,) = Lane([Failing()]).connections
    connection.send([FRAME], len(FRAME))
    with pytest.raises(MemoryError):
        connection.flush()
    assert connection.is_closing()


async def one_that_is_queued_meanwhile() -> None:
    """The end of a session may send frames to other sessions."""
    failing = Failing()
    lane = Lane([failing, Sink()])
    ends, stays = lane.connections

    def say() -> None:
        stays.send([FRAME], len(FRAME))

    failing.before = say
    ends.send([FRAME], len(FRAME))
    assert (await lane.wait())[1] == 1


async def one_whose_end_fails() -> None:
    lane = Lane([Ended(), Ended(fails=True), Ended()])
    for connection in lane.connections:
        connection.close("it is over")
    await lane.wait()
    assert all(sink.ended for sink in lane.sinks if isinstance(sink, Ended))
    assert lane.shell.counters.internal_errors == 1


async def no_end_of_many() -> None:
    lane = Lane([Ended() for _ in range(2 * ENDED_AT_ONCE)], has_time=True)
    lane.loop.fails = 2  # type: ignore[attr-defined]
    for connection in lane.connections:
        connection.close("it is over")
    for _ in range(4):
        await asyncio.sleep(0)
    ended = [isinstance(sink, Ended) and sink.ended for sink in lane.sinks]
    assert sum(ended) == ENDED_AT_ONCE, "not limited per pass"
    await lane.wait()
    assert all(isinstance(sink, Ended) and sink.ended for sink in lane.sinks)


async def no_end_of_all_that_linger() -> None:
    """Ranks of an ended run that do not read: their timers expire together."""
    sinks = [Lingering() for _ in range(2 * ENDED_AT_ONCE)]
    lane = Lane([*sinks], has_time=True)
    for connection in lane.connections:
        connection.close("it is over")
    await lane.wait()
    for connection, sink in zip(lane.connections, sinks, strict=True):
        connection._maybe_cut_off(sink, 0)
    assert not any(sink.cut_off for sink in sinks)
    await asyncio.sleep(0)
    assert sum(sink.cut_off for sink in sinks) == ENDED_AT_ONCE
    await lane.wait()
    assert all(sink.cut_off for sink in sinks)


async def no_flush_for_each_tick() -> None:
    """Regression: each tick with waiting frames started a chain of flushes: 33 in each pass."""
    lane = Lane([Ended() for _ in range(8 * ENDED_AT_ONCE)], has_time=True)
    for connection in lane.connections:
        connection.close("it is over")
    for _ in range(5):
        lane.shell.tick()
    await asyncio.sleep(0)
    ended = [isinstance(sink, Ended) and sink.ended for sink in lane.sinks]
    assert sum(ended) == ENDED_AT_ONCE
    await lane.wait()


async def no_loss_of_many() -> None:
    """Regression: 4,000 lost connections in mode tls blocked a lane for 160 ms."""
    lane = Lane([Sink() for _ in range(4 * ENDED_AT_ONCE)], has_time=True)
    lane.loop.fails = 2  # type: ignore[attr-defined]
    for connection in lane.connections:
        connection.connection_lost(None)
    left = [len(lane.shell.connections)]
    for _ in range(4):
        await asyncio.sleep(0)
        left.append(len(lane.shell.connections))
    assert left == [4 * ENDED_AT_ONCE, *[3 * ENDED_AT_ONCE] * 4], "not limited per pass"
    await lane.wait()
    assert not lane.shell.connections and not lane.shell._lane.snapshot().sessions


async def no_turn_for_a_loss() -> None:
    lane = Lane([Sink() for _ in range(3)])
    lane.loop.fails = 1  # type: ignore[attr-defined]
    one, other, stays = lane.connections
    with pytest.raises(MemoryError):
        one.connection_lost(None)
    assert one.session not in lane.shell.connections
    other.connection_lost(None)
    await lane.wait()
    assert list(lane.shell.connections) == [stays.session]
    assert stays.turn.members == 1, "counted twice"


async def nothing_for_one_that_is_cut_off_soon() -> None:
    lane = Lane([Ended()])
    (connection,), (sink,) = lane.connections, lane.sinks
    lane.send()
    connection.cut_off_soon("it is over")
    await lane.wait()
    assert isinstance(sink, Ended) and sink.ended and not sink.taken


async def one_that_a_tick_tells_much() -> None:
    """Regression: the connection was queued once for each frame."""
    lane = Lane([Sink()])
    lane.shell._ticks = True
    for _ in range(10):
        lane.send()
    assert len(lane.shell._unflushed_later) == 1
    lane.shell._ticks = False
    lane.send()  # an answer does not wait for the tick's turn
    assert len(lane.shell._unflushed) == 1
    await lane.wait()
    assert not lane.shell._unflushed_later
    assert lane.sinks[0].taken == 11 * len(FRAME)


async def no_time_for_two_ends() -> None:
    """Each end frees everything that its worker has left unread."""
    lane = Lane([LongEnded() for _ in range(4)])
    for connection in lane.connections:
        connection.close("it is over")
    await asyncio.sleep(0)
    assert sum(isinstance(sink, Ended) and sink.ended for sink in lane.sinks) == 1
    await lane.wait()


async def no_time_for_two_losses() -> None:
    lane = Lane([Sink() for _ in range(4)])
    for connection in lane.connections:
        connection.connection_lost(LongError())
    await asyncio.sleep(0)
    assert len(lane.shell.connections) == 3
    await lane.wait()


async def one_whose_loss_fails() -> None:
    lane = Lane([Sink() for _ in range(3)])
    for connection, error in zip(lane.connections, [None, UnreadableError(), None], strict=True):
        connection.connection_lost(error)
    await lane.wait()
    assert not lane.shell.connections and lane.shell.counters.internal_errors == 1


FAILURES = [
    no_callback, no_next_callback, one_that_cannot_be_ended, one_that_lacks_a_frame,
    one_that_is_queued_meanwhile, one_whose_end_fails, no_end_of_many, no_loss_of_many,
    no_turn_for_a_loss, one_whose_loss_fails,
]  # fmt: skip
PASSES = [
    no_time_for_a_tick, no_end_of_all_that_linger, no_flush_for_each_tick,
    nothing_for_one_that_is_cut_off_soon, no_time_for_two_ends, no_time_for_two_losses,
    one_that_a_tick_tells_much,
]  # fmt: skip


def failures_of(case: Callable[[], Any]) -> int:
    """Run the case; returns how much has failed on purpose."""
    with socket.socket() as Ended.socket, asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(case())
        loop = runner.get_loop()
        assert isinstance(loop, Loop)
        return loop.failures


@pytest.mark.parametrize("case", FAILURES)
def test_a_flush_that_fails_keeps_nobody_waiting(case: Callable[[], Any]) -> None:
    """Regression: after two failures in a row a lane never wrote again, for all jobs."""
    assert failures_of(case)


@pytest.mark.parametrize("case", PASSES)
def test_a_pass_does_a_part_and_the_next_ones_the_rest(case: Callable[[], Any]) -> None:
    assert not failures_of(case)
