"""An array that fills up while it is summed, and whose sum is used part by part."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from reducer_client import Group, ReducerError
from reducer_client.parts import Parts
from tests.support.arrays import Array
from tests.support.groups import Groups, Values
from tests.support.reducers import Reducers

COUNT = 700_001
PART = 50_000
ENDS = (1, 70_000, 70_001, 333_333, COUNT)


@pytest.fixture(scope="module")
def reducers() -> Iterator[Reducers]:
    with Reducers(2, lanes=2) as running:
        yield running


class Filling:
    """An all-reduce of every rank, whose arrays have no value yet."""

    def __init__(self, ranks: Groups, values: list[Array], op: Any = "sum", **options: Any) -> None:
        self.values = values
        self.arrays = [np.full_like(value, np.nan) for value in values]
        self.arrived: list[list[int]] = [[] for _ in values]
        self.works = [
            group.all_reduce(
                array, op, key="parts", out=array, parts=Parts(0, PART, marks.append),
                on_done=lambda work: None, **options,
            )
            for group, array, marks in zip(ranks.ranks, self.arrays, self.arrived, strict=True)
        ]  # fmt: skip
        self._at = 0

    def fill(self, end: int) -> None:
        for value, array, work in zip(self.values, self.arrays, self.works, strict=True):
            array[self._at : end] = value[self._at : end]
            work.fill(end)
        self._at = end


def _values(world: int, count: int = COUNT) -> list[Array]:
    return [np.random.default_rng(r).standard_normal(count, np.float32) for r in range(world)]


@pytest.mark.parametrize("wire_dtype", [None, "bfloat16", "int8"])
def test_the_bits_are_those_of_the_plain_call(
    reducers: Reducers, job: str, wire_dtype: Any
) -> None:
    with Groups(2, reducers.addresses, job) as ranks:
        values = _values(2)
        works = [
            group.all_reduce(value, "mean", key="plain", wire_dtype=wire_dtype)
            for group, value in zip(ranks.ranks, values, strict=True)
        ]
        plain = works[0].wait()
        filling = Filling(ranks, values, "mean", wire_dtype=wire_dtype)
        for end in ENDS:
            filling.fill(end)
        for work, array in zip(filling.works, filling.arrays, strict=True):
            assert work.wait(30.0) is array
            assert array.tobytes() == plain.tobytes()
    for marks in filling.arrived:
        assert marks, "no part was announced"
        assert marks == sorted(marks) and marks[-1] < COUNT
        assert all(end - start >= PART for start, end in pairwise(sorted({0, *marks})))


def test_what_has_no_value_is_not_sent_and_delays_no_other_call(
    reducers: Reducers, job: str
) -> None:
    with Groups(2, reducers.addresses, job) as ranks:
        filling = Filling(ranks, _values(2))
        values = Values(7, 2, 1000)
        for turn in range(5):
            ranks.turn(values, turn)
        filling.fill(COUNT // 2)
        ranks.turn(values, 5)
        assert not any(work.done for work in filling.works)
        for group in ranks.ranks:
            assert group.stats()["bytes_sent"] < 4 * COUNT * 3 // 4
        filling.fill(COUNT)
        _assert_sums(filling)


@pytest.mark.parametrize("count", [1, 10, 5000])
def test_an_array_of_one_chunk_fills_up_too(reducers: Reducers, job: str, count: int) -> None:
    with Groups(2, reducers.addresses, job) as ranks:
        for _ in range(3):
            filling = Filling(ranks, _values(2, count))
            filling.fill(count // 2)
            filling.fill(count)
            _assert_sums(filling)


def test_a_reducer_that_is_killed_in_between_costs_no_bit(job: str) -> None:
    with Reducers(2) as reducers, Groups(2, reducers.addresses, job) as ranks:
        filling = Filling(ranks, _values(2))
        filling.fill(COUNT // 3)
        reducers.kill(1)
        filling.fill(COUNT // 2)
        filling.fill(COUNT)
        _assert_sums(filling)


def test_an_array_that_does_not_fill_up_ends_the_group(reducers: Reducers, job: str) -> None:
    with Groups(2, reducers.addresses, job) as ranks:
        filling = Filling(ranks, _values(2), timeout=1.0)
        filling.fill(COUNT // 2)
        for work in filling.works:
            with pytest.raises(ReducerError, match="'parts'"):
                work.wait(30.0)
            work.fill(COUNT)  # too late, and without effect


def test_parts_of_what_cannot_have_them_are_refused(solo: Group) -> None:
    array = np.zeros(100, np.float32)
    parts = Parts(0)
    with pytest.raises(ValueError, match="a source that fills up must be the target"):
        solo.all_reduce(array, parts=parts)
    residual = np.zeros(100, np.float32)
    with pytest.raises(ValueError, match="without a residual"):
        solo.all_reduce(array, out=array, wire_dtype="int8", residual=residual, parts=parts)


def _assert_sums(filling: Filling) -> None:
    expected = filling.values[0] + filling.values[1]
    for work in filling.works:
        assert work.wait(30.0).tobytes() == expected.tobytes()
