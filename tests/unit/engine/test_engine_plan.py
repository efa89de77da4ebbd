"""The engine's plan of a round, compared with PROTOCOL.md, section 6, written in Python."""

from __future__ import annotations

import engine_parts
from hypothesis import given
from hypothesis import strategies as st

from reducer.wire.codes import BLOCKS, ITEM_SIZES, TO_BFLOAT16, Collective, DType

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


def dealt(weights: list[int], number: int) -> tuple[int, int]:
    """(who has the number, how many earlier numbers the same party has), number by number."""
    total = sum(weights)
    had = [0] * len(weights)
    for at in range(number % total + 1):
        begun = [p for p, weight in enumerate(weights) if had[p] * total // weight <= at]
        party = min(begun, key=lambda p: (-(-(had[p] + 1) * total // weights[p]), p))
        had[party] += 1
    return party, number // total * weights[party] + had[party] - 1


def block_size(dtype: int) -> int:
    """Bytes of 256 elements: of a contribution or of the result, whichever has more."""
    if dtype in TO_BFLOAT16:
        return 2 * 256
    return 4 + (128 if dtype == DType.E3M0_BLOCKS else 256)


def size_of(dtype: int, count: int) -> int:
    """The same of `count` elements."""
    if dtype in ITEM_SIZES:
        return count * ITEM_SIZES[dtype]
    if dtype in TO_BFLOAT16:
        in_bytes = 4 * -(-count // 256) + (count if dtype != DType.E3M0_BLOCKS_TO_BFLOAT16 else 0)
        return max(2 * count, in_bytes)
    blocks, rest = divmod(count, 256)
    codes = -(-rest // 2) if dtype == DType.E3M0_BLOCKS else rest
    return blocks * block_size(dtype) + (4 + codes if rest else 0)


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
    weights: list[int],
) -> list[Row]:
    parts = world if collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER) else 1
    chunk_bytes = [chunk for least, chunk in table if least <= parts * size_of(dtype, count)][-1]
    if dtype in BLOCKS:
        step = 256 * max(1, chunk_bytes // block_size(dtype))
    else:
        step = chunk_bytes // ITEM_SIZES[dtype]
    starts = list(range(0, count, step)) or [0]
    rows: list[Row] = []
    for start in starts:
        for part in range(parts):
            number = fnv1a(key.encode()) % 2**32 + len(rows)
            slot, turn = dealt(weights, number)
            if slot not in live:
                heir, turn = dealt([weights[other] for other in live], turn)
                slot = live[heir]
            lane = turn % lanes[slot]
            sends, gets = roles(collective, part, rank, root)
            rows.append((slot, lane, part, start, min(step, count - start), sends, gets))
    return rows


@given(
    collective=st.sampled_from([int(c) for c in Collective]),
    dtype=st.sampled_from([int(d) for d in DType]),
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
    weights = data.draw(st.lists(st.integers(1, 4), min_size=len(lanes), max_size=len(lanes)))
    case = (collective, dtype, count, world, rank, table, key, lanes, root)
    assert engine_parts.plan(*case, flags, weights) == oracle(*case, live, weights)
    if len(set(weights)) == 1:
        assert engine_parts.plan(*case, flags, weights) == engine_parts.plan(*case, flags)


@given(st.text(max_size=50))
def test_key_id(name: str) -> None:
    assert engine_parts.key_id(name) == fnv1a(name.encode())
