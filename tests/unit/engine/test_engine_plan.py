"""The engine's plan of a round, compared with PROTOCOL.md, section 6, written in Python."""

from __future__ import annotations

import engine_parts
from hypothesis import given
from hypothesis import strategies as st

from reducer.wire.codes import ITEM_SIZES, Collective

Row = tuple[int, int, int, int, int, bool, bool]


def fnv1a(name: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in name:
        value = ((value ^ byte) * 0x100000001B3) % 2**64
    return value


def roles(collective: int, part: int, rank: int, root: int) -> tuple[bool, bool]:
    """(whether the rank sends bytes of a chunk of `part`, whether it receives some)."""
    match collective:
        case Collective.BROADCAST:
            return rank == root, rank != root
        case Collective.ALL_GATHER:
            return part == rank, part != rank
        case Collective.REDUCE_SCATTER:
            return True, part == rank
        case Collective.BARRIER:
            return False, False
        case _:
            return True, True


def oracle(
    collective: int,
    dtype: int,
    count: int,
    world: int,
    rank: int,
    table: list[tuple[int, int]],
    key: str,
    lanes: list[int],
    root: int,
    live: list[int],
) -> list[Row]:
    parts = world if collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER) else 1
    size = ITEM_SIZES[dtype]
    chunk_bytes = [chunk for least, chunk in table if least <= parts * count * size][-1]
    step = chunk_bytes // size
    starts = list(range(0, count, step)) or [0]
    rows: list[Row] = []
    for start in starts:
        for part in range(parts):
            number = fnv1a(key.encode()) % 2**32 + len(rows)
            slot, q = number % len(lanes), number // len(lanes)
            if slot not in live:
                slot, q = live[q % len(live)], q // len(live)
            lane = q % lanes[slot]
            sends, gets = roles(collective, part, rank, root)
            rows.append((slot, lane, part, start, min(step, count - start), sends, gets))
    return rows


@given(
    collective=st.sampled_from([int(c) for c in Collective]),
    dtype=st.sampled_from([int(d) for d in ITEM_SIZES]),
    count=st.integers(0, 70_000),
    world=st.integers(1, 9),
    chunks=st.lists(st.integers(1, 200), min_size=1, max_size=4),
    lanes=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    key=st.text(min_size=1, max_size=20),
    data=st.data(),
)
def test_plan(
    collective: int,
    dtype: int,
    count: int,
    world: int,
    chunks: list[int],
    lanes: list[int],
    key: str,
    data: st.DataObject,
) -> None:
    rank = data.draw(st.integers(0, world - 1))
    root = data.draw(st.integers(0, world - 1))
    table = [(20_000 * row, 64 * chunk) for row, chunk in enumerate(chunks)]
    if collective == Collective.BARRIER:
        count = 0
    live = sorted(data.draw(st.sets(st.integers(0, len(lanes) - 1), min_size=1)))
    flags = [int(slot in live) for slot in range(len(lanes))]
    expected = oracle(collective, dtype, count, world, rank, table, key, lanes, root, live)
    got = engine_parts.plan(collective, dtype, count, world, rank, table, key, lanes, root, flags)
    assert got == expected


@given(st.text(max_size=50))
def test_key_id(name: str) -> None:
    assert engine_parts.key_id(name) == fnv1a(name.encode())
