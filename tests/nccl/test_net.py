"""The point-to-point half of the NCCL plugin between processes, through each of its tables.

nccl_plugin/tests/net_*.cpp test the transport below the tables.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from reducer_tools.nccl.structs import VERSIONS
from tests.support.nccl_tables import Net, reg_mr
from tests.support.plugin import NCCL_PLUGIN
from tests.support.ranks import Tell, start_ranks

SIZES = (0, 1, 1000, 131_073, 3_000_000)


def _ring(
    rank: int, world: int, version: int, threads: str, tell: Tell
) -> tuple[list[tuple[int, int]], bool]:
    """Each rank sends to the next one and receives from the one before."""
    os.environ.update(
        NCCL_COLLNET_ENABLE="1", NCCL_SOCKET_IFNAME="lo", REDUCER_ADDRS="none",
        REDUCER_NSOCKS="3", REDUCER_NET_THREADS=threads,
    )  # fmt: skip
    net = Net(NCCL_PLUGIN, version)
    net.init()
    assert net.name == "REDUCER"
    (device,) = net.devices()
    assert device["name"] == b"lo"
    # As NCCL's own sockets: only host memory, registered with each connection.
    assert (device["ptrSupport"], device.get("regIsGlobal", 0)) == (1, 0)
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
    helped = any(path.read_text() == "ors-net\n" for path in Path("/proc/self/task").glob("*/comm"))
    net.close_send(out)
    net.close_receive(into)
    net.close_listen(listen)
    net.finalize()
    return got, helped


@pytest.mark.parametrize(
    ("version", "threads"), [*((version, "0") for version in VERSIONS), (12, "2"), (8, "auto")]
)
def test_a_ring_over_every_version_of_the_table(version: int, threads: str) -> None:
    with start_ranks(3, _ring, version, threads, talk=True) as ranks:
        handles = [ranks.receive(rank) for rank in range(3)]
        for rank in range(3):
            ranks.send(rank, handles[(rank + 1) % 3])
        outcomes = ranks.collect(60)
    assert [outcome.trace for outcome in outcomes] == ["", "", ""]
    assert all(outcome.reported for outcome in outcomes)
    expected = ([(size, size) for size in SIZES], threads == "2")
    assert [outcome.value for outcome in outcomes] == [expected] * 3
