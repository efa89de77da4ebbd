"""A Python job and a job of the NCCL plugin give the same bits for the same inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from reducer_client import Group
from reducer_tools.nccl.structs import OPS, TYPES
from tests.support.arrays import DTYPES, Array, expected, sample
from tests.support.nccl_job import run
from tests.support.nccl_tables import CollNet
from tests.support.ranks import Tell, join
from tests.support.reducers import Reducers

NUMPY = {dtype.name: dtype for dtype in DTYPES}
# Exponent and mantissa bits.
LAYOUTS = {"float16": (5, 10), "float32": (8, 23), "float64": (11, 52), "bfloat16": (8, 7)}
ORDINARY = 70_001  # more than one chunk of each type of two bytes or more


def _specials(dtype: np.dtype[Any]) -> Array:
    """Both signs of zero, the smallest and largest denormal and normal numbers, Inf, and quiet and
    signalling NaNs with extreme payloads; extremes for integers; all values of one-byte types."""
    unsigned = np.dtype(f"uint{8 * dtype.itemsize}")
    if dtype.itemsize == 1:
        return np.arange(256, dtype=np.uint8).view(dtype)
    if dtype.kind in "iu":
        ends = np.iinfo(dtype)
        return np.array([ends.min, ends.min + 1, 0, 1, ends.max - 1, ends.max], dtype)
    exponent_bits, mantissa_bits = LAYOUTS[dtype.name]
    infinity = ((1 << exponent_bits) - 1) << mantissa_bits
    least_normal, quiet = 1 << mantissa_bits, 1 << (mantissa_bits - 1)
    one = infinity // 2 >> mantissa_bits << mantissa_bits
    magnitudes = [
        0, 1, least_normal - 1, least_normal, one, infinity - 1, infinity,
        infinity + 1, infinity + quiet - 1, infinity + quiet, infinity + 2 * quiet - 1,
    ]  # fmt: skip
    sign = 1 << (8 * dtype.itemsize - 1)
    bits = [magnitude | s for magnitude in magnitudes for s in (0, sign)]
    return np.array(bits, unsigned).view(dtype)


def _inputs(type_: str, rank: int) -> Array:
    """Every pair of special values meets in ranks 0 and 1, with other ones in rank 2; then follow
    random bits and ordinary values."""
    dtype = NUMPY[type_]
    special = _specials(dtype)
    turns = (np.repeat(special, special.size), np.tile(special, special.size))
    pairs = turns[rank] if rank < 2 else np.roll(turns[0], 7 * rank)
    rng = np.random.default_rng((TYPES.index(type_), rank))
    anything = np.frombuffer(rng.bytes(4_096 * dtype.itemsize), dtype)
    return np.concatenate([pairs, anything, sample(dtype, ORDINARY, (type_, rank))])


def _by_plugin(coll: CollNet, comm: Any, given: Array, type_: str, op: str) -> bytes:
    receive = np.empty_like(given)
    request = coll.all_reduce(comm, given, receive, type_, op)
    assert request is not None
    coll.wait(request)
    return receive.tobytes()


def _both_ways(
    coll: CollNet, comm: Any, rank: int, world: int, tell: Tell, addresses: list[str]
) -> int:
    compared = 0
    with join(rank, world, addresses, "python") as group:
        for type_ in TYPES:
            parts = [_inputs(type_, r) for r in range(world)]
            for op in OPS:
                by_plugin = _by_plugin(coll, comm, parts[rank], type_, op)
                assert by_plugin == _by_python(group, parts[rank], op), (type_, op)
                assert by_plugin == expected(op, parts).tobytes(), (type_, op)
                compared += 1
    return compared


def _by_python(group: Group, given: Array, op: str) -> bytes:
    return bytes(group.all_reduce(given, op=op, key="k").wait(60).tobytes())


@pytest.mark.parametrize("world", [2, 3])
def test_the_plugin_and_python_give_the_same_bits(world: int) -> None:
    """Also the bits of NumPy in rank order, for all types, operations and special values."""
    with Reducers(2) as reducers:
        compared = run(world, reducers.addresses, _both_ways, reducers.addresses)
    assert compared == [len(TYPES) * len(OPS)] * world
