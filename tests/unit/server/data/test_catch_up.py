"""In the turns of its job, the shell tells a reconnected worker what the worker has missed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from reducer.server.data.buffers import BufferPool
from reducer.server.data.shell import LaneShell
from reducer.server.data.turns import MOST_TURNS, SECONDS
from reducer.wire import messages
from reducer.wire.codes import ErrorCode, MessageKind
from reducer.wire.decoder import Decoder
from reducer.wire.header import HEADER_SIZE
from reducer.wire.keys import key_id
from tests.support.bare_lane import BUDGET, KERNELS, Sink, bare_lane, receive
from tests.support.frames import control

VERDICTS = 50


class Worker(Sink):
    """A worker's end of one connection, which counts frames by kind."""

    def __init__(self, shell: LaneShell, rank: int, **hello: Any) -> None:
        super().__init__()
        self.kinds: Counter[int] = Counter()
        self._decoder = Decoder(
            KERNELS.crc32c, lambda header: memoryview(bytearray(header.length + HEADER_SIZE))
        )
        self.connection = shell.connection()
        self.connection.connection_made(self)
        self.send(
            messages.Hello("job", rank, 2, bytes([rank]) * 16, 0, 1, "run", ((0, 4_096),), **hello)
        )

    def send(self, message: messages.Message, **fields: int) -> None:
        receive(self.connection, memoryview(control(message, **fields)))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        frames = self._decoder.feed(b"".join(list_of_data))
        self.kinds.update(frame.header.kind for frame in frames)

    def abort(self) -> None:
        """The worker has a new connection."""


async def behind() -> tuple[LaneShell, Worker]:
    """A shell, and a reconnected worker that has missed VERDICTS mismatches."""
    shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
    first, _ = Worker(shell, 0), Worker(shell, 1)
    cause = messages.Abandon(int(ErrorCode.TIMEOUT), "no more")
    for number in range(VERDICTS):
        first.send(cause, key=key_id("k"), round=number)
    while first.connection._is_read:  # on a slow machine the turn may be over
        await asyncio.sleep(0)
    return shell, Worker(shell, 1, rejoin=True)


@pytest.mark.parametrize("turn_is_over", [False, True])
def test_all_verdicts_are_told_again(turn_is_over: bool) -> None:
    async def come_back() -> int:
        shell, back = await behind()
        if turn_is_over:
            shell.turns.charge(back.connection.turn, 5 * SECONDS)
        for _ in range(10 * VERDICTS):
            await asyncio.sleep(0)
        return back.kinds[MessageKind.REFUSED]

    assert asyncio.run(come_back()) == VERDICTS


def test_a_run_that_is_behind_waits_for_the_turn_of_its_job() -> None:
    """Regression: 100 groups of one job, each with work for part of a turn, used one pass."""

    async def come_back() -> None:
        shell, back = await behind()
        await asyncio.sleep(0)  # sending would notice the end of the turn
        back.connection.go_on_soon()
        sent = back.connection.bytes_out
        shell.turns.charge(back.connection.turn, MOST_TURNS * SECONDS)
        for _ in range(MOST_TURNS // 4):
            await asyncio.sleep(0)
        assert back.connection.bytes_out == sent
        while back.kinds[MessageKind.REFUSED] < VERDICTS:
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(come_back(), 20))
