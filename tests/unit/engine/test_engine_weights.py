"""A worker whose reducers have unequal shares of the chunks."""

from __future__ import annotations

import numpy as np
import pytest

from reducer.wire import messages
from reducer.wire.codes import ErrorCode
from tests.support.one_worker import CHUNK, FLOATS, ROOMY, Worker, decoded, route


def weighted(weights: tuple[int, ...], rank: int) -> Worker:
    """A joined worker; rank 0 gives the weights, and the other ranks learn them."""
    given = weights if rank == 0 else ()
    worker = Worker(rank=rank, reducers=len(weights), weights=given)
    (hello,) = decoded(worker.sent(), messages.Hello)
    assert hello.weights == given
    worker.welcome(credit=16 * ROOMY, weights=weights)
    worker.connect()
    for reducer in range(1, len(weights)):
        worker.sent(reducer)
        worker.welcome(reducer, credit=16 * ROOMY, weights=weights)
    assert worker.state.joined
    return worker


def shares(worker: Worker, chunks: int) -> list[set[int]]:
    """The chunks that each reducer gets of a new round."""
    values = np.ones(chunks * FLOATS, np.float32)
    worker.submit("key", values, np.empty_like(values))
    return [{h.chunk for h in worker.contributions(r)} for r in range(worker.reducers)]


@pytest.mark.parametrize("rank", [0, 1])
def test_each_reducer_gets_its_share(rank: int) -> None:
    assert [len(chunks) for chunks in shares(weighted((4, 2, 1), rank), 21)] == [12, 6, 3]


def test_what_is_in_flight_is_in_proportion_to_the_shares() -> None:
    """Otherwise the chunks of light reducers would fill the queues of the NICs first."""
    in_flight = [len(chunks) for chunks in shares(weighted((7, 2), 0), 900)]
    assert in_flight == [(256 << 10) // CHUNK, (256 << 10) * 2 // 7 // CHUNK] == [64, 18]


def test_the_heirs_of_a_dead_reducer_get_shares_of_its_share() -> None:
    worker = weighted((4, 2, 1), 1)
    before = shares(worker, 21)
    worker.get(route(1, (1, 0, 0), (0, 1, 1)), 1)
    after = [{h.chunk for h in worker.contributions(reducer)} for reducer in (1, 2)]
    assert [len(chunks) for chunks in after] == [8, 4]
    assert set.union(*after) == before[0]


def test_rank_0_refuses_a_reducer_that_knows_no_weights() -> None:
    worker = Worker(reducers=2, weights=(3, 1))
    worker.sent()
    worker.welcome(minor=1)
    assert worker.state.error is not None
    code, text, *_ = worker.state.error
    assert code == ErrorCode.JOIN
    assert "did not take the weights of the reducers: it speaks protocol 1.1" in text


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ((1, 2, 3), "the weights are not one for each reducer"),
        ((0, 1), "a weight of 0"),
        ((4_096, 1), "the sum of the weights is above 4096"),
    ],
)
def test_weights_that_no_job_can_have_are_refused(weights: tuple[int, ...], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Worker(reducers=2, weights=weights)
