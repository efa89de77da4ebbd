"""The engine's msgpack codec compared with Python's."""

from __future__ import annotations

import contextlib
from typing import Any

import engine_parts
import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reducer.wire.codes import MAX_CONTROL_DEPTH, MAX_CONTROL_ITEMS

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=300)
    | st.binary(max_size=300)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=40), inner, max_size=20)
    ),
    max_leaves=30,
)


def depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0) if value else 1
    if isinstance(value, list):
        return 1 + max(map(depth, value), default=0) if value else 1
    return 1


@given(VALUES)
def test_both_codecs_write_and_read_the_same(value: Any) -> None:
    packed = msgpack.packb(value)
    assert engine_parts.msgpack_encode(value) == packed
    if depth(value) < MAX_CONTROL_DEPTH:
        assert engine_parts.msgpack_decode(packed) == value


@given(st.binary(max_size=200))
def test_what_it_accepts_python_reads_alike(data: bytes) -> None:
    try:
        value = engine_parts.msgpack_decode(data)
    except ValueError:
        return
    assert repr(msgpack.unpackb(data)) == repr(value)


@given(VALUES, st.data())
def test_damaged_input_is_a_value_error_or_a_value(value: Any, data: st.DataObject) -> None:
    packed = bytearray(msgpack.packb(value))
    at = data.draw(st.integers(0, len(packed) - 1))
    packed[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(packed)))
    with contextlib.suppress(ValueError):
        engine_parts.msgpack_decode(bytes(packed[:cut]))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x01\x01",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xd4\x00\x00",
        b"\xa2\xff\xff",
        b"\x81\x01\x01",
        b"\x91" * MAX_CONTROL_DEPTH + b"\x00",
        msgpack.packb([0] * (MAX_CONTROL_ITEMS + 1)),
    ],
)
def test_bombs_and_other_types_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="msgpack"):
        engine_parts.msgpack_decode(data)
