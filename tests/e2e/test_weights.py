"""Reducers with unequal shares: their bytes, the same bits, and failover."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.groups import Groups, Values
from tests.support.reducers import Reducers

WEIGHTS = (5, 2, 1)
CHUNKS = 64
COUNT = CHUNKS * 4_096
OPTIONS = {"chunk_table": [(0, 16_384)], "silence": 0.5}


@pytest.fixture
def reducers() -> Iterator[Reducers]:
    with Reducers(len(WEIGHTS), lanes=2) as started:
        yield started


def test_reducers_get_their_shares_and_every_sum_is_right(reducers: Reducers) -> None:
    values = Values(1, 3, COUNT)
    with Groups(3, reducers.addresses, "shares", weights=WEIGHTS, **OPTIONS) as groups:
        for turn in range(4):
            groups.turn(values, turn)
        loads = [sum(reducers.lane_bytes_in(index)) for index in range(len(WEIGHTS))]
    assert loads == [4 * 3 * COUNT * 4 * weight // sum(WEIGHTS) for weight in WEIGHTS]


def test_the_loss_of_the_heaviest_reducer_changes_no_bit(reducers: Reducers) -> None:
    values = Values(2, 3, COUNT)
    with Groups(3, reducers.addresses, "loss", weights=WEIGHTS, **OPTIONS) as groups:
        groups.turn(values, 0)
        reducers.strike(0)
        for turn in range(1, 6):
            groups.turn(values, turn)
        reducers.kill(0)
        light = np.array([sum(reducers.lane_bytes_in(index)) for index in (1, 2)])
    assert 1.5 < light[0] / light[1] < 2.5  # the lost share was dealt 2 : 1
