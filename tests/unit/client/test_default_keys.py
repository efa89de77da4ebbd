"""Keys for calls without a key are equal on all ranks, and even over reducers and lanes."""

from __future__ import annotations

from collections import Counter

import pytest

from reducer.wire.keys import key_id
from reducer_client.default_keys import KeysInTurn, spread_keys


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("reducers", [1, 3, 4, 64])
def test_small_calls_load_all_lanes_alike(reducers: int, lanes: int) -> None:
    keys = spread_keys("calls/cpu", reducers)
    places = [key_id(key) & 0xFFFFFFFF for key in keys]
    assert [place % reducers for place in places] == [i % reducers for i in range(len(keys))]
    loads = Counter((place % reducers, place // reducers % lanes) for place in places)
    assert len(loads) == reducers * lanes and len(set(loads.values())) == 1


def _refuse(key: str) -> None:
    raise TypeError(f"not so: {key}")


def test_a_call_that_was_refused_has_not_had_its_turn() -> None:
    ours, theirs = KeysInTurn("~all_reduce", 2), KeysInTurn("~all_reduce", 2)
    with pytest.raises(TypeError):
        ours.next(_refuse)
    for _ in range(100):
        assert ours.next(str) == theirs.take()
