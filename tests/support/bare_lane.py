"""A joined lane: the real core, and the real shell around it with a sink for its frames."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import uvloop

from reducer.core.lane import Lane
from reducer.core.surface import events
from reducer.core.surface.numbers import RunPart
from reducer.core.surface.settings import MOST_SUMMED, LaneSettings
from reducer.kernels import load
from reducer.server.data.buffers import BufferPool
from reducer.server.data.connection import Connection, clock
from reducer.server.data.shell import LaneShell
from reducer.wire import messages
from reducer.wire.codes import Collective, DType, MessageKind, ReduceOp
from reducer.wire.header import NO_RANK, Header, pack_header
from reducer.wire.keys import position

KERNELS = load("native")
BUDGET = 1 << 30
KEY = 0x1234_5678_9ABC_DEF0


def bare_lane(credit: int, most_summed: int = MOST_SUMMED) -> Lane:
    """The core of a lane. `credit` and `most_summed` are bytes."""
    return Lane(
        LaneSettings(
            lane=0,
            lanes=1,
            incarnation=bytes(16),
            budget=BUDGET,
            crc32c=KERNELS.crc32c,
            acc_itemsize=KERNELS.acc_itemsize,
            credit=credit,
            most_summed=most_summed,
        )
    )


def hello(rank: int, world: int, chunk: int, job: str = "bench") -> tuple[Header, bytes]:
    """HELLO of a rank; chunks of ``chunk`` bytes."""
    message = messages.Hello(
        job, rank, world, rank.to_bytes(16, "little"), 0, 1, "run", ((0, chunk),)
    )
    payload = messages.encode(message)
    header = Header(MessageKind.HELLO, length=len(payload), payload_crc=KERNELS.crc32c(payload))
    return header, payload


def contribution(rank: int, round_: int, chunk: int, chunks: int, payload: bytes) -> Header:
    """A contribution of float32 to a sum; the rank holds all results before this chunk's."""
    return Header(
        MessageKind.CONTRIBUTION,
        DType.FLOAT32,
        ReduceOp.SUM,
        Collective.ALL_REDUCE,
        rank=rank,
        chunk=chunk,
        key=KEY,
        round=round_,
        count=chunks * len(payload) // 4,
        done=position(round_, chunk),
        length=len(payload),
        payload_crc=KERNELS.crc32c(payload),
    )


class CoreLane:
    """Only the core. Folds and Finishes are answered; every other output is dropped."""

    def __init__(self, world: int, chunk: int, credit: int) -> None:
        self.lane = bare_lane(credit)
        for rank in range(world):
            header, payload = hello(rank, world, chunk)
            self.feed([events.Opened(rank)])
            self.feed([events.ControlReceived(rank, header, memoryview(payload))])

    def feed(self, arrived: Iterable[events.Event]) -> None:
        handle = self.lane.handle
        for event in arrived:
            for output in handle(event, 0.0):
                if type(output) is events.Finish:
                    handle(events.Reduced(output.run, output.work, None, 0, 0, NO_RANK), 0.0)
                elif type(output) is events.Fold:
                    handle(events.Folded(output.run, output.work, None, 0, NO_RANK), 0.0)

    @property
    def rounds(self) -> int:
        """The number of complete rounds."""
        (part,) = self.lane.parts(0.0)
        assert isinstance(part, RunPart)
        return part.run.rounds


class Sink(asyncio.Transport):
    """Accepts every frame at once, as a socket with free space does; counts RESULTs."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = 0

    def is_closing(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """Does nothing: the caller passes frames anyway."""

    def resume_reading(self) -> None:
        """Does nothing, like `pause_reading`."""

    def write(self, data: Any) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.taken += sum(map(len, list_of_data))


class ShellLane:
    """Core, shell, executor, pool, kernels and loop: all of a lane process except the sockets."""

    def __init__(self, world: int, chunk: int, credit: int) -> None:
        self.sinks = [Sink() for _ in range(world)]
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._shell = LaneShell(bare_lane(credit), KERNELS, BufferPool(BUDGET), 10.0)
        self._connections = [self._shell.connection() for _ in self.sinks]
        self._runner.run(self._join(world, chunk))

    def __enter__(self) -> ShellLane:
        return self

    def __exit__(self, *exception: object) -> None:
        self._runner.close()

    def play(self, arrived: Iterable[tuple[int, memoryview]]) -> None:
        """Pass (rank, bytes) pairs to the lane, in this order, in one turn of its loop."""
        self._runner.run(self._play(arrived))

    def tick(self) -> None:
        """Run the timer that the lane runs 20 times a second; it frees buffers that were sent."""
        self._runner.run(self._tick())

    async def _tick(self) -> None:
        self._shell.tick()

    async def _play(self, arrived: Iterable[tuple[int, memoryview]]) -> None:
        for rank, data in arrived:
            arrive(self._connections[rank], data)
        await asyncio.sleep(0)  # run what the lane defers until it has read everything

    async def _join(self, world: int, chunk: int) -> None:
        for rank, connection in enumerate(self._connections):
            connection.connection_made(self.sinks[rank])
            header, payload = hello(rank, world, chunk)
            await self._play([(rank, memoryview(pack_header(header, KERNELS.crc32c) + payload))])
            connection.turn.spent = -1_000.0  # one turn of the loop may be a long one here


def receive(connection: Connection, data: memoryview) -> None:
    """Do as the event loop does, with a copy instead of read(); continue when a turn ends early."""
    while data:
        if connection.turn.is_over:
            connection.turn.spent = 0.0
            connection.turn.waiting.pop(connection, None)
            connection.resume()
        room = connection.get_buffer(-1)
        size = min(len(room), len(data))
        room[:size] = data[:size]
        data = data[size:]
        connection.reads_since = clock()  # a copy by Python is not charged to the turn
        connection.buffer_updated(size)


async def never_held(shell: LaneShell, connection: Connection) -> None:
    """Keep the connection's turn from ending on a slow machine, and continue a turn that ended."""
    connection.turn.spent = 0.0
    shell.turns.release(connection.turn, connection)
    await asyncio.sleep(0)  # the next turn delivers what mode tls has held back
    connection.turn.spent = -1_000.0


def arrive(link: asyncio.BufferedProtocol | Connection, data: bytes | memoryview) -> None:
    """Pass received bytes to the connection, as the event loop does, even if reading is paused."""
    while data:
        room = memoryview(link.get_buffer(-1))
        size = min(len(room), len(data))
        room[:size] = data[:size]
        data = data[size:]
        link.buffer_updated(size)
