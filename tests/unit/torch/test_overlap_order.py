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
from reducer_client.torch.overlap.outgoing import Outgoing
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

    def __init__(self, out: Any) -> None:
        self._out = out

    def wait(self, timeout: Any) -> Any:
        return self._out


class Group:
    """The part of a group that `Outgoing` uses."""

    def __init__(self) -> None:
        self._end_on_interrupt = nullcontext()
        self.heads: list[int] = []

    def broadcast(self, array: Any, key: str, out: Any) -> Told:
        self.heads.append(int(np.asarray(out)[0]))
        return Told(out)


class State:
    prefix = "test"


@pytest.fixture
def group() -> Group:
    return Group()


def _make(group: Any, count: int, credit: int | None) -> tuple[Outgoing, list[Any], list[int]]:
    sent: list[int] = []
    state: Any = State()
    outgoing = Outgoing(group, state, credit, lambda bucket: None, pytest.fail)
    parcels: list[Any] = [Parcel(index, sent) for index in range(count)]
    outgoing.plan(parcels)
    return outgoing, parcels, sent


def test_what_backward_has_no_time_for_goes_in_the_order_of_the_forward_pass(group: Group) -> None:
    outgoing, parcels, sent = _make(group, 8, 20)
    for expected, head in ([0, 1, 2, 3, 4, 5, 6, 7], 5), ([0, 1, 2, 3, 4, 7, 6, 5], 4):
        for parcel in parcels[:-1]:  # no exchange ends during backward()
            outgoing.add(parcel)
        assert sent == [0, 1]
        outgoing.add(parcels[-1])
        assert sent == expected
        assert group.heads.pop() == head
        for parcel in parcels:
            parcel.ends()
        sent.clear()


def test_a_head_that_leaves_the_network_idle_grows(group: Group) -> None:
    outgoing, parcels, sent = _make(group, 8, 20)
    for parcel in parcels:
        outgoing.add(parcel)
    for index in range(8):
        parcels[index].ends()
    for parcel in parcels:
        outgoing.add(parcel)
        for index in set(sent[8:]):
            parcels[index].ends()
            parcels[index].ends = lambda: None
    assert group.heads == [5, 7]


def test_without_priorities_buckets_go_as_they_are_filled(group: Group) -> None:
    outgoing, parcels, sent = _make(group, 4, None)
    for step in range(2):
        for index in (0, 2, 1, 3):
            outgoing.add(parcels[index])
        assert sent == [0, 1, 2, 3] * (step + 1)
        for parcel in parcels:
            parcel.ends()
    assert not group.heads
