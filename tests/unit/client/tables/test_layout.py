"""Where tensors and shards of a table lie."""

from __future__ import annotations

import itertools
from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reducer.wire.codes import MAX_SHARD, SHARD_ALIGNMENT
from reducer_client.errors import ProtocolError
from reducer_client.tables.layout import (
    LARGEST_SHARD,
    LEAST_SHARD,
    Tensor,
    find_tensors,
    make_layout,
    shard_size,
    unpack_tensors,
)

TENSORS = (Tensor("w", (3, 4)), Tensor("empty", (0, 7)), Tensor("b", ()), Tensor("v", (5,)))


@given(st.integers(1, 1 << 31), st.integers(1, 512))
def test_shards_use_all_partitions_evenly(count: int, partitions: int) -> None:
    shard = shard_size(count, partitions)
    assert shard % SHARD_ALIGNMENT == 0
    assert LEAST_SHARD <= shard <= LARGEST_SHARD <= MAX_SHARD
    shards = ceil(count / shard)
    if count >= LEAST_SHARD * partitions * SHARD_ALIGNMENT:
        assert shards >= partitions
        assert ceil(shards / partitions) - shards // partitions <= 1
        last = count - (shards - 1) * shard
        assert last > 0


@given(st.integers(1, 1 << 22), st.integers(1, 64))
def test_each_element_has_one_place(count: int, partitions: int) -> None:
    layout = make_layout("net", [Tensor("all", (count,))], partitions)
    places = [layout.place(shard) for shard in range(layout.shards)]
    assert places[0].start == 0 and places[-1].stop == count
    assert all(one.stop == two.start for one, two in itertools.pairwise(places))
    by_partition = layout.by_partition
    assert sorted(shard for shards in by_partition for shard in shards) == list(range(len(places)))
    for partition, shards in enumerate(by_partition):
        assert all(layout.partition(shard) == partition for shard in shards)
    assert 0 in by_partition[layout.owner]


def test_partitions_follow_the_name_as_the_protocol_says() -> None:
    layout = make_layout("net", [Tensor("all", (LARGEST_SHARD * 6,))], 3)
    fnv = 0xCBF29CE484222325
    for byte in b"net":
        fnv = (fnv ^ byte) * 0x100000001B3 % (1 << 64)
    assert [layout.partition(s) for s in range(4)] == [(fnv + s) % 3 for s in range(4)]


def test_tensors_lie_behind_each_other() -> None:
    layout = make_layout("net", TENSORS, 2)
    rng = np.random.default_rng(1)
    arrays = [rng.random(tensor.shape, np.float32) for tensor in TENSORS]
    arrays[0] = np.asfortranarray(arrays[0])
    flat = layout.empty_vector()
    layout.copy_in(arrays, flat)
    assert np.array_equal(flat, np.concatenate([a.ravel(order="C") for a in arrays]))
    out = [np.zeros_like(array) for array in arrays]
    layout.copy_out(flat, out)
    for tensor, array, copy in zip(TENSORS, arrays, out, strict=True):
        assert np.array_equal(array, copy)
        assert np.array_equal(layout.views(flat)[tensor.name], array)


def test_views_of_one_vector_are_that_vector() -> None:
    layout = make_layout("net", TENSORS, 2)
    flat = np.arange(layout.count, dtype=np.float32)
    whole = layout.as_vector(list(layout.views(flat).values()))
    assert whole is not None and np.shares_memory(whole, flat) and np.array_equal(whole, flat)
    apart = [np.zeros(tensor.shape, np.float32) for tensor in TENSORS]
    assert layout.as_vector(apart) is None
    strided = list(layout.views(flat).values())
    strided[0] = strided[0].reshape(4, 3).T
    assert layout.as_vector(strided) is None


def test_packed_tensors_can_be_read_back() -> None:
    layout = make_layout("net", TENSORS, 2)
    assert unpack_tensors(layout.packed_tensors) == TENSORS
    many = [Tensor(f"layers.{i}.weight", (1, 2, 3)) for i in range(3_000)]  # over 48 KiB, plain
    assert unpack_tensors(make_layout("big", many, 2).packed_tensors) == tuple(many)


@pytest.mark.parametrize("packed", [b"", b"\x00", b"x" * 100])
def test_packed_tensors_of_others_are_refused(packed: bytes) -> None:
    with pytest.raises(ProtocolError, match="list of tensors"):
        unpack_tensors(packed)


def test_a_table_without_elements_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 1 to"):
        make_layout("net", [Tensor("empty", (0,))], 2)


@pytest.mark.parametrize(
    ("tensors", "error", "text"),
    [
        ([("w", np.zeros(2, np.float32)), ("w", np.zeros(2, np.float32))], ValueError, "'w'"),
        ({"w": np.zeros(2)}, TypeError, "tensor 'w': expected float32, got float64"),
        ({"w": [1.0, 2.0]}, TypeError, "tensor 'w': .*list"),
        ({3: np.zeros(2, np.float32)}, TypeError, "name must be a string"),
        (5, TypeError, "expected {name: array}"),
        (["w"], TypeError, "expected {name: array}"),
    ],
)
def test_bad_tensors_are_named(tensors: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        find_tensors("net", tensors)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"w": np.zeros((3, 4), np.float32)}, ValueError, "missing: 'v'"),
        (
            {"w": np.zeros((3, 4), np.float32), "x": np.zeros(5, np.float32)},
            ValueError,
            "missing: 'v'; unknown: 'x'",
        ),
        (
            {"w": np.zeros((4, 3), np.float32), "v": np.zeros(5, np.float32)},
            ValueError,
            r"'w': expected shape \(3, 4\), got \(4, 3\)",
        ),
        (
            {"w": np.zeros((3, 4), np.float32), "v": np.zeros(5, np.float16)},
            TypeError,
            "'v': expected float32, got float16",
        ),
        (
            {"w": np.zeros((3, 4), np.float32), "v": np.zeros(5, np.uint16)},
            TypeError,
            "'v': expected float32, got uint16",
        ),
    ],
)
def test_bad_gradients_are_named(
    given: dict[str, object], error: type[Exception], text: str
) -> None:
    layout = make_layout("net", [Tensor("w", (3, 4)), Tensor("v", (5,))], 2)
    with pytest.raises(error, match=text):
        layout.check("a gradient", given)
