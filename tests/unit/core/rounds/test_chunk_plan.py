"""Chunks of a round and their owners, compared with plain counting."""

from __future__ import annotations

import random

import pytest

from reducer.core.limits.charges import MIN_COST
from reducer.core.rounds.chunk_owners import Owners, Route
from reducer.core.rounds.chunk_plan import make_plan
from reducer.wire.codes import ITEM_SIZES, Collective, DType
from reducer.wire.keys import key_id


def test_every_chunk_has_one_owner_and_every_lane_knows_its_number() -> None:
    rng = random.Random(1)
    for _ in range(300):
        lanes_by_slot = tuple(rng.randrange(1, 4) for _ in range(rng.randrange(1, 5)))
        key, chunks = key_id(str(rng.random())), rng.randrange(1, 60)
        live = tuple(rng.randrange(2) for _ in lanes_by_slot)
        if not any(live):
            live = (1,) * len(lanes_by_slot)
        weights = tuple(rng.choice((1, 1, 3, 7)) for _ in lanes_by_slot)
        route = Route(1, (1,) * len(lanes_by_slot), live, lanes_by_slot)
        owners = Owners(route, weights)
        owner_of = [owners.owner(key, chunk) for chunk in range(chunks)]
        for slot, lanes in enumerate(lanes_by_slot):
            for lane in range(lanes):
                mine: list[int] = []
                for home in range(len(lanes_by_slot)):
                    place = owners.place(slot, lane, home)
                    if place is None:
                        continue
                    owned = [chunk for chunk in range(chunks) if place.owns(key, chunk)]
                    assert all(owners.home(key, chunk) == home for chunk in owned)
                    assert place.owned(key, chunks) == len(owned)
                    mine += owned
                assert sorted(mine) == [c for c, who in enumerate(owner_of) if who == (slot, lane)]


def test_owners_are_even_to_a_chunk() -> None:
    for chunks in (64, 65, 127):
        counts = [0] * 8
        owners = Owners(Route.first((1,) * 8))
        for chunk in range(chunks):
            counts[owners.owner(key_id("bucket"), chunk)[0]] += 1
        assert max(counts) - min(counts) <= 1


def test_the_chunks_of_a_dead_slot_are_dealt_by_weight_and_no_others_move() -> None:
    weights = (1, 1, 4, 1, 1, 2, 1, 1)
    before = Owners(Route.first((2,) * 8), weights)
    live = (1, 1, 0, 1, 1, 1, 1, 1)
    after = Owners(Route(1, (0, 0, 1, 0, 0, 0, 0, 0), live, (2,) * 8), weights)
    key = key_id("bucket")
    taken_over = [[0, 0] for _ in live]
    for chunk in range(8_000):
        old, new = before.owner(key, chunk), after.owner(key, chunk)
        if old[0] == 2:
            taken_over[new[0]][new[1]] += 1
        else:
            assert old == new
    shares = [
        n / weights[slot] for slot, lanes in enumerate(taken_over) for n in lanes if live[slot]
    ]
    assert max(shares) - min(shares) <= 1
    assert taken_over[2] == [0, 0]


def test_the_chunks_cover_every_element_once() -> None:
    rng = random.Random(2)
    for _ in range(300):
        collective = rng.choice(list(Collective)[:4])
        reduces = collective in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER)
        dtype = DType(rng.choice(list(DType if reduces else ITEM_SIZES)))
        world, count = rng.randrange(1, 6), rng.choice((0, 1, 100, 70_001))
        plan = make_plan(collective, dtype, count, world, ((0, 64), (5_000, 4_096)))
        elements = [0] * plan.vectors
        for chunk in range(plan.chunks):
            elements[plan.vector(chunk)] += plan.elements(chunk)
            sent = [plan.sends(chunk, rank, 0) for rank in range(world)]
            received = [plan.receives(chunk, rank, 0) for rank in range(world)]
            size = plan.result_bytes(chunk)
            if collective == Collective.ALL_GATHER:
                assert sum(sent) == size
                assert sum(received) == size * (world - 1)
            elif collective == Collective.REDUCE_SCATTER:
                assert sum(sent) == plan.sent.bytes(plan.elements(chunk)) * world
                assert sum(received) == size
            assert max(*sent, *received, MIN_COST) <= plan.cost(chunk)
        assert elements == [count] * plan.vectors


BLOCK_CHUNKS = [
    (DType.INT8_BLOCKS, 252 * 256, 65_520, 65_520),
    (DType.E3M0_BLOCKS, 496 * 256, 65_472, 65_472),
    (DType.INT8_BLOCKS_TO_BFLOAT16, 128 * 256, 33_280, 65_536),
    (DType.E3M0_BLOCKS_TO_BFLOAT16, 128 * 256, 16_896, 65_536),
]


@pytest.mark.parametrize(("dtype", "elements", "sent", "received"), BLOCK_CHUNKS)
def test_chunks_of_blocks_have_whole_blocks(
    dtype: DType, elements: int, sent: int, received: int
) -> None:
    """Contribution and result fit in a chunk of the table; the rest is a shorter block."""
    count = 3 * elements + 256 + 5
    plan = make_plan(Collective.ALL_REDUCE, dtype, count, 4, ((0, 65_536),))
    assert (plan.chunks, plan.chunk_elements) == (4, elements)
    assert (plan.sends(0, 1, 0), plan.receives(0, 1, 0)) == (sent, received)
    assert plan.cost(0) == received
    codes = 128 if dtype in (DType.E3M0_BLOCKS, DType.E3M0_BLOCKS_TO_BFLOAT16) else 256
    assert plan.sends(3, 1, 0) == 4 + codes + 4 + (3 if codes == 128 else 5)


def test_a_chunk_has_a_block_at_least() -> None:
    plan = make_plan(Collective.ALL_REDUCE, DType.INT8_BLOCKS, 600, 2, ((0, 64),))
    assert (plan.chunks, plan.chunk_elements, plan.cost(0)) == (3, 256, MIN_COST)


def test_a_row_of_the_chunk_table_begins_at_its_size() -> None:
    table = ((0, 64), (4_096, 1_024))
    for count, chunk in ((1_023, 16), (1_024, 256)):
        plan = make_plan(Collective.ALL_REDUCE, DType.FLOAT32, count, 2, table)
        assert plan.chunk_elements == chunk
