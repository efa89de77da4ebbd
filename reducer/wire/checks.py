"""Checks of the fields of control messages; each raises BadFrameError and nothing else.

A check takes the name and the value of a field, and returns the value that the message gets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any, Final

from reducer.wire.codes import (
    MAX_CHUNK_BYTES,
    MAX_CHUNK_TABLE_ROWS,
    MAX_HOLDER_BYTES,
    MAX_LANES,
    MAX_LEASE_BYTES,
    MAX_REDUCERS,
    MAX_WEIGHTED,
    MAX_WEIGHTS,
    MAX_WORLD_SIZE,
)
from reducer.wire.errors import BadFrameError
from reducer.wire.losses import parse_losses

INCARNATION_BYTES: Final = 16
TOKEN_BYTES: Final = 16
MAX_TEXT_BYTES: Final = 16_384
MAX_ABSENT: Final = 64
MAX_ABSENT_REASON_BYTES: Final = 256  # 64 of them stay far below a control frame
INT64: Final = 1 << 63

ChunkTable = tuple[tuple[int, int], ...]
Check = Callable[[str, Any], Any]


def integer(low: int, high: int) -> Check:
    def check(name: str, value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise BadFrameError(f"{name} must be an integer of {low} to {high}, got {value!r:.40}")
        return value

    return check


def text(limit: int, empty: bool = True) -> Check:
    def check(name: str, value: Any) -> str:
        if type(value) is not str or len(value.encode()) > limit or not (value or empty):
            raise BadFrameError(
                f"{name} must be a text of {0 if empty else 1} to {limit} bytes, got {value!r:.40}"
            )
        return value

    return check


def incarnation(name: str, value: Any) -> bytes:
    if type(value) is not bytes or len(value) != INCARNATION_BYTES:
        raise BadFrameError(f"{name} must be {INCARNATION_BYTES} bytes, got {value!r:.40}")
    return value


def chunk_table(name: str, value: Any) -> ChunkTable:
    """Rows of (smallest size of a round, size of a chunk) in bytes, ascending from size 0."""
    if type(value) not in (list, tuple) or len(value) > MAX_CHUNK_TABLE_ROWS:
        raise BadFrameError(f"{name} must be a list of at most {MAX_CHUNK_TABLE_ROWS} rows")
    rows: list[tuple[int, int]] = []
    for row in value:
        if type(row) not in (list, tuple) or [type(item) for item in row] != [int, int]:
            raise BadFrameError(f"a row of {name} must be two integers, got {row!r:.40}")
        least, chunk = row
        floor = rows[-1][0] + 1 if rows else 0
        if least < floor or least >= INT64 or (not rows and least != 0):
            raise BadFrameError(f"the rows of {name} must ascend from 0, got {least}")
        if not 64 <= chunk <= MAX_CHUNK_BYTES or chunk % 64:
            raise BadFrameError(
                f"chunks of {name} must be multiples of 64 up to {MAX_CHUNK_BYTES}, got {chunk}"
            )
        rows.append((least, chunk))
    return tuple(rows)


def ranks(limit: int) -> Check:
    def check(name: str, value: Any) -> tuple[int, ...]:
        if type(value) not in (list, tuple) or len(value) > limit:
            raise BadFrameError(f"{name} must be a list of at most {limit} ranks")
        rank = integer(0, MAX_WORLD_SIZE - 1)
        return tuple(rank(name, item) for item in value)

    return check


def integers(low: int, high: int) -> Check:
    """One integer for each slot."""
    item = integer(low, high)

    def check(name: str, value: Any) -> tuple[int, ...]:
        if type(value) not in (list, tuple) or len(value) > MAX_REDUCERS:
            raise BadFrameError(f"{name} must be a list of at most {MAX_REDUCERS} slots")
        # A route has thousands of items: check them at once, and one by one only for the error.
        are_integers = value and list(map(type, value)).count(int) == len(value)
        if are_integers and min(value) >= low and max(value) <= high:
            return tuple(value)
        return tuple(item(name, each) for each in value)

    return check


_WEIGHT: Final = integers(1, MAX_WEIGHTS)


def weights(name: str, value: Any) -> tuple[int, ...]:
    weights: tuple[int, ...] = _WEIGHT(name, value)
    if len(weights) > MAX_WEIGHTED or sum(weights) > MAX_WEIGHTS:
        raise BadFrameError(
            f"{name} must be at most {MAX_WEIGHTED} numbers with a sum of at most {MAX_WEIGHTS}, "
            f"got {len(weights)} with a sum of {sum(weights)}"
        )
    return weights


def lost(name: str, value: Any) -> bytes:
    if type(value) is not bytes:
        raise BadFrameError(f"{name} must be bytes, got {value!r:.40}")
    parse_losses(value)
    return value


def boolean(name: str, value: Any) -> bool:
    if type(value) is not bool:
        raise BadFrameError(f"{name} must be true or false, got {value!r:.40}")
    return value


def absent(name: str, value: Any) -> tuple[tuple[int, str], ...]:
    if type(value) not in (list, tuple) or len(value) > MAX_ABSENT:
        raise BadFrameError(f"{name} must be a list of at most {MAX_ABSENT} ranks and reasons")
    rank, reason = integer(0, MAX_WORLD_SIZE - 1), text(MAX_ABSENT_REASON_BYTES)
    pairs = []
    for item in value:
        if type(item) not in (list, tuple) or len(item) != 2:
            raise BadFrameError(f"an item of {name} must be a rank and a reason, got {item!r:.40}")
        pairs.append((rank(name, item[0]), reason(name, item[1])))
    return tuple(pairs)


def maps(limit: int) -> Check:
    def check(name: str, value: Any) -> tuple[dict[str, Any], ...]:
        if type(value) not in (list, tuple) or len(value) > limit:
            raise BadFrameError(f"{name} must be a list of at most {limit} maps")
        if any(type(item) is not dict for item in value):
            raise BadFrameError(f"{name} must be a list of maps")
        return tuple(value)

    return check


def late(name: str, value: Any) -> tuple[tuple[int, int], ...]:
    if type(value) not in (list, tuple):
        raise BadFrameError(f"{name} must be a list of pairs")
    for item in value:
        if type(item) not in (list, tuple) or [type(part) for part in item] != [int, int]:
            raise BadFrameError(f"an item of {name} must be two integers, got {item!r:.40}")
    return tuple((item[0], item[1]) for item in value)


def octets(limit: int, least: int = 0) -> Check:
    def check(name: str, value: Any) -> bytes:
        if type(value) is not bytes or not least <= len(value) <= limit:
            raise BadFrameError(f"{name} must be {least} to {limit} bytes, got {value!r:.40}")
        return value

    return check


_CALLS: Final = ("open", "get", "cas", "lease")


def registry_call(name: str, value: Any) -> str:
    if type(value) is not str or value not in _CALLS:
        raise BadFrameError(f"{name} must be one of {', '.join(_CALLS)}, got {value!r:.40}")
    return value


HOLDER: Final = text(MAX_HOLDER_BYTES)
_LEASE_VALUE: Final = octets(MAX_LEASE_BYTES)


def leases(name: str, value: Any) -> tuple[tuple[str, bytes], ...]:
    if type(value) not in (list, tuple):
        raise BadFrameError(f"{name} must be a list of holders and values")
    pairs = []
    for item in value:
        if type(item) not in (list, tuple) or len(item) != 2:
            raise BadFrameError(f"an item of {name} must be a holder and a value, got {item!r:.40}")
        pairs.append((HOLDER(name, item[0]), _LEASE_VALUE(name, item[1])))
    return tuple(pairs)


def holders(name: str, value: Any) -> tuple[str, ...]:
    if type(value) not in (list, tuple):
        raise BadFrameError(f"{name} must be a list of holders")
    return tuple(HOLDER(name, item) for item in value)


COUNT: Final = integer(0, INT64 - 1)
RANK: Final = integer(0, MAX_WORLD_SIZE - 1)
MILLISECONDS: Final = integer(0, 3_600_000)
RANK_OR_NONE: Final = integer(-1, MAX_WORLD_SIZE - 1)
ROUTE: Final = integer(0, (1 << 32) - 1)
SINCE: Final = integers(0, (1 << 32) - 1)
LIVE: Final = integers(0, 1)
LANES_BY_SLOT: Final = integers(1, MAX_LANES)


def wire(check: Check, **kwargs: Any) -> Any:
    return field(metadata={"check": check}, **kwargs)
