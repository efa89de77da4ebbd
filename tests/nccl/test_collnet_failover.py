"""CollNet gives the same bits while reducers die, hang, fall silent or send garbage."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from tests.support.arrays import DTYPES, Array, sample
from tests.support.harms import Switch, garble
from tests.support.nccl_job import start, values
from tests.support.nccl_tables import CollNet
from tests.support.proxy import Proxies
from tests.support.ranks import RunningRanks, Tell
from tests.support.reducers import Reducers

TYPES = {dtype.name: dtype for dtype in DTYPES}
IN_FLIGHT = 6
HARMED_AT = 1  # the turn whose requests are in flight when the harm is done


def _digests(
    coll: CollNet, comm: Any, rank: int, world: int, tell: Tell, phases: int, types: list[str]
) -> list[str]:
    """The digest of the same turns in each phase. In each phase the parent may do harm while the
    requests of one turn are in flight."""
    return [_digest(coll, comm, rank, tell, types) for _ in range(phases)]


@cache
def _sends(type_: str, turn: int, rank: int) -> list[Array]:
    return [sample(TYPES[type_], 150_001 + n, (turn, n, rank)) for n in range(IN_FLIGHT)]


def _digest(coll: CollNet, comm: Any, rank: int, tell: Tell, types: list[str]) -> str:
    digest = hashlib.sha256()
    for turn, type_ in enumerate(types):
        sends = _sends(type_, turn, rank)
        receives: list[Array] = [send.copy() for send in sends]
        requests = [
            coll.all_reduce(comm, send, receive, type_, "sum")
            for send, receive in zip(sends, receives, strict=True)
        ]
        if turn == HARMED_AT:
            tell("in flight")
            tell.hear()
        for request, receive in zip(requests, receives, strict=True):
            assert request is not None
            coll.wait(request)
            digest.update(receive.tobytes())
    return digest.hexdigest()


def _phase(ranks: RunningRanks, world: int, harm: Callable[[], object]) -> None:
    """Let a phase run until its requests are in flight, then do the harm."""
    for rank in range(world):
        ranks.receive(rank, 60)
    harm()
    for rank in range(world):
        ranks.send(rank)


def _alike(ranks: RunningRanks, phases: int) -> None:
    digests = [digest for found in values(ranks.collect(90)) for digest in found]
    assert len(digests) % phases == 0 and len(set(digests)) == 1


@pytest.mark.parametrize("world", [2, 3])
def test_killed_and_stopped_reducers_change_no_bit(world: int) -> None:
    """Each phase harms another reducer; the third one stays unharmed."""
    types = ["float32", "bfloat16", "float16", "int32", "float8_e4m3fn"]
    with (
        Reducers(3) as reducers,
        start(world, reducers.addresses, _digests, 3, types) as ranks,
    ):
        _phase(ranks, world, lambda: None)
        _phase(ranks, world, lambda: reducers.freeze(0))
        _phase(ranks, world, lambda: (reducers.thaw(0), reducers.kill(1)))
        _alike(ranks, 3)


def test_half_open_links_and_garbage_change_no_bit() -> None:
    world = 3
    types = ["float64", "bfloat16", "uint8", "float32"]
    nonsense = Switch()
    with (
        Reducers(3) as reducers,
        Proxies(reducers.addresses, nonsense) as proxies,
        start(world, proxies.addresses, _digests, 4, types) as ranks,
    ):
        _phase(ranks, world, lambda: None)
        _phase(ranks, world, lambda: nonsense.set(garble, lambda s: s.index == 0, times=world))
        _phase(ranks, world, lambda: proxies.stall(1))
        _phase(ranks, world, lambda: (proxies.resume(1), proxies.stall(2, "down")))
        _alike(ranks, 4)
    assert nonsense.done == world
