"""Which ended connections are read once more, and how much of them."""

from __future__ import annotations

from reducer.server.data.buffers import BufferPool
from reducer.server.data.connection import READ_BYTES, Connection
from reducer.server.data.leftovers import AT_ONCE, MOST_BYTES, Leftovers
from reducer.server.data.shell import LaneShell
from tests.support.bare_lane import BUDGET, KERNELS, bare_lane


def connections(*jobs: str) -> list[Connection]:
    """One connection for each job name."""
    shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
    made = [shell.connection() for _ in jobs]
    for connection, job in zip(made, jobs, strict=True):
        connection.set_job(job)
    return made


def test_a_job_whose_connections_send_on_does_not_keep_another_waiting() -> None:
    """Regression: 1,500 connections of one job delayed another's last 3 MiB by 1.3 s."""
    leftovers = Leftovers()
    ended = connections(*["hostile"] * 1_500, "other")
    for one in ended:
        leftovers.add(one)
    for _ in range(100):
        taken = leftovers.take()
        assert len(taken) == AT_ONCE
        assert ended[-1] in taken
        for one in taken:
            leftovers.add(one)


def test_each_is_taken_once() -> None:
    leftovers = Leftovers()
    ended = connections(*(f"job {i % 3}" for i in range(AT_ONCE + 5)))
    for one in ended:
        leftovers.add(one)
    first, then = leftovers.take(), leftovers.take()
    assert [len(first), len(then), len(leftovers.take())] == [AT_ONCE, 5, 0]
    assert set(first + then) == set(ended)


def test_a_single_byte_counts_as_a_whole_read() -> None:
    leftovers = Leftovers()
    leftovers.add(*connections("hostile"))
    for _ in range(MOST_BYTES // READ_BYTES):
        assert leftovers.are_due
        leftovers.count_read()
    assert not leftovers.are_due
    leftovers.tick()
    assert leftovers.are_due
