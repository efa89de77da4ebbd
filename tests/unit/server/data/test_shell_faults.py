"""Whatever fails inside a lane process, a round is right or ends on every rank, and the lane lives.

Faults come from outside, so that the compiled modules run unchanged: one call of a kernel, a
transport, the allocator, the timeline or the log raises. A connection that cannot be written to
ends alone: its worker reconnects. How often a transport pauses and resumes depends on the time that
a turn takes, so these calls do not fail here.
"""

from __future__ import annotations

import ast
import asyncio
import ctypes
import itertools
import logging
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import pytest

from reducer.core.lane import Lane
from reducer.core.surface import events
from reducer.core.surface.settings import LaneSettings
from reducer.server.data import buffers
from reducer.server.data.buffers import BufferPool
from reducer.server.data.connection import Connection
from reducer.server.data.shell import LaneShell
from reducer.server.data.turns import MOST_TURNS
from reducer.wire import messages
from reducer.wire.codes import DType, ErrorCode, MessageKind
from reducer.wire.decoder import Decoder
from reducer.wire.header import HEADER_SIZE, pack_header
from tests.support.bare_lane import BUDGET, KERNELS, contribution, hello, receive
from tests.unit.server.test_compiled import SOURCES

WORLD = 6  # four parts of bfloat16 are folded into a separate accumulator
CHUNK = 4_096
CHUNKS = 2
ONE = 0x3F80  # 1.0 in bfloat16; the next exponent doubles it
RIGHT = np.full(CHUNK // 2, 0x427C, np.uint16).tobytes()  # 63.0 = 1 + 2 + 4 + 8 + 16 + 32
WHERE = (
    "memory", "fold", "finish", "crc32c", "acc_itemsize", "timeline", "log", "getrefcount",
    "get_write_buffer_size", "can_write_eof",
)  # fmt: skip
ERRORS: tuple[type[Exception], ...] = (MemoryError, RuntimeError, OSError)


class Faults:
    """Raises at the nth call of `where`; `calls` counts them."""

    def __init__(self, where: str = "", n: int = 0) -> None:
        self.where, self.n = where, n
        self.calls: dict[str, int] = {}
        self.armed = False
        self.raised = 0

    def __call__(self, where: str) -> None:
        if not self.armed:
            return
        self.calls[where] = self.calls.get(where, 0) + 1
        if where == self.where and self.calls[where] == self.n:
            self.raised += 1
            raise ERRORS[self.n % len(ERRORS)](f"injected: {where} {self.n}")

    def wrap(self, where: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any) -> Any:
            self(where)
            return function(*args)

        return wrapped


class Kernels:
    """The real kernels, with faults in front."""

    def __init__(self, faults: Faults) -> None:
        for name in ("crc32c", "acc_itemsize", "fold", "finish"):
            setattr(self, name, faults.wrap(name, getattr(KERNELS, name)))


class Link(asyncio.Transport):
    """The lane's end of a connection; `read` gives the frames that the worker has got."""

    def __init__(self, faults: Faults, sock: socket.socket) -> None:
        super().__init__()
        self.ended = False
        self._faults = faults
        self._sock = sock
        self._data = bytearray()

    def is_closing(self) -> bool:
        return self.ended

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        self._faults("get_write_buffer_size")
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self._faults("writelines")
        self._data += b"".join(list_of_data)

    def can_write_eof(self) -> bool:
        self._faults("can_write_eof")
        self.ended = True
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._sock

    def abort(self) -> None:
        self.ended = True

    def read(self) -> list[tuple[MessageKind, bytes]]:
        decoder = Decoder(
            KERNELS.crc32c, lambda header: memoryview(bytearray(header.length + HEADER_SIZE))
        )
        frames = decoder.feed(bytes(self._data))
        return [(MessageKind(f.header.kind), bytes(f.payload or b"")) for f in frames]


class Timeline:
    """A timeline without a file."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def add(self, round_: object) -> None:
        self._faults("timeline")


class Logs(logging.Handler):
    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self._faults = faults

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info is None:  # reports of failures do not fail
            self._faults("log")


class Bench:
    """A shell with a job of `WORLD` ranks, and a job of one rank beside it."""

    def __init__(self, faults: Faults, sock: socket.socket) -> None:
        self.faults = faults
        self._sock = sock
        self.kernels = kernels = cast(Any, Kernels(faults))
        settings = LaneSettings(
            lane=0, lanes=1, incarnation=bytes(16), budget=BUDGET, crc32c=kernels.crc32c,
            acc_itemsize=kernels.acc_itemsize, traced=True,
        )  # fmt: skip
        self.pool = BufferPool(0)  # caches nothing: each buffer is allocated
        self.shell = LaneShell(Lane(settings), kernels, self.pool, 10.0)
        timeline: Any = Timeline(faults)
        self.shell.executor.timeline = timeline
        self.ranks = [self.join(rank, WORLD, "job") for rank in range(WORLD)]
        self.beside = self.join(0, 1, "beside")

    def join(self, rank: int, world: int, job: str) -> tuple[Connection, Link]:
        connection = self.shell.connection()
        link = Link(self.faults, self._sock)
        connection.connection_made(link)
        header, payload = hello(rank, world, CHUNK, job)
        receive(connection, memoryview(pack_header(header, KERNELS.crc32c) + payload))
        return connection, link

    async def round(self, number: int) -> None:
        for chunk in range(CHUNKS):
            for rank, (connection, link) in enumerate(self.ranks):
                if not link.ended:
                    payload = np.full(CHUNK // 2, ONE + (rank << 7), np.uint16).tobytes()
                    header = contribution(rank, number, chunk, CHUNKS, payload).replace(
                        dtype=DType.BFLOAT16, count=CHUNKS * CHUNK // 2
                    )
                    send(connection, pack_header(header, KERNELS.crc32c) + payload)
        await settle()

    async def round_beside(self) -> None:
        payload = bytes(CHUNK)
        header = contribution(0, 0, 0, 1, payload)
        send(self.beside[0], pack_header(header, KERNELS.crc32c) + payload)
        await settle()

    def lose_all(self) -> None:
        for connection, _ in (*self.ranks, self.beside):
            connection.connection_lost(None)


async def settle() -> None:
    """Run the loop long enough for all work, even if turns end early on a slow machine."""
    for _ in range(16 * MOST_TURNS):
        await asyncio.sleep(0)


def send(connection: Connection, data: bytes) -> None:
    if not connection.is_closing():
        receive(connection, memoryview(data))


@contextmanager
def faults_everywhere(faults: Faults) -> Iterator[None]:
    """Inject faults also into module functions and the log that compiled code uses."""
    logs, lane_log = Logs(faults), logging.getLogger("reducer.lane")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ctypes, "addressof", faults.wrap("memory", ctypes.addressof))
        patch.setattr(buffers, "getrefcount", faults.wrap("getrefcount", sys.getrefcount))
        patch.setattr(lane_log, "propagate", False)
        level = lane_log.level
        lane_log.addHandler(logs)
        lane_log.setLevel(logging.DEBUG)
        try:
            yield
        finally:
            lane_log.setLevel(level)
            lane_log.removeHandler(logs)


async def play(faults: Faults) -> None:
    """Two rounds of a job with a fault, then one of another job; checks all promises."""
    near, far = socket.socketpair()
    with near, far, faults_everywhere(faults):
        bench = Bench(faults, near)
        await settle()
        faults.armed = True
        for number in range(2):
            await bench.round(number)
        bench.join(WORLD, WORLD, "job")  # refused and logged
        faults.armed = False
        check(bench, faults)
        await bench.round_beside()
        kinds = [kind for kind, _ in bench.beside[1].read()]
        assert kinds.count(MessageKind.RESULT) == 1 and not bench.beside[1].ended
        await asyncio.sleep(0)
        faults.armed = faults.where != "crc32c"  # a lane that cannot end its runs ends itself
        bench.shell.feed(events.Shutdown("the end"))
        await settle()
        faults.armed = False
        assert all(link.ended for _, link in (*bench.ranks, bench.beside))
        assert bench.shell.counters.internal_errors == faults.raised
        assert bench.shell.counters.protocol_errors == 0
        bench.lose_all()
        bench.shell.tick()
        assert bench.pool.out == bench.pool.out_bytes == 0, "buffers are not freed"


def check(bench: Bench, faults: Faults) -> None:
    read = [link.read() for _, link in bench.ranks]
    results = [[p for kind, p in frames if kind == MessageKind.RESULT] for frames in read]
    assert {p for got in results for p in got} <= {RIGHT}, "a wrong sum"
    if faults.where == "writelines":
        ended = [link.ended for _, link in bench.ranks]
        assert sum(ended) == faults.raised, "another connection has ended"
        answered = [got for got, lost in zip(results, ended, strict=True) if not lost]
        assert all(len(got) >= CHUNKS for got in answered), "the first round has not ended"
        return
    if all(len(got) == 2 * CHUNKS for got in results):
        return
    for rank, (_, link) in enumerate(bench.ranks):
        assert link.ended, f"rank {rank} would wait for ever"
        ends = [memoryview(p) for kind, p in read[rank] if kind == MessageKind.ERROR]
        errors = [messages.decode(messages.Error, end) for end in ends]
        assert [error.code for error in errors] == [ErrorCode.INTERNAL], (rank, errors)


def play_each(where: str) -> None:
    """Play with a fault at the first call of `where`, then at the second, while there is one.

    The number of calls depends on the machine: it is not always the same.
    """
    for n in itertools.count(1):
        faults = Faults(where, n)
        asyncio.run(play(faults))
        if not faults.raised:
            break
    assert n > 1, f"{where} was never called"


@pytest.mark.parametrize("where", WHERE)
def test_a_fault_ends_one_run_and_no_sum_is_wrong(where: str) -> None:
    play_each(where)


def test_a_fault_of_a_write_ends_one_connection_and_no_sum_is_wrong() -> None:
    play_each("writelines")


class UnspeakableError(Exception):
    """An error whose text raises, so that reporting it fails as well."""

    def __str__(self) -> str:
        raise self


async def a_run_that_cannot_be_ended() -> None:
    near, far = socket.socketpair()
    with near, far:
        bench = Bench(Faults(), near)
        await settle()

        def finish(*args: Any) -> int:
            raise UnspeakableError

        bench.kernels.finish = finish
        await bench.round(0)
        with pytest.raises(UnspeakableError):
            bench.shell.tick()


def test_a_run_that_cannot_be_ended_ends_the_lane() -> None:
    """Otherwise its ranks would wait for ever. The lane is restarted, and its runs fail over."""
    asyncio.run(a_run_that_cannot_be_ended())


def bound_twice(source: str) -> list[str]:
    """Functions in which two `except` clauses bind one name."""
    found = []
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            nodes = [node for node in ast.walk(function) if isinstance(node, ast.ExceptHandler)]
            names = [node.name for node in nodes if node.name is not None]
            if len(names) != len(set(names)):
                found.append(function.name)
    return found


def test_no_compiled_function_gives_two_exceptions_one_name() -> None:
    """mypyc gives a name one type, so binding the second exception would raise TypeError."""
    example = "def f():\n try: g()\n except A as e: pass\n except B as e: pass\n"
    assert bound_twice(example) == ["f"]
    for path in SOURCES:
        assert bound_twice(path.read_text()) == [], path
