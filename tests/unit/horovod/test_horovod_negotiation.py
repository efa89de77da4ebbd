"""Negotiation without I/O: any orders on the ranks give one plan, which runs all requests once."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reducer_client.horovod.announcements import RequestCache
from reducer_client.horovod.negotiation import Negotiation, ResponseList
from reducer_client.horovod.requests import Kind, ReduceOp, Request

THRESHOLD = 1000


def reduce(name: str, count: int = 10, **changes: Any) -> Request:
    return Request(name, Kind.ALLREDUCE, "float32", 4, (count,), **changes)


class Peers:
    """Ranks with separate tables that exchange only bytes."""

    def __init__(self, world: int, threshold: int = THRESHOLD, capacity: int = 1024) -> None:
        self.caches = [RequestCache(capacity) for _ in range(world)]
        self.tables = [Negotiation(range(world), threshold) for _ in range(world)]
        self.sent = 0

    def round(self, *announced: list[Request]) -> ResponseList:
        """Negotiate one round; returns the plan, which is equal on all ranks."""
        said = [cache.encode(one) for cache, one in zip(self.caches, announced, strict=True)]
        self.sent = sum(map(len, said))
        pairs = zip(self.caches, self.tables, strict=True)
        plans = [table.step(cache.decode_all(said)) for cache, table in pairs]
        assert all(plan == plans[0] for plan in plans)
        return plans[0]


def names(plan: ResponseList) -> list[list[str]]:
    return [[tensor.name for tensor in response.tensors] for response in plan.responses]


def error_of(*requests: Request) -> str:
    (response,) = Peers(len(requests)).round(*([request] for request in requests)).responses
    return response.error


@st.composite
def programs(draw: st.DrawFn) -> tuple[int, list[Request], list[list[list[Request]]]]:
    """(world, requests, for each rank the requests in its order, cut into rounds)."""
    world = draw(st.integers(1, 4))
    count = draw(st.integers(1, 12))
    dtypes = st.sampled_from([("float32", 4), ("float64", 8), ("int32", 4)])
    requests = []
    for number in range(count):
        kind = draw(st.sampled_from([Kind.ALLREDUCE, Kind.ALLGATHER, Kind.BROADCAST]))
        dtype, size = draw(dtypes)
        shape = (draw(st.integers(0, 120)),)
        requests.append(Request(f"t{number}", kind, dtype, size, shape))
    rounds = draw(st.integers(1, 6))
    schedule = []
    for _ in range(world):
        order = draw(st.permutations(requests))
        cuts = sorted(draw(st.lists(st.integers(0, count), min_size=rounds, max_size=rounds)))
        bounds = [0, *cuts, count]
        schedule.append([list(order[a:b]) for a, b in pairwise(bounds)])
    return world, requests, schedule


@settings(max_examples=100, deadline=None)
@given(programs(), st.integers(1, 2000), st.integers(1, 30))
def test_everything_runs_once_in_one_order_within_the_threshold(
    program: tuple[int, list[Request], list[list[list[Request]]]], threshold: int, capacity: int
) -> None:
    world, requests, schedule = program
    peers = Peers(world, threshold, capacity)
    done: Counter[str] = Counter()
    announced: list[set[str]] = [set() for _ in range(world)]
    for step in range(len(schedule[0])):
        for rank in range(world):
            announced[rank] |= {request.name for request in schedule[rank][step]}
        plan = peers.round(*(schedule[rank][step] for rank in range(world)))
        for response in plan.responses:
            assert not response.error
            done.update(tensor.name for tensor in response.tensors)
            members = [tensor.request for tensor in response.tensors]
            assert len({request.kind for request in members}) == 1
            if len(members) > 1:
                copies = world if members[0].kind is Kind.ALLGATHER else 1
                assert sum(request.nbytes for request in members) * copies <= threshold
                if members[0].kind is Kind.ALLREDUCE:
                    assert len({request.dtype for request in members}) == 1
        assert set(done) == set.intersection(*announced)  # when all ranks have announced it
    assert done == Counter(request.name for request in requests)


def test_a_known_request_costs_bytes_and_a_known_order_less() -> None:
    requests = [reduce(f"module.layer{number}.weight") for number in range(150)]
    peers = Peers(2)
    peers.round(requests, requests)
    assert peers.sent > 2 * 150 * 30
    for _ in range(3):
        assert len(peers.round(requests, requests).responses[0].tensors) > 1
        assert peers.sent <= 2 * 6
    peers.round(requests[::-1], requests[::-1])
    assert peers.sent < 2 * 150 * 5


def test_requests_that_are_used_stay_known_among_many_that_come_once() -> None:
    peers, known = Peers(1, capacity=8), [reduce(f"layer{number}.weight") for number in range(4)]
    for step in range(10):
        peers.round([*known, *(reduce(f"once.{step}.{number}") for number in range(3))])
        assert b"layer" not in peers.caches[0].encode(known)


def test_a_cache_that_overflows_is_the_same_on_all_ranks() -> None:
    requests = [reduce(f"t{number}") for number in range(10)]
    peers = Peers(2, capacity=4)
    for shift in range(8):
        order = requests[shift:] + requests[:shift]
        plan = peers.round(order, order[::-1])
        assert sum(map(len, names(plan))) == 10


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (reduce("x", 11), r"shape differs between ranks: \(10,\) on rank 0, \(11,\) on rank 1"),
        (reduce("x", op=ReduceOp.MAX), "op differs .* sum on rank 0, max on rank 1"),
        (reduce("x", prescale=0.5), "prescale differs .* 1.0 on rank 0, 0.5 on rank 1"),
        (reduce("x", wire="int8"), "wire differs .* none on rank 0, int8 on rank 1"),
        (
            Request("x", Kind.ALLREDUCE, "int32", 4, (10,)),
            "dtype differs .* float32 on rank 0, int32 on rank 1",
        ),
        (
            Request("x", Kind.BROADCAST, "float32", 4, (10,)),
            "kind differs .* allreduce on rank 0, broadcast on rank 1",
        ),
    ],
)
def test_a_mismatch_names_ranks_and_what_they_have(other: Request, text: str) -> None:
    found = error_of(reduce("x"), other)
    assert found.startswith("'x': ")
    assert re.search(text, found), found


def test_rows_may_differ_and_nothing_else() -> None:
    def gather(*shape: int) -> Request:
        return Request("g", Kind.ALLGATHER, "float32", 4, shape)

    assert not error_of(gather(3, 5), gather(0, 5))
    assert "row shape differs" in error_of(gather(3, 5), gather(3, 6))
    assert "row shape differs" in error_of(gather(5), gather(5, 1))
    roots = [Request("b", Kind.BROADCAST, "float32", 4, (2,), root=root) for root in (0, 1)]
    assert "root differs" in error_of(*roots)


def test_an_error_leaves_the_rest_alone() -> None:
    plan = Peers(2).round([reduce("x"), reduce("y")], [reduce("y"), reduce("x", 3)])
    assert [bool(response.error) for response in plan.responses] == [True, False]
    assert names(plan) == [["x"], ["y"]]


def test_who_has_joined_is_not_waited_for() -> None:
    join, peers = Request("join", Kind.JOIN), Peers(3)
    assert names(peers.round([reduce("a")], [], [reduce("a")])) == []
    plan = peers.round([reduce("b")], [join], [reduce("b")])
    assert names(plan) == [["a", "b"]]
    assert all(not response.error for response in plan.responses)
    assert set(plan.responses[0].tensors[0].by_rank) == {0, 2}
    (failed,) = peers.round(
        [reduce("m", op=ReduceOp.MAX)], [], [reduce("m", op=ReduceOp.MAX)]
    ).responses
    assert "rank 1 has joined, but allreduce with max needs every rank" in failed.error
    assert peers.round([join], [], []).last_joined is None
    assert peers.round([], [], [join]).last_joined == 2
    assert names(peers.round([reduce("c")], [], [reduce("c")])) == []  # all take part again


def test_missing_ranks_are_named() -> None:
    table = Negotiation((1, 4, 7), THRESHOLD)
    table.step([[], [reduce("a")], []])
    assert table.missing("a") == [1, 7]
    assert table.missing("b") == [1, 4, 7]
