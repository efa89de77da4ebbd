"""Names of calls: what callbacks call is told from what the program calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from reducer_client.torch.calls import Calls
from reducer_client.torch.reduction import HierarchicalReduction
from reducer_client.torch.solo import SoloGroup
from reducer_client.torch.strands import MainStrand, entered, main_prefix


def test_calls_of_callbacks_are_told_apart() -> None:
    strand = MainStrand("0", reducers=2)
    key, of_callback = strand.next_call("cpu")
    assert key.startswith(main_prefix("cpu")) and main_prefix("cpu") != main_prefix("cuda")
    with entered(of_callback):
        inner, deeper = strand.next_call("cpu")
        assert not inner.startswith(main_prefix("cpu"))
        with entered(deeper):
            assert strand.next_call("cpu")[0] not in (key, inner)
    assert strand.next_call("cpu")[0].startswith(main_prefix("cpu"))


def test_calls_of_one_place_are_counted_apart() -> None:
    """A barrier, or a call on a device, takes no key of the calls in host memory."""
    ours, theirs = MainStrand("0", reducers=2), MainStrand("0", reducers=2)
    for place in ("task", "cuda", "task"):
        ours.next_call(place)
    assert ours.next_call("cpu")[0] == theirs.next_call("cpu")[0]


class _Hierarchy(SoloGroup):
    def __init__(self, cuda: bool) -> None:
        self.layout = type("Layout", (), {"cuda": cuda})
        self.keys: list[tuple[str, str]] = []

    def all_reduce(self, array: Any, op: str, *key: Any, **call: Any) -> Any:  # type: ignore[override]
        self.keys.append((*key, call.pop("flat_key")))
        return super().all_reduce(array, op, **call)


@pytest.mark.parametrize("cuda", [False, True])
def test_only_calls_in_the_same_order_on_all_ranks_take_the_hierarchy(cuda: bool) -> None:
    hierarchy: Any = _Hierarchy(cuda)
    reduction = HierarchicalReduction(Calls(SoloGroup(), "0"), None, hierarchy)
    array = np.ones(3, np.float32)
    for place in ("cpu", "cuda"):
        key, of_callback = MainStrand("0", reducers=2).next_call(place)
        reduction._submit(array, "sum", key=key, out=array)
        # A large call has one key, whose parts the hierarchy numbers; a small one takes its turn.
        taken = cuda == (place == "cuda")
        assert hierarchy.keys == ([(main_prefix(place), key)] if taken else [])
        hierarchy.keys.clear()
        with entered(of_callback):
            key, _ = MainStrand("0", reducers=2).next_call(place)
        reduction._submit(array, "sum", key=key, out=array)
        assert not hierarchy.keys
