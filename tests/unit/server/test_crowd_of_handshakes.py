"""Handshakes of a crowd are done a few at a time: the lane serves its jobs in between."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

from reducer.server.tls import TlsFiles, TlsGate, TlsNewcomer, make_context
from tests.support.bare_lane import Sink
from tests.support.certs import Authority, Files

CROWD = 250


class Line(Sink):
    """The lane's end of a connection of a stranger."""

    def __init__(self) -> None:
        super().__init__()
        self.is_ended = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self

    def getpeername(self) -> tuple[str, int]:
        return "127.0.0.1", 1

    def is_closing(self) -> bool:
        return self.is_ended

    def abort(self) -> None:
        self.is_ended = True


def client_hello(files: Files) -> bytes:
    to_worker, to_lane = ssl.MemoryBIO(), ssl.MemoryBIO()
    worker = files.context().wrap_bio(to_worker, to_lane, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        worker.do_handshake()
    return to_lane.read()


class Crowd:
    def __init__(self, folder: Path) -> None:
        files = Authority(folder).issue()
        self.gate = TlsGate(make_context(TlsFiles(files.cert, files.key, files.ca)), lambda _: None)  # type: ignore[arg-type, return-value]
        self.hello = client_hello(files)
        self.newcomers = [self.gate.newcomer(bytes(8)) for _ in range(CROWD)]
        self.lines = [Line() for _ in self.newcomers]
        for newcomer, line in zip(self.newcomers, self.lines, strict=True):
            newcomer.connection_made(line)

    @property
    def answered(self) -> int:
        return sum(line.taken > 0 for line in self.lines)

    def say(self, newcomer: TlsNewcomer) -> None:
        newcomer.get_buffer(-1)[: len(self.hello)] = self.hello
        newcomer.buffer_updated(len(self.hello))

    def end(self) -> None:
        self.gate.close()
        assert not len(self.gate)


async def a_crowd(folder: Path) -> None:
    crowd = Crowd(folder)
    for newcomer in crowd.newcomers:
        crowd.say(newcomer)
    turns, answered = 0, crowd.answered
    assert 0 < answered < CROWD
    while crowd.answered < CROWD:
        await asyncio.sleep(0)
        turns += 1
        assert answered < crowd.answered, "each turn of the loop takes some of them"
        answered = crowd.answered
    assert turns > 3
    crowd.end()


def test_250_handshakes_are_no_step_of_the_loop(tmp_path: Path) -> None:
    """They kept a lane for 60 ms, and took no certificate."""
    asyncio.run(a_crowd(tmp_path))


async def one_that_has_left(folder: Path) -> None:
    crowd = Crowd(folder)
    for newcomer in crowd.newcomers:
        crowd.say(newcomer)
    left = crowd.lines[-1]
    left.abort()
    while crowd.answered < CROWD - 1:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not left.taken
    crowd.end()


def test_who_has_left_meanwhile_is_passed_over(tmp_path: Path) -> None:
    asyncio.run(one_that_has_left(tmp_path))


async def no_next_turn(folder: Path) -> None:
    crowd = Crowd(folder)
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
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert crowd.lines[-1].taken
    crowd.end()


def test_a_turn_that_cannot_be_had_keeps_out_nobody_else(tmp_path: Path) -> None:
    asyncio.run(no_next_turn(tmp_path))
