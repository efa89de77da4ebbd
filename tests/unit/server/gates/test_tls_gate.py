"""Steps of TLS handshakes: when they run, and what happens to a newcomer meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from reducer.server.gates import tls_gate
from reducer.server.gates.handshake_threads import THREADS, HandshakeThreads, Step
from reducer.server.gates.tls_gate import TlsNewcomer, whole_records
from reducer.server.gates.tls_link import RECORDS_AT_ONCE
from reducer.wire.header import PREFACE_SIZE
from tests.support.bare_lane import arrive
from tests.support.newcomers import Line, QuickThreads, tls


class SlowThreads(QuickThreads):
    """Threads that run no step before `release`."""

    def __init__(self) -> None:
        super().__init__()
        self._held: list[Step] = []

    def do(self, step: Step) -> None:
        self.steps += 1
        self._held.append(step)

    def release(self) -> None:
        held, self._held = self._held, []
        for step in held:
            step()


class Door:
    """A gate of mode tls with these threads, and the first bytes of a worker."""

    def __init__(self, threads: QuickThreads, folder: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(tls_gate, "HandshakeThreads", lambda: threads)
        self.gate, self.hello = tls(folder)

    def dial(self) -> tuple[TlsNewcomer, Line]:
        newcomer, line = self.gate.newcomer(bytes(PREFACE_SIZE)), Line()
        newcomer.connection_made(line)
        return newcomer, line


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
def slow() -> SlowThreads:
    return SlowThreads()


Case = Callable[[Door, SlowThreads], Awaitable[None]]


async def it_is_refused(door: Door, slow: SlowThreads) -> None:
    newcomer, line = door.dial()
    arrive(newcomer, door.hello)
    newcomer.refuse("slow", "no proof came")
    slow.release()
    await turns()
    assert line.is_ended and not line.taken
    assert door.gate.refused == {"slow": 1}


async def it_leaves_before_a_thread_is_free(door: Door, slow: SlowThreads) -> None:
    lines = []
    for _ in range(THREADS + 2):
        newcomer, line = door.dial()
        arrive(newcomer, door.hello)
        lines.append(line)
        await turns()
    assert slow.steps == THREADS
    newcomer.connection_lost(None)
    for _ in range(2):
        slow.release()
        await turns()
    assert slow.steps == THREADS + 1
    assert [line.taken > 0 for line in lines] == [True] * (THREADS + 1) + [False]


async def more_comes(door: Door, slow: SlowThreads) -> None:
    """A second record, which is not TLS, comes; the answer to the first one is sent before."""
    newcomer, line = door.dial()
    arrive(newcomer, door.hello)
    arrive(newcomer, bytes(100))
    slow.release()
    await turns()
    hello = line.taken
    assert hello and not door.gate.refused
    slow.release()
    await turns()
    assert line.taken > hello and door.gate.refused == {"garbage": 1}


async def it_says_no_more(door: Door, slow: SlowThreads) -> None:
    """Regression: the last record, such as the alert of a worker that distrusts us, was lost."""
    newcomer, line = door.dial()
    arrive(newcomer, bytes(100))
    assert newcomer.eof_received()
    slow.release()
    await turns()
    assert line.is_ended and door.gate.refused == {"garbage": 1}


async def it_says_no_more_and_has_said_too_little(door: Door, slow: SlowThreads) -> None:
    newcomer, line = door.dial()
    arrive(newcomer, door.hello)
    assert newcomer.eof_received()
    slow.release()
    await turns()
    assert line.taken and line.is_ended
    later, _ = door.dial()
    assert not later.eof_received()


async def its_thread_cannot_tell(door: Door, slow: SlowThreads) -> None:
    newcomer, line = door.dial()
    arrive(newcomer, door.hello)
    loop = asyncio.get_running_loop()
    wake = loop.call_soon_threadsafe

    def fail(*args: object, **more: object) -> None:
        raise MemoryError("injected")

    loop.call_soon_threadsafe = fail  # type: ignore[method-assign, assignment]
    slow.release()
    loop.call_soon_threadsafe = wake  # type: ignore[method-assign]
    await turns()
    assert not line.taken
    door.gate.tick()
    await turns()
    assert line.taken


@pytest.mark.parametrize(
    "case",
    [
        it_is_refused,
        it_leaves_before_a_thread_is_free,
        more_comes,
        it_says_no_more,
        it_says_no_more_and_has_said_too_little,
        its_thread_cannot_tell,
    ],
)
def test_while_a_step_runs(
    case: Case, slow: SlowThreads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        door = Door(slow, tmp_path, monkeypatch)
        await case(door, slow)
        door.gate.close()

    asyncio.run(run())


def test_single_bytes_are_no_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: 250 senders of single bytes took 4 times the time of all jobs."""
    threads = QuickThreads()

    async def run() -> None:
        door = Door(threads, tmp_path, monkeypatch)
        newcomer, line = door.dial()
        for byte in door.hello:
            arrive(newcomer, bytes([byte]))
        await turns()
        assert line.taken
        door.gate.close()

    asyncio.run(run())
    assert threads.steps == 1


HELLO = b"\x16\x03\x01\x00\x05hello"


@pytest.mark.parametrize(
    ("data", "end"),
    [
        (b"", 0),
        (HELLO[:1], 0),
        (HELLO[:-1], 0),
        (HELLO, len(HELLO)),
        (HELLO * 3 + HELLO[:4], 3 * len(HELLO)),
        (HELLO * 3_000, RECORDS_AT_ONCE * len(HELLO)),
        (HELLO + b"\xff", len(HELLO) + 1),
        (b"G", 1),
        (b"\x16\x02\x01\x00\x05h", 6),
        (b"\x17\x03\x03\x41\x00" + bytes(7), 0),
        (b"\x17\x03\x03\x41\x01" + bytes(7), 12),
    ],
)
def test_what_is_given_to_tls(data: bytes, end: int) -> None:
    assert whole_records(data) == end


def test_threads_do_steps_and_end() -> None:
    before = threading.active_count()
    threads = HandshakeThreads()
    all_at_work = threading.Barrier(THREADS + 1)

    def step() -> None:
        all_at_work.wait(10.0)

    for _ in range(THREADS):
        threads.do(step)
    step()
    threads.close()
    for thread in threading.enumerate():
        if thread.name.startswith("handshakes-"):
            thread.join(10.0)
    assert threading.active_count() == before
