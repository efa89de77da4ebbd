"""Values of a table that wait for a slow connection, while updates change the table."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import numpy as np

from reducer.core.surface import events
from reducer.optimizers import SGD, Rule
from reducer.server.data.buffers import BufferPool, PooledBuffer
from reducer.server.data.shell import LaneShell
from reducer.server.data.table_kernels import TableKernels
from reducer.wire.codes import DType, MessageKind
from reducer.wire.header import HEADER_SIZE, Header, unpack_header
from tests.support.bare_lane import BUDGET, KERNELS, Sink, bare_lane

COUNT = 4_096  # elements of the shard
SIZE = 4 * COUNT


class Slow(Sink):
    """A transport that has sent nothing yet."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[Any] = []

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.held += list_of_data

    def frames(self) -> list[tuple[Header, bytes]]:
        data = b"".join(self.held)
        return [
            (
                unpack_header(data[at : at + HEADER_SIZE], KERNELS.crc32c),
                data[at + HEADER_SIZE : at + HEADER_SIZE + SIZE],
            )
            for at in range(0, len(data), HEADER_SIZE + SIZE)
        ]


def filled(pool: BufferPool, value: float) -> PooledBuffer:
    buffer = pool.take(SIZE)
    numbers(buffer)[:] = value
    return buffer


def numbers(buffer: PooledBuffer) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.frombuffer(buffer.view, np.float32, COUNT)


def step(parameters: PooledBuffer, gradient: PooledBuffer) -> events.Apply:
    scalars = SGD(1.0, convention="torch").scalars(1)
    return events.Apply(1, int(Rule.SGD), COUNT, parameters, gradient, (), tuple(scalars))


def value_of(session: int, version: int, buffer: PooledBuffer) -> events.SendValue:
    header = Header(MessageKind.VALUE, DType.FLOAT32, key=7, count=version, length=SIZE)
    return events.SendValue(session, header, buffer)


def test_an_update_does_not_change_what_is_being_sent() -> None:
    async def play() -> None:
        pool = BufferPool(BUDGET)
        shell = LaneShell(bare_lane(4 << 20), KERNELS, pool, 10.0)
        slow, connection = Slow(), shell.connection()
        connection.connection_made(slow)
        parameters, gradient = filled(pool, 1.0), filled(pool, 0.25)
        run = shell.executor.run
        assert not run([value_of(connection.session, 1, parameters)])
        await asyncio.sleep(0)
        (applied,) = run([step(parameters, gradient)])
        assert isinstance(applied, events.Applied)
        assert not run([value_of(connection.session, 2, parameters)])
        await asyncio.sleep(0)
        sent = slow.frames()
        assert [head.count for head, _ in sent] == [1, 2]
        for (head, payload), expected in zip(sent, (1.0, 0.75), strict=True):
            assert KERNELS.crc32c(payload) == head.payload_crc
            assert np.all(np.frombuffer(payload, np.float32) == expected)
        assert np.all(numbers(parameters) == 0.75) and pool.unsent == 1
        slow.held.clear()
        pool.tick(0.0, BUDGET)
        assert not pool.unsent and pool.out == 2

    asyncio.run(play())


def test_without_memory_for_one_array_no_checksum_outlives_a_step() -> None:
    """The parameters are still being sent and cannot be copied; the slot's checksum is known."""
    pool = BufferPool(BUDGET)
    parameters, gradient, slot = filled(pool, 1.0), filled(pool, 0.25), filled(pool, 0.5)
    slot.crc, slot.summed = KERNELS.crc32c(slot.view[:SIZE]), SIZE

    def prepare(buffer: Any) -> None:
        pool.prepare_change(buffer)
        if buffer is parameters:
            raise MemoryError

    sgd = SGD(1.0, convention="torch", momentum=0.5)
    apply = events.Apply(
        1, int(sgd.rule), COUNT, parameters, gradient, (slot,), tuple(sgd.scalars(1))
    )
    tables = TableKernels(KERNELS, pool.take, pool.give_back, prepare)
    assert isinstance(tables.run(apply), events.Applied)
    assert np.all(numbers(slot) == 0.5) and not slot.summed
    assert not parameters.summed


def test_a_checksum_does_not_outlive_its_bytes() -> None:
    """A buffer that was a table's is given back, and then holds the first values of another."""

    async def play() -> None:
        pool = BufferPool(BUDGET)
        shell = LaneShell(bare_lane(4 << 20), KERNELS, pool, 10.0)
        sink, connection = Slow(), shell.connection()
        connection.connection_made(sink)
        before = filled(pool, 1.0)
        assert not shell.executor.run([value_of(connection.session, 1, before)])
        await asyncio.sleep(0)
        sink.held.clear()
        pool.give_back(before)
        again = filled(pool, 2.0)
        assert again is before, "the pool has given another buffer"
        assert not shell.executor.run([value_of(connection.session, 1, again)])
        await asyncio.sleep(0)
        ((head, payload),) = sink.frames()
        assert KERNELS.crc32c(payload) == head.payload_crc

    asyncio.run(play())


def test_an_update_needs_no_memory() -> None:
    def no_memory(buffer: Any) -> None:
        raise MemoryError

    pool = BufferPool(BUDGET)
    parameters, gradient = filled(pool, 1.0), filled(pool, 0.25)
    tables = TableKernels(KERNELS, pool.take, no_memory, no_memory)
    assert isinstance(tables.run(step(parameters, gradient)), events.Applied)
    assert np.all(numbers(parameters) == 0.75)
