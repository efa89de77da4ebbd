"""The tuner of the NCCL plugin, which chooses the algorithm of an all-reduce."""

from __future__ import annotations

import ctypes
import os
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_float, c_int, c_size_t, c_uint64, c_void_p
from typing import Any

import pytest

from tests.support.plugin import NCCL_PLUGIN
from tests.support.ranks import start_ranks

ALL_REDUCE = 4
OTHERS = range(4)  # broadcast, reduce, all-gather, reduce-scatter
RING, DIRECT, CHAIN, SIMPLE = 1, 2, 3, 2
ALGORITHMS, PROTOCOLS = 7, 3
IGNORED = -1.0


def _table(version: int) -> Any:
    call, out = CFUNCTYPE, POINTER(c_int)
    start = [c_size_t, c_size_t, c_void_p]
    if version >= 5:
        start = [POINTER(c_void_p), c_uint64, *start, c_void_p, c_void_p]
    elif version >= 2:
        start = [*start, POINTER(c_void_p)]
    context = [c_void_p] if version >= 2 else []
    if version <= 2:
        info = [*context, c_int, c_size_t, c_int, c_int, c_int, out, out, out]
    else:
        registered = [c_int] if version >= 4 else []
        costs = POINTER(c_float)
        info = [c_void_p, c_int, c_size_t, c_int, costs, c_int, c_int, *registered, out]
    fields = [
        ("name", c_char_p),
        ("init", call(c_int, *start)),
        ("getCollInfo", call(c_int, *info)),
        ("end", call(c_int, *context)),
    ]
    fields += [("getChunkSize", c_void_p)] if version >= 6 else []
    kind = type(f"Tuner{version}", (ctypes.Structure,), {"_fields_": fields})
    return kind.in_dll(ctypes.CDLL(str(NCCL_PLUGIN)), f"ncclTunerPlugin_v{version}")


class _Tuner:
    """The tuner of one communicator, through one version of the table."""

    def __init__(self, version: int) -> None:
        self.version = version
        self._table = _table(version)
        assert self._table.name == b"REDUCER"
        self._context = c_void_p(99)
        context = byref(self._context)
        arguments: tuple[Any, ...] = (8, 2, None)
        if version >= 5:
            arguments = (context, 7, *arguments, None, None)
        elif version >= 2:
            arguments = (*arguments, context)
        assert self._table.init(*arguments) == 0

    def costs(self, function: int, size: int, chain: float = 5.0) -> list[float]:
        """The costs of Simple by algorithm, as the tuner sets them (version 3 and later)."""
        table = (c_float * (ALGORITHMS * PROTOCOLS))(*([5.0] * ALGORITHMS * PROTOCOLS))
        table[CHAIN * PROTOCOLS + SIMPLE] = chain
        registered = [0] if self.version >= 4 else []
        result = self._table.getCollInfo(
            self._context, function, size, 1, table, ALGORITHMS, PROTOCOLS, *registered,
            byref(c_int(-1)),
        )  # fmt: skip
        assert result == 0
        others = [c for i, c in enumerate(table) if i % PROTOCOLS != SIMPLE]
        assert others == [5.0] * len(others)
        return [table[algorithm * PROTOCOLS + SIMPLE] for algorithm in range(ALGORITHMS)]

    def choice(self, function: int, size: int, coll_net: int = 1) -> tuple[int, int]:
        """(algorithm, protocol); -1 if the tuner leaves the choice to NCCL (versions 1 and 2)."""
        algorithm, protocol = c_int(-1), c_int(-1)
        context = [self._context] if self.version >= 2 else []
        result = self._table.getCollInfo(
            *context, function, size, coll_net, 0, 1, byref(algorithm), byref(protocol),
            byref(c_int(-1)),
        )  # fmt: skip
        assert result == 0
        return algorithm.value, protocol.value


def _tables(rank: int, world: int, version: int) -> None:
    os.environ.update(
        NCCL_COLLNET_ENABLE="1",
        REDUCER_ADDRS="a",
        REDUCER_MIN_BYTES="1000",
        NCCL_SOCKET_IFNAME="lo",
    )
    tuner = _Tuner(version)
    if version <= 2:
        assert tuner.choice(ALL_REDUCE, 1000) == (CHAIN, SIMPLE)
        assert tuner.choice(ALL_REDUCE, 999) == (-1, -1)
        assert tuner.choice(ALL_REDUCE, 1000, coll_net=0) == (-1, -1)
        assert {tuner.choice(other, 1000) for other in OTHERS} == {(-1, -1)}
        return
    large, small = tuner.costs(ALL_REDUCE, 1000), tuner.costs(ALL_REDUCE, 999)
    assert min(large) == large[CHAIN] == 0.0
    assert (large[RING], large[DIRECT]) == (5.0, 5.0)
    assert small[RING] == 5.0
    assert min(small[CHAIN], small[DIRECT]) > 1e6
    for size in (999, 1000):
        assert tuner.costs(ALL_REDUCE, size, chain=IGNORED)[CHAIN] == IGNORED
        for other in OTHERS:
            assert tuner.costs(other, size) == small
            assert tuner.costs(other, size, chain=IGNORED)[CHAIN] == IGNORED


@pytest.mark.parametrize("version", range(1, 7))
def test_large_all_reduces_take_the_reducers_and_small_ones_do_not(version: int) -> None:
    _run(_tables, version)


def _unwanted(rank: int, world: int, version: int) -> None:
    os.environ.pop("NCCL_COLLNET_ENABLE", None)
    tuner = _Tuner(version)
    if version <= 2:
        assert tuner.choice(ALL_REDUCE, 1 << 30) == (-1, -1)
    else:
        assert tuner.costs(ALL_REDUCE, 1 << 30) == [5.0] * ALGORITHMS


@pytest.mark.parametrize("version", range(1, 7))
def test_a_tuner_that_nobody_wants_changes_nothing(version: int) -> None:
    _run(_unwanted, version)


def _run(function: Any, version: int) -> None:
    with start_ranks(1, function, version) as ranks:
        (outcome,) = ranks.collect(30)
    assert outcome.reported and outcome.error is None, outcome.trace
