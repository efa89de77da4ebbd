"""A bit flipped in transit, in either direction, costs one reconnect and changes no result."""

from __future__ import annotations

import time

import numpy as np
import pytest

from reducer.wire.codes import MessageKind
from reducer.wire.header import Header
from reducer.wire.keys import key_id
from reducer_client import ReducerError
from tests.support.liar import Liar
from tests.support.ranks import join, run_ranks

COUNT = 100_003  # float32: several chunks, read straight into the caller's array


def _reduce(rank: int, world: int, addresses: list[list[str]], job: str) -> int:
    with join(rank, world, addresses[rank], job, transport="tcp") as group:
        for turn in range(6):
            mine = np.full(COUNT, rank + turn + 0.5, np.float32)
            result = group.all_reduce(mine, key="w", out=mine).wait(60)
            expected = np.float32(0.5 + turn) + np.float32(1.5 + turn)
            assert (result == expected).all(), turn
        return group._engine.counters()["reconnects"]


@pytest.mark.parametrize("kind", [MessageKind.CONTRIBUTION, MessageKind.RESULT])
def test_a_flipped_bit_costs_a_connection_and_no_round(
    kind: MessageKind, addresses: list[str], job: str
) -> None:
    key, flipped = key_id("w"), set()

    def once(header: Header) -> bool:
        at = (header.kind, header.key, header.round)
        if at != (kind, key, 3) or at in flipped:
            return False
        flipped.add(at)
        return True

    with Liar(addresses[0], once, mends=False) as liar:
        lists = [[liar.address if rank == 1 else addresses[0]] for rank in range(2)]
        honest, victim = run_ranks(2, _reduce, lists, job)
        assert liar.lies == 1
    assert honest == 0
    assert victim >= 1


def test_a_lane_that_fails_again_and_again_is_given_time(addresses: list[str], job: str) -> None:
    """Regression: 60 ms without memory gave each rank ten errors, which ended the job."""
    with (
        Liar(addresses[0], lambda header: header.kind == MessageKind.RESULT, mends=False) as liar,
        pytest.raises(ReducerError),
        join(0, 1, [liar.address], job) as group,
    ):
        began = time.monotonic()
        group.all_reduce(np.ones(1_000, np.float32)).wait(60)
    assert liar.connections == 10
    assert time.monotonic() - began > 2
