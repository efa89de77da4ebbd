"""Control maps: round trips, limits, and msgpack bombs."""

from __future__ import annotations

import contextlib
import dataclasses
import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reducer.wire import messages as m
from reducer.wire.codes import (
    MAX_CONTROL_BYTES,
    MAX_CONTROL_DEPTH,
    MAX_CONTROL_ITEMS,
    MAX_CONTROL_NAMES,
    MAX_CONTROL_VALUES,
)
from reducer.wire.errors import BadFrameError
from reducer.wire.msgpack_shape import check_shape
from tests.support.counts import draws

HELLO = m.Hello("job", 1, 4, bytes(16), 0, 2, "run", ((0, 64), (100, 128)))


MOVED = m.Welcome(
    "r", 0, 2, 1, 0, bytes(16), 2, 0, 3, ((0, 64),), 100, 200, 250, 0, 1, (0, 3), (1, 0), (1, 2)
)


def packed(**changes: Any) -> bytes:
    values = msgpack.unpackb(m.encode(HELLO)) | changes
    data: bytes = msgpack.packb({k: v for k, v in values.items() if v is not None})
    return data


def test_round_trip() -> None:
    for message in (
        HELLO,
        m.Pending(4, 1, bytes(16), (1, 2), 70),
        m.Welcome("r", 0, 1, 1, 0, bytes(16), 2, 0, 0, ((0, 64),), 100, 200, 250),
        MOVED,
        m.Error(6, "text", 3, "left", "key", 9),
        m.Goaway("SIGTERM"),
        m.Key("layer1.weight"),
        m.Stall(({"key": "a", "round": 1, "age_ms": 10, "absent": [1], "absent_count": 1},)),
        m.Refused(5, "text"),
        m.Abandon(5, "text"),
        m.Route(3, (0, 3), (1, 0), (1, 2)),
        m.Suspect(1, 0, 3, "reset"),
        m.Absent(((1, "closed"),), (0, 2)),
        m.Stats(1, 2, 3, 4, 5, 6, 7, 8, 9, ((0, 1),), ({"key": "k"},)),
        m.RegistryCall("cas", "job", "view", 3, b"\x00", bytes(16), "h", 5, bytes(16), 9),
        m.RegistryRecord(
            7, "no", False, True, bytes(16), bytes(16), 9, True, 3, b"v", (("h", b"w"),), ("g",)
        ),
    ):
        assert m.decode(type(message), m.encode(message)) == message


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (m.RegistryCall, {}),
        (m.RegistryCall, {"call": "put"}),
        (m.RegistryCall, {"call": b"get"}),
        (m.RegistryCall, {"call": "get", "name": "x" * 257}),
        (m.RegistryCall, {"call": "get", "name": b"view"}),
        (m.RegistryCall, {"call": "cas", "version": -1}),
        (m.RegistryCall, {"call": "cas", "version": 1.0}),
        (m.RegistryCall, {"call": "cas", "value": "text"}),
        (m.RegistryCall, {"call": "cas", "value": bytes((48 << 10) + 1)}),
        (m.RegistryCall, {"call": "cas", "token": bytes(17)}),
        (m.RegistryCall, {"call": "lease", "holder": "x" * 129}),
        (m.RegistryCall, {"call": "lease", "milliseconds": 3_600_001}),
        (m.RegistryCall, {"call": "get", "boot": bytes(17)}),
        (m.RegistryRecord, {"leases": {"h": b"v"}}),
        (m.RegistryRecord, {"leases": [["h", b"v", 1]]}),
        (m.RegistryRecord, {"leases": [["h", "v"]]}),
        (m.RegistryRecord, {"leases": [["h", bytes(4_097)]]}),
        (m.RegistryRecord, {"gone": [b"h"]}),
        (m.RegistryRecord, {"done": 1}),
        (m.RegistryRecord, {"code": 256}),
    ],
)
def test_bad_values_of_the_registry(kind: Any, values: dict[str, Any]) -> None:
    with pytest.raises(BadFrameError):
        m.decode(kind, msgpack.packb(values))


def test_unknown_names_are_ignored_and_defaults_fill_in() -> None:
    hello = m.decode(m.Hello, packed(new_in_minor_1=[1, 2], run_id=None))
    assert hello.run_id == ""
    assert hello.job == "job"


@pytest.mark.parametrize(
    "changes",
    [
        {"job": ""},
        {"job": "x" * 129},
        {"job": b"bytes"},
        {"job": None},
        {"rank": -1},
        {"rank": 8_192},
        {"rank": True},
        {"rank": 1.0},
        {"world_size": 0},
        {"world_size": 8_193},
        {"incarnation": bytes(15)},
        {"incarnation": "x" * 16},
        {"reducers": 0},
        {"chunk_table": [[1, 64]]},
        {"chunk_table": [[0, 64], [0, 128]]},
        {"chunk_table": [[0, 63]]},
        {"chunk_table": [[0, (4 << 20) + 64]]},
        {"chunk_table": [[0, 64]] * 17},
        {"chunk_table": [[0]]},
        {"chunk_table": 5},
    ],
)
def test_a_hello_out_of_its_limits_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(BadFrameError):
        m.decode(m.Hello, packed(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"since": [0]},
        {"since": [0, 4]},
        {"since": [0, -1]},
        {"live": [0, 0]},
        {"live": [1, 2]},
        {"live": [True, False]},
        {"lanes_by_slot": [1, 0]},
        {"lanes_by_slot": [1, 1_025]},
        {"route": 1 << 32},
        {"since": [0] * 4_097, "live": [1] * 4_097, "lanes_by_slot": [1] * 4_097},
    ],
)
def test_a_route_whose_lists_do_not_fit_is_refused(changes: dict[str, Any]) -> None:
    values = {"route": 3, "since": [0, 3], "live": [1, 0], "lanes_by_slot": [1, 2]}
    with pytest.raises(BadFrameError):
        m.decode(m.Route, msgpack.packb(values | changes))
    welcome = msgpack.unpackb(m.encode(MOVED))
    with pytest.raises(BadFrameError):
        m.decode(m.Welcome, msgpack.packb(welcome | changes))


def test_the_largest_route_and_absence_fit_in_a_frame() -> None:
    slots = 4_096
    route = m.Route((1 << 32) - 1, ((1 << 32) - 1,) * slots, (1,) * slots, (1_024,) * slots)
    absent = m.Absent(((8_191, "x" * 256),) * 64, tuple(range(4_096)))
    for message in (route, absent):
        assert len(m.encode(message)) <= MAX_CONTROL_BYTES
        assert m.decode(type(message), m.encode(message)) == message


BOMBS = {
    "nested arrays": b"\x81\xa1a" + b"\x91" * 60_000 + b"\x90",
    "nested maps": b"\x81\xa1a" * 20_000 + b"\xc0",
    "array32 of 2^32-1": b"\x81\xa1a\xdd\xff\xff\xff\xff",
    "map32 of 2^32-1": b"\xdf\xff\xff\xff\xff",
    "str32 of 2^32-1": b"\x81\xa1a\xdb\xff\xff\xff\xff",
    "bin32 of 2^32-1": b"\x81\xa1a\xc6\xff\xff\xff\xff",
    "over the item limit": b"\x81\xa1a\xdc\x10\x01" + b"\x00" * 4_097,
    "extension type": b"\x81\xa1a\xc7\x01\x05a",
    "never used type": b"\xc1",
    "two values": b"\x80\x80",
    "cut short": b"\x82\xa1a\x01",
    "cut short in a number of a list": b"\x81\xa1a\x92\x01\xce\x00",
    "no map": b"\x90",
    "key is no text": b"\x81\x01\x01",
    "key is a list": b"\x81\x90\x01",
    "bad utf-8": b"\x81\xa1\xff\x01",
    "empty": b"",
    "too long": b"\x81\xa1a\xc6\x00\x01\x00\x00" + bytes(65_536),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_and_takes_no_memory(name: str) -> None:
    bomb = BOMBS[name]
    tracemalloc.start()
    try:
        with pytest.raises(BadFrameError):
            m.decode(m.Hello, bomb)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize("number", [0, -1, 1 << 40, True, None, 0.5])
def test_each_number_of_a_list_counts_as_a_value(number: object) -> None:
    data = msgpack.packb({"a": [number] * 10})
    assert check_shape(data, 2, 10, 13) == [1, 3, len(data)]
    with pytest.raises(BadFrameError, match="holds over 12 values"):
        check_shape(data, 2, 10, 12)
    with pytest.raises(BadFrameError, match="cut short"):
        check_shape(data[:-1], 2, 10, 13)


def test_a_name_comes_once_and_names_are_few() -> None:
    """Regression: a ROUTE with one list 4,000 times blocked a lane for 18 ms."""
    route = msgpack.packb({"since": [0], "live": [1], "lanes_by_slot": [1]})[1:]
    twice = b"\x85" + 2 * msgpack.packb({"route": 3})[1:] + route
    with pytest.raises(BadFrameError, match="Route names 'route' twice"):
        m.decode(m.Route, twice)
    fields = {"route": 3, "since": [0], "live": [1], "lanes_by_slot": [1]}
    most = fields | {f"x{number}": 0 for number in range(MAX_CONTROL_NAMES - len(fields))}
    assert m.decode(m.Route, msgpack.packb(most)).route == 3
    with pytest.raises(BadFrameError, match="a control map has 65 names, the limit is 64"):
        m.decode(m.Route, msgpack.packb(most | {"one more": 0}))


@pytest.mark.parametrize("where", ["unknown", "below an unknown name", "below a known name"])
def test_names_that_mean_nothing_leave_no_memory(where: str) -> None:
    """Python 3.12 never frees the interned names that msgpack makes for a map."""
    fields = {f.name: getattr(HELLO, f.name) for f in dataclasses.fields(HELLO)}
    tracemalloc.start()
    try:
        for number in range(100):
            names = {f"{number} {where}".zfill(50_000): 1}
            more = {"unknown": names, "below an unknown name": {"x": [names]}}
            data = msgpack.packb(fields | more.get(where, {"job": names}))
            with contextlib.suppress(BadFrameError):
                m.decode(m.Hello, data)
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_a_hello_or_refused(data: bytes) -> None:
    with contextlib.suppress(BadFrameError):
        m.decode(m.Hello, data)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)  # fmt: skip


def depth(value: Any) -> int:
    """How many lists and maps with items are around the innermost item."""
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        return 0
    return max((1 + depth(item) for item in value), default=0)


@given(VALUES, st.integers(0, MAX_CONTROL_DEPTH + 2))
def test_what_msgpack_writes_is_accepted_up_to_the_depth_and_refused_beyond(
    value: Any, around: int
) -> None:
    for _ in range(around):
        value = [value]
    data = msgpack.packb(value)
    if depth(value) <= MAX_CONTROL_DEPTH:
        check_shape(data, MAX_CONTROL_DEPTH, MAX_CONTROL_ITEMS, MAX_CONTROL_VALUES)
    else:
        with pytest.raises(BadFrameError, match="deeper"):
            check_shape(data, MAX_CONTROL_DEPTH, MAX_CONTROL_ITEMS, MAX_CONTROL_VALUES)


@pytest.mark.parametrize("beyond", [0, 1])
@pytest.mark.parametrize("innermost", [0, [], {}, [[]], {"a": {}}])
def test_an_empty_list_or_map_adds_no_depth(innermost: Any, beyond: int) -> None:
    value = innermost
    while depth(value) < MAX_CONTROL_DEPTH + beyond:
        value = [value]
    with pytest.raises(BadFrameError, match="deeper") if beyond else contextlib.nullcontext():
        check_shape(msgpack.packb(value), MAX_CONTROL_DEPTH, MAX_CONTROL_ITEMS, MAX_CONTROL_VALUES)


@settings(max_examples=draws(25, 100))  # drawing costs 0.2 s each
@given(st.dictionaries(st.text(max_size=20), VALUES, max_size=5))
def test_any_map_is_a_hello_or_refused(values: dict[str, Any]) -> None:
    data = msgpack.packb(msgpack.unpackb(m.encode(HELLO)) | values)
    if len(data) <= MAX_CONTROL_BYTES:
        with contextlib.suppress(BadFrameError):
            m.decode(m.Hello, data)
