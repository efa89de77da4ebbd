"""The order in which `Overlap` sends buckets, and what it learns from a forward pass."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch  # only where it is installed
from torch import nn

from reducer_client.torch.overlap.forward_order import ForwardOrder
from reducer_client.torch.overlap.outgoing import Outgoing, find_order
from reducer_client.torch.tensors.partition import partition


class Attention(nn.Module):
    """Uses the weight of `out` without a call."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(2, 2, bias=False)
        self.scale = nn.Parameter(torch.ones(2))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 2, bias=False)
        self.attention = Attention()
        self.words = nn.Linear(2, 2, bias=False)
        self.loose = nn.ParameterList([torch.ones(2)])


def test_a_parameter_is_needed_by_the_module_that_uses_it() -> None:
    model = Model()
    names = [name for name, _ in model.named_parameters()]
    order = ForwardOrder(model, list(model.parameters()))
    for module in (model, model.words, model.attention, model.head, model.words):
        order.call(module)
    learned = [names[place] for place in order.learn()]
    assert learned == [
        *("loose.0", "words.weight"),
        *("attention.scale", "attention.out.weight", "head.weight"),
    ]
    assert [names[place] for place in order.needs[model]] == ["loose.0"]
    assert [names[place] for place in order.needs[model.attention]] == learned[2:4]


def test_without_a_called_module_the_order_is_that_of_the_model() -> None:
    model = Model()
    order = ForwardOrder(model, list(model.parameters()))
    assert order.learn() == list(range(5))


def test_buckets_have_one_dtype_and_a_limited_size() -> None:
    sizes = [(4, torch.float32), (1, torch.float32), (9, torch.float64), (3, torch.float32)]
    tensors = [torch.zeros(size, dtype=dtype) for size, dtype in sizes]
    parts = partition(tensors, 20, lambda tensor: tensor.dtype)
    assert [[tensor.numel() for tensor in part] for part in parts] == [[3], [9], [1, 4]]


class Parcel:
    """What `Outgoing` knows of a bucket. The network keeps it until it `ends`."""

    def __init__(self, index: int, sent: list[int]) -> None:
        self.index = index
        self.nbytes = 10
        self._sent = sent
        self.ends: Callable[[], None] = lambda: None

    def send(self, state: Any, on_end: Callable[[Any], None]) -> None:
        self._sent.append(self.index)
        self.ends = lambda: on_end(self)


class Told:
    """A broadcast of rank 0."""

    def __init__(self, group: Group, out: Any) -> None:
        self._group = group
        self._out = out

    def wait(self, timeout: Any) -> Any:
        return self._out if self._group.told is None else np.array(self._group.told)


class Group:
    """The part of a group that `Outgoing` uses."""

    def __init__(self) -> None:
        self._end_on_interrupt = nullcontext()
        self.orders: list[list[int]] = []
        self.told: list[int] | None = None  # what rank 0 says, if this rank is another one

    def broadcast(self, array: Any, key: str, out: Any) -> Told:
        self.orders.append(np.asarray(out).tolist())
        return Told(self, out)


class State:
    prefix = "test"


@pytest.fixture
def group() -> Group:
    return Group()


def _make(group: Any, count: int, prioritizes: bool) -> tuple[Outgoing, list[Any], list[int]]:
    sent: list[int] = []
    state: Any = State()
    outgoing = Outgoing(group, state, prioritizes, lambda bucket: None, pytest.fail)
    parcels: list[Any] = [Parcel(index, sent) for index in range(count)]
    outgoing.plan(parcels)
    return outgoing, parcels, sent


def test_the_network_takes_the_last_full_bucket() -> None:
    """Bucket i is full after i seconds; a bucket that is needed sooner goes before older ones."""
    times = [float(index) for index in range(6)]
    assert find_order(times, [0.5] * 6) == [0, 1, 2, 3, 4, 5]
    assert find_order(times, [2.0] * 6) == [0, 2, 4, 5, 3, 1]
    assert find_order(times, [9.0] * 6) == [0, 5, 4, 3, 2, 1]
    assert find_order([], []) == []


def test_all_ranks_send_in_the_order_of_rank_0(group: Group) -> None:
    outgoing, parcels, sent = _make(group, 4, True)
    for parcel in parcels:
        outgoing.add(parcel)
    assert sent == [0, 1, 2, 3]
    assert group.orders == [[0, 1, 2, 3]]  # nothing has ended, so nothing is known of the network
    group.told = [0, 3, 2, 1]
    for parcel in parcels:
        parcel.ends()
    for index, expected in enumerate(([], [0], [0], [0], [0, 3, 2, 1])[1:]):
        outgoing.add(parcels[index])
        assert sent[4:] == expected
    for parcel in parcels:
        parcel.ends()


def test_without_priorities_buckets_go_as_they_are_filled(group: Group) -> None:
    outgoing, parcels, sent = _make(group, 4, False)
    for step in range(2):
        for index in (0, 2, 1, 3):
            outgoing.add(parcels[index])
        assert sent == [0, 1, 2, 3] * (step + 1)
        for parcel in parcels:
            parcel.ends()
    assert not group.orders
