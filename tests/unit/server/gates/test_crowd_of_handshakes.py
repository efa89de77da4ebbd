"""Handshakes of a crowd are done a few at a time; the lane serves its jobs in between.

In mode tls threads do the steps, here without delay.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from reducer.server.data.turns import SHARED_SECONDS
from reducer.server.gates import gate, tls_gate
from reducer.server.gates.gate import Gate, Newcomer
from reducer.server.gates.psk_gate import PskGate
from reducer.wire.handshake import NONCE_SIZE, WorkerHandshake
from reducer.wire.header import PREFACE_SIZE
from tests.support.bare_lane import arrive
from tests.support.newcomers import Line, QuickThreads, nobody, tls

CROWD = 250
AT_ONCE = 4  # handshakes in a pass, by the tests' clock


def psk(folder: Path) -> tuple[Gate, bytes]:
    opening = WorkerHandshake(bytes(32), "job", 0, bytes(NONCE_SIZE)).opening
    return PskGate(bytes(32), 0, bytes(16), nobody), opening[PREFACE_SIZE:]


Mode = Callable[[Path], tuple[Gate, bytes]]
Case = Callable[["Crowd"], Awaitable[None]]


class Crowd:
    def __init__(self, mode: Mode, folder: Path) -> None:
        self.gate, self.hello = mode(folder)
        self.newcomers = [self.gate.newcomer(bytes(PREFACE_SIZE)) for _ in range(CROWD)]
        self.lines = [Line() for _ in self.newcomers]
        for newcomer, line in zip(self.newcomers, self.lines, strict=True):
            newcomer.connection_made(line)

    @property
    def answered(self) -> int:
        return sum(line.taken > 0 for line in self.lines)

    def say(self, newcomer: Newcomer) -> None:
        arrive(newcomer, self.hello)

    def end(self) -> None:
        self.gate.close()
        assert not len(self.gate)


async def a_crowd(crowd: Crowd) -> None:
    for newcomer in crowd.newcomers:
        crowd.say(newcomer)
    assert crowd.answered <= AT_ONCE
    assert sum(line.is_paused for line in crowd.lines) in (0, CROWD - AT_ONCE)
    before = crowd.answered
    while crowd.answered < CROWD:
        await asyncio.sleep(0)
        assert crowd.answered <= before + AT_ONCE
        before = crowd.answered
    assert not any(line.is_paused for line in crowd.lines)


async def a_crowd_that_leaves(crowd: Crowd) -> None:
    """OpenSSL's memory of newcomers that left, up to 210 KiB each, is freed for a few at a time."""
    crowd.gate._room = CROWD // 2
    for newcomer in crowd.newcomers:
        newcomer.connection_lost(None)
    assert len(crowd.gate._disconnected) == CROWD // 2, "newcomers that leave could fill the memory"
    while crowd.gate._disconnected:
        before = len(crowd.gate._disconnected)
        await asyncio.sleep(0)
        assert len(crowd.gate._disconnected) >= before - AT_ONCE


async def one_that_has_left(crowd: Crowd) -> None:
    for newcomer in crowd.newcomers:
        crowd.say(newcomer)
    left = crowd.lines[-1]
    left.abort()
    while crowd.answered < CROWD - 1:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not left.taken


async def no_next_turn(crowd: Crowd) -> None:
    """A newcomer that gets no turn is cut off; the next newcomer gets its turn."""
    loop: Any = asyncio.get_running_loop()
    call_soon = loop.call_soon

    def fail(*args: Any, **more: Any) -> None:
        raise MemoryError("injected")

    told: list[object] = []
    loop.set_exception_handler(lambda loop, context: told.append(context["exception"]))
    for newcomer in crowd.newcomers[:-1]:
        loop.call_soon = fail
        crowd.say(newcomer)
        loop.call_soon = call_soon
        if told:
            break
    else:
        raise AssertionError("no handshake waited")
    crowd.say(crowd.newcomers[-1])
    for _ in range(AT_ONCE):
        await asyncio.sleep(0)
    assert crowd.lines[-1].taken


async def run(case: Case, mode: Mode, folder: Path) -> None:
    crowd = Crowd(mode, folder)
    async with asyncio.timeout(30.0):
        await case(crowd)
    crowd.end()


@pytest.mark.parametrize("mode", [psk, tls])
@pytest.mark.parametrize("case", [a_crowd, a_crowd_that_leaves, one_that_has_left, no_next_turn])
def test_a_crowd_of_handshakes_is_no_step_of_the_loop(
    case: Case, mode: Mode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: 250 handshakes of mode tls, without certificates, blocked a lane for 60 ms."""
    monkeypatch.setattr(tls_gate, "HandshakeThreads", QuickThreads)
    monkeypatch.setattr(tls_gate, "THREADS", CROWD)
    ticks = itertools.count()
    monkeypatch.setattr(gate, "clock", lambda: next(ticks) * SHARED_SECONDS / (AT_ONCE - 0.5))
    asyncio.run(run(case, mode, tmp_path))
