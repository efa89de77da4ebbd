"""CollNet's connect with unusable reducers: the same error on all ranks, and in time."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np
import pytest

from reducer_tools.nccl import structs
from reducer_tools.nccl.tables import NcclError
from tests.support.harms import Switch, garble, swallow
from tests.support.nccl_job import enter, exchange, meet, values
from tests.support.nccl_tables import CollNet
from tests.support.plugin import NCCL_PLUGIN
from tests.support.proxy import Proxies
from tests.support.ranks import Tell, start_ranks
from tests.support.reducers import Reducers

WORLD = 2
TIMEOUT = 2.0
Failure = tuple[int, float, str]


def _tries(rank: int, world: int, addresses: list[str], failures: int, tell: Tell) -> list[Failure]:
    """(result, seconds, last log line) of each failed connect; one more connect must succeed."""
    enter(addresses, REDUCER_CONNECT_TIMEOUT=str(TIMEOUT))
    coll = CollNet(NCCL_PLUGIN, 12)
    coll.init()
    found = [_failure(coll, rank, tell) for _ in range(failures)]
    comm = meet(coll, rank, tell)
    send, receive = np.full(1000, rank, np.int32), np.empty(1000, np.int32)
    request = coll.all_reduce(comm, send, receive, "int32", "sum")
    assert request is not None
    coll.wait(request)
    assert (receive == sum(range(world))).all()
    coll.close(comm)
    return found


def _failure(coll: CollNet, rank: int, tell: Tell) -> Failure:
    handle, listen = coll.listen()
    tell(handle)
    handles = tell.hear()
    begun = time.monotonic()
    with pytest.raises(NcclError) as caught:
        coll.connect(handles, rank, listen)
    seconds = time.monotonic() - begun
    coll.close_listen(listen)
    return caught.value.result, seconds, coll.lines[-1][1]


def test_no_rank_gets_in_where_one_cannot_and_all_do_later() -> None:
    nonsense = Switch()
    with ExitStack() as stack:
        reducers = stack.enter_context(Reducers(2, "--max-runs", "64"))
        proxies = stack.enter_context(Proxies(reducers.addresses, nonsense))
        harms: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "half-open towards one rank": (
                lambda: nonsense.set(swallow, lambda s: s.index == 1 and s.number % 2 == 1),
                lambda: nonsense.set(swallow, times=0),
            ),
            "half-open": (lambda: proxies.stall(0), lambda: proxies.resume(0)),
            "stopped": (lambda: reducers.freeze(1), lambda: reducers.thaw(1)),
            "garbage": (
                lambda: nonsense.set(garble, lambda s: s.index == 0),
                lambda: nonsense.set(garble, times=0),
            ),
        }
        arguments = (proxies.addresses, len(harms))
        ranks = stack.enter_context(start_ranks(WORLD, _tries, *arguments, talk=True))
        for harm, undo in harms.values():
            handles = [ranks.receive(rank) for rank in range(WORLD)]
            harm()
            for rank in range(WORLD):
                ranks.send(rank, handles)
            for rank in range(WORLD):
                ranks.wait(rank)  # the rank listens again, so this connect has failed
            undo()
        exchange(ranks, WORLD)
        failures = values(ranks.collect(60))
    for of_rank in failures:
        for name, (result, seconds, text) in zip(harms, of_rank, strict=True):
            assert result == structs.REMOTE_ERROR, (name, text)
            assert seconds < 2 * TIMEOUT + 5, (name, text)
            assert "cannot use the reducers" in text, (name, text)
