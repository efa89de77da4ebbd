"""Calls on a communicator that NCCL would not make fail with a reason and do no harm.

Calls that need no communicator are in nccl_plugin/tests/misuse.cpp.
"""

from __future__ import annotations

from ctypes import byref, c_void_p
from typing import Any

import numpy as np
import pytest

from reducer_tools.nccl import structs
from reducer_tools.nccl.tables import NcclError
from tests.support.nccl_job import enter, exchange, meet, run, values
from tests.support.nccl_tables import CollNet
from tests.support.plugin import NCCL_PLUGIN
from tests.support.ranks import Tell, start_ranks
from tests.support.reducers import Reducers

FLOAT64, SUM = structs.TYPES.index("float64"), structs.OPS.index("sum")
GIBIBYTE = 1 << 30


def _is_refused(coll: CollNet, text: str, name: str, *arguments: Any) -> None:
    request = c_void_p(1)
    with pytest.raises(NcclError) as caught:
        coll.call(name, *arguments, byref(request))
    assert caught.value.result == structs.INVALID_ARGUMENT
    assert not request.value and text in coll.lines[-1][1], coll.lines[-1]


def _sums(coll: CollNet, comm: Any, world: int) -> None:
    send, receive = np.arange(1000, dtype=np.float64), np.empty(1000)
    request = coll.all_reduce(comm, send, receive, "float64", "sum")
    assert request is not None
    assert coll.wait(request) == send.nbytes
    assert (receive == world * send).all()


def _refusals(coll: CollNet, comm: Any, rank: int, world: int, tell: Tell) -> None:
    memory = np.zeros(1000)
    at = memory.ctypes.data
    counts = [-1, -(1 << 31), (1 << 31) - 1]  # the last has more bytes than an int
    if coll.version >= 9:
        counts = [GIBIBYTE // 8 + 1, (1 << 61) + 1, (1 << 64) - 1]  # the second wraps to 8 bytes
    for count in counts:
        text = "elements of 8 bytes: expected at most 1073741824 bytes"
        _is_refused(coll, text, "iallreduce", comm, at, at, count, FLOAT64, SUM, None, None)
    for send, receive in ((None, at), (at, None)):
        _is_refused(
            coll, "needs a", "iallreduce", comm, send, receive, 10, FLOAT64, SUM, None, None
        )
    if coll.version >= 8:
        _windows(coll, comm, at)
    for _ in range(2 * 64):  # refused calls must leave no request in use
        _sums(coll, comm, world)


def _windows(coll: CollNet, comm: Any, at: int) -> None:
    def refused(text: str, parts: int, size: int, *window: int) -> None:
        part = byref(coll.sge(None, at, size))
        _is_refused(coll, text, "iallgather", comm, at, parts, part, *window, None)
        _is_refused(
            coll, text, "ireducescatter", comm, parts, part, at, *window, FLOAT64, SUM, None
        )

    refused("expected at most 1073741824 bytes", 1, 0xFFFF_FFFF, 8000, 0, GIBIBYTE + 8)
    refused("at most 2^50", 1, 8000, 1 << 63, 0, 8000)
    refused("at most 2^50", 1, 8000, 8000, (1 << 64) - 8, 8000)
    refused("one part that is the whole window", 2, 8000, 8000, 0, 8000)
    refused("one part that is the whole window", 1, 7992, 8000, 0, 8000)


@pytest.mark.parametrize("version", [6, 8, 12])
def test_sizes_that_cannot_be_are_refused(version: int) -> None:
    with Reducers(1) as reducers:
        run(1, reducers.addresses, _refusals, version=version)


def _listens_once(rank: int, world: int, addresses: list[str], tell: Tell) -> None:
    """Connect repeatedly with one listener: after all have closed, then twice at the same time."""
    enter(addresses, REDUCER_CONNECT_TIMEOUT="3")
    coll = CollNet(NCCL_PLUGIN, 12)
    coll.init()
    unused, listen = coll.listen()
    coll.close_listen(listen)
    handle, listen = coll.listen()
    assert handle != unused
    for _ in range(2):
        tell(handle)
        comm = coll.connect(tell.hear(), rank, listen)
        _sums(coll, comm, world)
        coll.close(comm)
    tell(handle)
    handles = tell.hear()
    comm = coll.connect(handles, rank, listen)
    with pytest.raises(NcclError) as caught:
        coll.connect(handles, rank, listen)
    assert caught.value.result == structs.REMOTE_ERROR
    coll.close(comm)
    coll.close_listen(listen)


def test_one_listener_may_connect_again_once_all_have_closed() -> None:
    with (
        Reducers(2, "--max-runs", "64") as reducers,
        start_ranks(2, _listens_once, reducers.addresses, talk=True) as ranks,
    ):
        for _ in range(3):
            exchange(ranks, 2)
        values(ranks.collect(60))


def _takes_rank_0(rank: int, world: int, addresses: list[str], tell: Tell) -> str:
    enter(addresses, REDUCER_CONNECT_TIMEOUT="3")
    coll = CollNet(NCCL_PLUGIN, 12)
    coll.init()
    with pytest.raises(NcclError) as caught:
        meet(coll, 0, tell)
    assert caught.value.result == structs.REMOTE_ERROR
    return coll.lines[-1][1]


def test_two_processes_that_take_one_rank_fail_alike() -> None:
    with (
        Reducers(1) as reducers,
        start_ranks(2, _takes_rank_0, reducers.addresses, talk=True) as ranks,
    ):
        exchange(ranks, 2)
        lines = values(ranks.collect(60))
    assert all("cannot use the reducers" in line for line in lines)
