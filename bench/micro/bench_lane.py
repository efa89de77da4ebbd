"""The cost of a contribution in a lane's Python: the core, the whole shell, and credit alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, product

import pytest

from bench.micro.measure import Measure
from reducer.core.limits.budget import Budget
from reducer.core.runs.flow import Accounts
from reducer.core.surface import events
from reducer.server.data.buffers import BufferPool
from reducer.wire.header import HEADER_SIZE, pack_header
from tests.support.bare_lane import KERNELS, CoreLane, ShellLane, contribution

CREDIT = 4 << 20
CHUNKS = 64
ROUNDS = 60


@pytest.mark.parametrize("world", [4, 32])
def test_core(measure: Measure, world: int) -> None:
    """`Lane.handle` for each contribution: fold, finish, result, done and stable."""
    payload = bytes(4096)
    core = CoreLane(world, len(payload), CREDIT)
    buffer = BufferPool(1 << 20).take(len(payload))
    numbers = count()

    def next_round() -> tuple[tuple[Sequence[events.Event]], dict[str, object]]:
        number = next(numbers)
        arrived = [
            events.Contributed(rank, contribution(rank, number, chunk, CHUNKS, payload), buffer)
            for chunk, rank in product(range(CHUNKS), range(world))
        ]
        return (arrived,), {}

    measure.each(core.feed, setup=next_round, rounds=ROUNDS, events=world * CHUNKS)
    assert core.rounds == next(numbers)


@pytest.mark.parametrize(("world", "kib"), [(4, 4), (32, 4), (4, 64), (4, 1024)])
def test_shell(measure: Measure, world: int, kib: int) -> None:
    """From the bytes of a contribution to the bytes of the results; 4 KiB show Python's cost."""
    payload = bytes(kib << 10)
    chunks = min(CHUNKS, (16 << 20) // len(payload))
    numbers = count()

    def next_round() -> tuple[tuple[list[tuple[int, memoryview]]], dict[str, object]]:
        lane.tick()
        number = next(numbers)
        arrived = []
        for chunk, rank in product(range(chunks), range(world)):
            header = contribution(rank, number, chunk, chunks, payload)
            frame = pack_header(header, KERNELS.crc32c) + payload
            arrived.append((rank, memoryview(frame)))
        return (arrived,), {}

    rounds = ROUNDS if kib < 1024 else ROUNDS // 6
    with ShellLane(world, len(payload), CREDIT) as lane:
        before = lane.sinks[0].taken
        measure.each(
            lane.play, setup=next_round, rounds=rounds, events=world * chunks, size=len(payload)
        )
        results = next(numbers) * chunks * (len(payload) + HEADER_SIZE)
        assert lane.sinks[0].taken - before >= results


@pytest.mark.parametrize("world", [4, 32, 1024])
def test_credit(measure: Measure, world: int) -> None:
    """Check and charge each rank's contribution, then settle the chunk."""
    cost = 64 << 10
    limits = Budget(1 << 40, CREDIT).open("bench", world, ((0, cost),))
    accounts = Accounts(limits, world)

    def settle_chunk() -> None:
        for rank in range(world):
            assert accounts.fits(rank, cost, 0)
            accounts.charge(rank, cost)
        accounts.settle_all(cost)

    measure(settle_chunk, events=world)
    assert not any(map(accounts.runs_low, range(world)))
