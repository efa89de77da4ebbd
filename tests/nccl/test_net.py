"""The point-to-point half of the NCCL plugin between processes, through each of its tables.

nccl_plugin/tests/net_*.cpp test the transport below the tables.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from reducer_tools.nccl.structs import VERSIONS
from tests.support.nccl_tables import Net, reg_mr
from tests.support.plugin import NCCL_PLUGIN
from tests.support.ranks import Tell, start_ranks

SIZES = (0, 1, 1000, 131_073, 3_000_000)


def _ring(rank: int, world: int, version: int, tell: Tell) -> list[tuple[int, int]]:
    """Each rank sends to the next one and receives from the one before."""
    os.environ.update(
        NCCL_COLLNET_ENABLE="1", NCCL_SOCKET_IFNAME="lo", REDUCER_ADDRS="none", REDUCER_NSOCKS="3"
    )
    net = Net(NCCL_PLUGIN, version)
    net.init()
    assert net.name == "REDUCER"
    assert [device["name"] for device in net.devices()] == [b"lo"]
    handle, listen = net.listen()
    tell(handle)
    out = net.connect(tell.hear())
    into = net.accept(listen)
    got = []
    for number, size in enumerate(SIZES):
        given = np.full(size, 10 * rank + number, np.uint8)
        room = np.zeros(size + 7, np.uint8)
        mhandle = reg_mr(net, out, given.ctypes.data, given.nbytes)
        receiving, sending = net.receive(into, room), net.send(out, given)
        assert receiving is not None and sending is not None
        sent = received = None
        while sent is None or received is None:  # in turn, as NCCL does: test() moves bytes
            sent = net.test(sending) if sent is None else sent
            received = net.test(receiving) if received is None else received
        got.append((sent, received))
        net.call("deregMr", out, mhandle)
        before = (rank - 1) % world
        assert (room[:size] == 10 * before + number).all() and not room[size:].any()
    net.close_send(out)
    net.close_receive(into)
    net.close_listen(listen)
    net.finalize()
    return got


@pytest.mark.parametrize("version", VERSIONS)
def test_a_ring_over_every_version_of_the_table(version: int) -> None:
    with start_ranks(3, _ring, version, talk=True) as ranks:
        handles = [ranks.receive(rank) for rank in range(3)]
        for rank in range(3):
            ranks.send(rank, handles[(rank + 1) % 3])
        outcomes = ranks.collect(60)
    assert [outcome.trace for outcome in outcomes] == ["", "", ""]
    assert all(outcome.reported for outcome in outcomes)
    assert [outcome.value for outcome in outcomes] == [[(size, size) for size in SIZES]] * 3
