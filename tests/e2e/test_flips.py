"""A bit that flips on its way, in either direction: one new connection, and the same bits."""

from __future__ import annotations

import numpy as np
import pytest

from reducer.wire.codes import MessageKind
from reducer.wire.header import Header
from reducer.wire.keys import key_id
from tests.support.liar import Liar
from tests.support.ranks import join, run_ranks

COUNT = 100_003  # float32: several chunks, read into the caller's array at once


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
