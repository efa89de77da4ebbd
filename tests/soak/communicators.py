"""A6: communicators of the NCCL plugin come and go by the hundred, and leave nothing behind."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Any

import numpy as np

from reducer_tools.nccl.tables import NcclError
from tests.soak import Figures, Say
from tests.support.cluster import Usage, usage
from tests.support.nccl_job import enter, exchange, meet, values
from tests.support.nccl_tables import CollNet, Net
from tests.support.plugin import NCCL_PLUGIN
from tests.support.ranks import Tell, start_ranks
from tests.support.reducers import Reducers
from tests.support.wait import wait_until

WORLD = 2
WARM_UP = 10  # cycles; pools and caches have their size then
MEBIBYTE = 1 << 20
MOST_GROWTH = 16 * MEBIBYTE  # resident, of a rank or a reducer


def _cycles(
    rank: int, world: int, addresses: list[str], count: int, tell: Tell
) -> tuple[Usage, Usage]:
    """What this process holds after the warm-up, and at the end."""
    enter(addresses)
    coll, net = CollNet(NCCL_PLUGIN, 12), Net(NCCL_PLUGIN, 12)
    coll.init()
    net.init()
    before = after = usage(os.getpid())
    for cycle in range(count):
        _sum(coll, meet(coll, rank, tell), cycle)
        _message(net, cycle)
        after = usage(os.getpid())
        if cycle == min(WARM_UP, count - 1):
            before = after
    return before, after


def _sum(coll: CollNet, comm: Any, cycle: int) -> None:
    """Of all ranks. Some communicators close unused, and some with their requests in flight."""
    send, receive = np.full(20_001, cycle, np.float32), np.empty(20_001, np.float32)
    if cycle % 5 == 0:
        with suppress(NcclError):  # the other rank may have closed already
            coll.all_reduce(comm, send, receive, "float32", "sum")
    elif cycle % 3:
        request = coll.all_reduce(comm, send, receive, "float32", "sum")
        assert request is not None
        coll.wait(request)
        assert (receive == WORLD * cycle).all()
    coll.close(comm)


def _message(net: Net, cycle: int) -> None:
    """From this rank to itself, or none."""
    handle, listen = net.listen()
    out = net.connect(handle)
    into = net.accept(listen)
    if cycle % 3:
        send, receive = np.full(20_001, cycle, np.int32), np.empty(20_001, np.int32)
        receiving, sending = net.receive(into, receive), net.send(out, send)
        assert receiving is not None and sending is not None
        sent = received = None
        while sent is None or received is None:
            sent = net.test(sending) if sent is None else sent
            received = net.test(receiving) if received is None else received
        assert (receive == cycle).all()
    net.close_send(out)
    net.close_receive(into)
    net.close_listen(listen)


def run(count: int, seed: int, say: Say) -> Figures:
    """`count` communicators of 2 ranks on 2 reducers, and as many connections of ncclNet."""
    began = time.monotonic()
    with (
        Reducers(2, "--max-runs", "64", "--log-level", "error") as reducers,
        start_ranks(WORLD, _cycles, reducers.addresses, count, talk=True) as ranks,
    ):
        fresh = warm = _lanes(reducers)
        for cycle in range(count):
            exchange(ranks, WORLD)
            if cycle == min(WARM_UP, count - 1):
                warm = _lanes(reducers)
            if cycle and cycle % 100 == 0:
                say(f"{cycle:,} of {count:,} communicators")
        took = (time.monotonic() - began) / count
        of_ranks = values(ranks.collect(60))
        wait_until(lambda: _settled(_lanes(reducers), fresh), 10, "the reducers hold no more")
        before = [w._replace(descriptors=f.descriptors) for w, f in zip(warm, fresh, strict=True)]
        of_reducers = list(zip(before, _lanes(reducers), strict=True))
    for then, now in of_ranks + of_reducers:
        assert now.descriptors <= then.descriptors, (then, now)
        assert now.threads <= then.threads, (then, now)
        assert now.resident - then.resident < MOST_GROWTH, (then, now)
    return {
        "communicators": f"{count:,}, and as many connections of ncclNet; {took * 1e3:.0f} ms each",
        **{f"rank {rank}": _shown(*pair) for rank, pair in enumerate(of_ranks)},
        **{f"reducer {index}": _shown(*pair) for index, pair in enumerate(of_reducers)},
    }


def _lanes(reducers: Reducers) -> list[Usage]:
    return [
        usage(pid)
        for index in range(len(reducers.addresses))
        for pid in reducers.daemon(index).lane_pids()
    ]


def _settled(now: list[Usage], fresh: list[Usage]) -> bool:
    return all(n.descriptors <= f.descriptors for n, f in zip(now, fresh, strict=True))


def _shown(before: Usage, after: Usage) -> str:
    """After the warm-up, and at the end."""
    return (
        f"descriptors {before.descriptors} to {after.descriptors}, "
        f"threads {before.threads} to {after.threads}, "
        f"resident {before.resident / MEBIBYTE:.1f} to {after.resident / MEBIBYTE:.1f} MiB"
    )
