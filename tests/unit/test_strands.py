"""Names of calls: what callbacks call is told from what the program calls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from reducer_client.torch.calls import Calls
from reducer_client.torch.reduction import HierarchicalReduction
from reducer_client.torch.solo import SoloGroup
from reducer_client.torch.strands import MainStrand, entered, main_key


def test_calls_of_callbacks_are_told_apart() -> None:
    strand = MainStrand("0")
    key, of_callback = strand.next_call("cpu")
    assert key == main_key("cpu") != main_key("cuda")
    with entered(of_callback):
        inner, deeper = strand.next_call("cpu")
        assert inner != key
        with entered(deeper):
            assert strand.next_call("cpu")[0] not in (key, inner)
    assert strand.next_call("cpu")[0] == key


@pytest.mark.parametrize("cuda", [False, True])
def test_only_calls_in_the_same_order_on_all_ranks_take_the_hierarchy(cuda: bool) -> None:
    hierarchy: Any = SimpleNamespace(layout=SimpleNamespace(cuda=cuda))
    reduction = HierarchicalReduction(Calls(SoloGroup(), "0"), None, hierarchy)
    strand = MainStrand("0")
    for place in ("cpu", "cuda"):
        key, of_callback = strand.next_call(place)
        assert (reduction._via(key) is hierarchy) == (cuda == (place == "cuda"))
        with entered(of_callback):
            assert reduction._via(strand.next_call(place)[0]) is not hierarchy
