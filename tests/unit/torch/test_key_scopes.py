"""Names of calls separate the calls of callbacks from the program's calls."""

from __future__ import annotations

from threading import Thread
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch  # only where it is installed
from torch._C._distributed_c10d import AllreduceOptions

from reducer_client.errors import ReducerError, RoundTimeoutError
from reducer_client.single_rank import SingleRankGroup
from reducer_client.torch.backend.reduction import HierarchicalReduction
from reducer_client.torch.calls import key_scopes
from reducer_client.torch.calls.group_calls import GroupCalls
from reducer_client.torch.calls.key_scopes import MainScope, Scope, entered, main_prefix
from reducer_client.torch.tensors.packing import Packing


def _next(scope: MainScope, place: str = "cpu") -> tuple[str, Scope]:
    with scope.next_call(place) as call:
        return call


def test_calls_of_callbacks_are_told_apart() -> None:
    scope = MainScope("0", reducers=2)
    key, of_callback = _next(scope)
    assert key.startswith(main_prefix("cpu")) and main_prefix("cpu") != main_prefix("cuda")
    with entered(of_callback):
        inner, deeper = _next(scope)
        assert not inner.startswith(main_prefix("cpu"))
        with entered(deeper):
            assert _next(scope)[0] not in (key, inner)
    assert _next(scope)[0].startswith(main_prefix("cpu"))


def test_calls_of_one_place_are_counted_apart() -> None:
    """A barrier or a call on a device does not count as a call in host memory."""
    ours, theirs = MainScope("0", reducers=2), MainScope("0", reducers=2)
    for place in ("task", "cuda", "task"):
        _next(ours, place)
    assert _next(ours)[0] == _next(theirs)[0]


def test_a_call_that_was_refused_is_not_counted() -> None:
    """In the program or in a callback: the other ranks may not have made the call."""
    ours, theirs = MainScope("0", reducers=2), MainScope("0", reducers=2)
    of_callback = [_next(scope)[1] for scope in (ours, theirs)]
    with pytest.raises(TypeError), ours.next_call("cpu"):
        raise TypeError("not so")
    with pytest.raises(TypeError), entered(of_callback[0]), ours.next_call("cpu"):
        raise TypeError("not so")
    keys = []
    for scope, entering in zip((ours, theirs), of_callback, strict=True):
        key, following = _next(scope)
        with entered(following):
            keys.append([key, _next(scope)[0]])
        with entered(entering):
            keys[-1].append(_next(scope)[0])
    assert keys[0] == keys[1]


def test_a_process_group_counts_no_call_that_was_refused() -> None:
    calls = GroupCalls(SingleRankGroup(), "0")
    keys: list[str] = []

    def submit(*_: object, key: str, **__: object) -> Any:
        keys.append(key)
        raise ValueError("not so")

    packing = Packing([torch.ones(2)])
    options = AllreduceOptions()
    for asynchronous in (False, True):
        options.asyncOp = asynchronous
        with pytest.raises(ValueError, match="not so"):
            calls.start(submit, packing, packing, [], options)
    assert keys[0] == keys[1] and not calls.pending()


def _two_of_one_name(monkeypatch: pytest.MonkeyPatch, patience: float = 20) -> tuple[Scope, Scope]:
    """The callback scopes of two calls with one name; the earlier callback still runs."""
    monkeypatch.setattr(key_scopes, "_NAMES", 2)
    scope = MainScope("0", 2, patience)
    first, _, third = (_next(scope)[1].branch(1) for _ in range(3))
    first.begin()
    return first, third


def _key(scope: Scope) -> str:
    with scope.next_call("0") as (key, _):
        return key


def test_a_callback_waits_for_those_of_the_earlier_use_of_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A callback that did not wait would take the rounds of the earlier callbacks."""
    first, third = _two_of_one_name(monkeypatch)
    keys: list[str] = []
    later = Thread(target=lambda: keys.append(f"later {_key(third)}"), daemon=True)
    later.start()
    keys.append(f"earlier {_key(first)}")
    assert keys == ["earlier 0/0/1.0"]
    first.end()
    later.join(20)
    assert keys == ["earlier 0/0/1.0", "later 0/0/1.0"]


def test_a_callback_that_waits_in_vain_names_the_other_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, third = _two_of_one_name(monkeypatch, patience=0.01)
    with pytest.raises(
        RoundTimeoutError, match=r"of call 2 .* callback of call 0 to end; .* 2 calls"
    ):
        _key(third)
    assert _key(first) and first.end() is None and _key(third)


def test_a_callback_that_comes_after_the_later_use_of_its_name_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, third = _two_of_one_name(monkeypatch)
    first.end()
    assert _key(third)
    with pytest.raises(ReducerError, match=r"of call 0 .* too late: a callback of call 2 has"):
        _key(first)
    assert _key(third)


class _Hierarchy(SingleRankGroup):
    def __init__(self, cuda: bool) -> None:
        self.layout = type("Layout", (), {"cuda": cuda})
        self.keys: list[tuple[str, str]] = []

    def all_reduce(self, array: Any, op: str, *key: Any, **call: Any) -> Any:  # type: ignore[override]
        self.keys.append((*key, call.pop("flat_key")))
        return super().all_reduce(array, op, **call)


@pytest.mark.parametrize("cuda", [False, True])
def test_only_calls_in_the_same_order_on_all_ranks_take_the_hierarchy(cuda: bool) -> None:
    hierarchy: Any = _Hierarchy(cuda)
    reduction = HierarchicalReduction(GroupCalls(SingleRankGroup(), "0"), None, hierarchy)
    array = np.ones(3, np.float32)
    for place in ("cpu", "cuda"):
        key, of_callback = _next(MainScope("0", reducers=2), place)
        reduction._submit(array, "sum", key=key, out=array)
        # The hierarchy numbers the parts of a large call under its key; a small call has its own.
        taken = cuda == (place == "cuda")
        assert hierarchy.keys == ([(main_prefix(place), key)] if taken else [])
        hierarchy.keys.clear()
        with entered(of_callback):
            key, _ = _next(MainScope("0", reducers=2), place)
        reduction._submit(array, "sum", key=key, out=array)
        assert not hierarchy.keys
