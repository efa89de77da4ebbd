"""CollNet's close with requests in flight returns; afterwards the plugin touches no buffer."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from reducer_tools.nccl import structs
from reducer_tools.nccl.tables import NcclError
from tests.support.harms import Switch, garble
from tests.support.nccl_job import enter, exchange, meet, values
from tests.support.nccl_tables import CollNet
from tests.support.pages import Fenced
from tests.support.plugin import NCCL_PLUGIN
from tests.support.proxy import Proxies
from tests.support.ranks import Tell, start_ranks
from tests.support.reducers import Reducers
from tests.support.wait import wait_until

WORLD = 2
IN_FLIGHT = 8
COUNT = 300_001


def _closes(
    rank: int, world: int, addresses: list[str], waits: list[bool], tell: Tell
) -> list[tuple[list[int], float]]:
    """For each communicator: the results of its requests, and the duration of its close."""
    enter(addresses, REDUCER_WAIT="1", REDUCER_CONNECT_TIMEOUT="20")
    coll = CollNet(NCCL_PLUGIN, 12)
    coll.init()
    return [
        _close(coll, meet(coll, rank, tell), rank, tell, until_failed) for until_failed in waits
    ]


def _close(
    coll: CollNet, comm: Any, rank: int, tell: Tell, until_failed: bool
) -> tuple[list[int], float]:
    with ExitStack() as stack:
        sends, receives = (
            [
                stack.enter_context(Fenced(np.full(COUNT, value, np.float32), at_end=True))
                for _ in range(IN_FLIGHT)
            ]
            for value in (rank + 1, -1)
        )
        tell("ready")
        tell.hear()  # from now on nothing comes from the reducers
        requests = [
            coll.all_reduce(comm, send.array, receive.array, "float32", "sum")
            for send, receive in zip(sends, receives, strict=True)
        ]
        scattered = np.full(COUNT, -1, np.float32)
        both = np.ones(2 * COUNT, np.float32)
        requests.append(coll.reduce_scatter(comm, both, scattered, 4 * COUNT, 0, "float32", "sum"))
        results = [_result(coll, request) for request in requests] if until_failed else []
        begun = time.monotonic()
        coll.close(comm)
        took = time.monotonic() - begun
        for send in sends:
            send.forbid()
        before = [receive.array.tobytes() for receive in receives]
        tell("closed")
        tell.hear()  # all bytes that were held back have come
        assert [receive.array.tobytes() for receive in receives] == before
        assert (scattered == -1).all()
    return results, took


def _result(coll: CollNet, request: Any) -> int:
    with pytest.raises(NcclError) as caught:
        coll.wait(request, 30)
    return caught.value.result


def test_a_closed_communicator_touches_no_memory() -> None:
    """Closed with requests in flight, or after a silent or garbled reducer failed them."""
    nonsense = Switch()
    with ExitStack() as stack:
        reducers = stack.enter_context(Reducers(1, "--max-runs", "64"))
        proxies = stack.enter_context(Proxies(reducers.addresses, nonsense))
        steps: list[tuple[bool, Callable[[], object], Callable[[], object]]] = [
            (False, lambda: proxies.stall(0, "down"), lambda: proxies.resume(0)),
            (True, lambda: proxies.stall(0, "down"), lambda: proxies.resume(0)),
            (True, lambda: proxies.stall(0), lambda: proxies.resume(0)),
            (True, lambda: reducers.freeze(0), lambda: reducers.thaw(0)),
            (True, lambda: nonsense.set(garble), lambda: nonsense.set(garble, times=0)),
        ]
        arguments = (proxies.addresses, [waits for waits, *_ in steps])
        ranks = stack.enter_context(start_ranks(WORLD, _closes, *arguments, talk=True))
        for _, harm, undo in steps:
            exchange(ranks, WORLD)
            for step in (harm, undo):
                assert len([ranks.receive(rank, 60) for rank in range(WORLD)]) == WORLD
                step()
                if step is undo:
                    wait_until(lambda: proxies.ended == proxies.made, 30, "links of a closed group")
                for rank in range(WORLD):
                    ranks.send(rank)
        found = values(ranks.collect(60))
    for of_rank in found:
        for (waits, *_), (results, took) in zip(steps, of_rank, strict=True):
            assert len(results) == (IN_FLIGHT + 1) * waits
            assert not {*results} - {structs.REMOTE_ERROR, structs.INTERNAL_ERROR}
            assert took < 10  # the promise is a few seconds
