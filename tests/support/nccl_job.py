"""A communicator of the NCCL plugin over several processes, which call the plugin as NCCL does."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from tests.support.nccl_tables import CollNet
from tests.support.plugin import NCCL_PLUGIN
from tests.support.ranks import RunningRanks, Tell, start_ranks, values

Body = Callable[..., Any]


def enter(addresses: Sequence[str], **settings: str) -> None:
    os.environ["NCCL_COLLNET_ENABLE"] = "1"
    os.environ["NCCL_SOCKET_IFNAME"] = "lo"
    os.environ["REDUCER_ADDRS"] = ",".join(addresses)
    os.environ.update(settings)


def meet(coll: CollNet, rank: int, tell: Tell) -> Any:
    """Listen, let the parent exchange the handles, and connect."""
    handle, listen = coll.listen()
    tell(handle)
    comm = coll.connect(tell.hear(), rank, listen)
    coll.close_listen(listen)
    return comm


def run_rank(
    rank: int, world: int, addresses: list[str], version: int, settings: dict[str, str],
    body: Body, args: tuple[Any, ...], tell: Tell,
) -> Any:  # fmt: skip
    """Run one rank as NCCL does, from loading the plugin to finalize."""
    enter(addresses, **settings)
    coll = CollNet(NCCL_PLUGIN, version)
    coll.init()
    comm = meet(coll, rank, tell)
    result = body(coll, comm, rank, world, tell, *args)
    coll.close(comm)
    coll.finalize()
    return result


def start(
    world: int, addresses: list[str], body: Body, *args: Any, version: int = 12, **settings: str
) -> RunningRanks:
    """Start ranks, and exchange their handles."""
    ranks = start_ranks(world, run_rank, addresses, version, settings, body, args, talk=True)
    exchange(ranks, world)
    return ranks


def exchange(ranks: RunningRanks, world: int) -> None:
    handles = [ranks.receive(rank) for rank in range(world)]
    for rank in range(world):
        ranks.send(rank, handles)


def run(world: int, addresses: list[str], body: Body, *args: Any, **settings: Any) -> list[Any]:
    with start(world, addresses, body, *args, **settings) as ranks:
        return values(ranks.collect(120))
