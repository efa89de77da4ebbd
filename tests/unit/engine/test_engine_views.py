"""Views of an elastic run in the engine: fence, one of contribution or result, who makes routes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from reducer.wire import messages
from reducer.wire.codes import Collective, DType, ErrorCode, Flag, MessageKind, ReduceOp
from reducer.wire.header import Header
from reducer.wire.losses import pack_losses
from tests.support.checksum import crc32c
from tests.support.frames import control
from tests.support.one_worker import (
    CHUNK,
    FLOATS,
    ROOMY,
    Worker,
    decoded,
    joined,
    result,
    said,
    submit,
)

WORLD = 3


def worker(rank: int = 0, **options: Any) -> Worker:
    return joined(credit=ROOMY, world_size=WORLD, rank=rank, elastic=True, **options)


def view(*lost: tuple[int, int], number: int = 1, slots: int = 1) -> bytes:
    """The first route of the view without these (epoch, rank)."""
    all_ = (number,) * slots
    return control(messages.Route(number, all_, (1,) * slots, (1,) * slots, pack_losses(lost)))


def contributions(one: Worker, lane: int = 0) -> list[Any]:
    return said(one.sent(lane), MessageKind.CONTRIBUTION)


def absent(one: Worker, *ranks: int, reducer: int = 0) -> None:
    gone = tuple((rank, "it left no trace") for rank in ranks)
    one.get(control(messages.Absent(gone)), reducer)


def test_a_lost_rank_ends_a_fixed_run_and_is_told_of_in_an_elastic_one() -> None:
    fixed = joined(world_size=WORLD)
    absent(fixed, 2)
    assert fixed.state.error is not None and fixed.state.error[0] == ErrorCode.PEER_LOST
    elastic = worker()
    absent(elastic, 2)
    assert elastic.state.error is None
    ((rank, reason, text),) = elastic.state.lost
    assert (rank, reason) == (2, "lost") and "it left no trace" in text
    absent(elastic)
    assert elastic.state.lost == [], "the rank has come back"


def test_after_a_view_each_chunk_goes_as_contribution_or_as_result() -> None:
    one = worker(rank=1)
    operation, target = submit(one, 2)
    first, second = (frame.header for frame in contributions(one))
    theirs = np.full(FLOATS, 7, np.float32).tobytes()
    flags = Flag.NONFINITE
    one.get(result(first, theirs, payload_crc=crc32c(theirs), flags=flags, rank=2))
    target[:FLOATS] = -5  # the caller's memory is not what is kept
    one.get(view((1, 0)))
    again = contributions(one)
    assert [frame.header.epoch for frame in again] == [1, 1]
    held, own = again
    assert held.header.flags == Flag.HELD | flags and bytes(held.payload) == theirs
    assert held.header.stable == 0 | 2 << 32, "the result's epoch and rank"
    assert (own.header.flags, own.header.payload_crc) == (0, second.payload_crc)
    assert not operation.done


def test_the_ledger_has_the_epoch_of_each_part() -> None:
    one = worker(rank=1)
    operation, _ = submit(one, 2)
    first, _ = (frame.header for frame in contributions(one))
    one.get(result(first, bytes(CHUNK), payload_crc=crc32c(bytes(CHUNK))))
    one.get(view((1, 0)))
    _, own = (frame.header for frame in contributions(one))
    one.get(result(own, bytes(CHUNK), payload_crc=crc32c(bytes(CHUNK)), done=1))
    assert operation.done and operation.sets == [(FLOATS, 0), (FLOATS, 1)]


def test_a_result_of_an_older_epoch_is_dropped() -> None:
    one = worker(rank=1)
    operation, _ = submit(one, 1)
    (sent,) = (frame.header for frame in contributions(one))
    one.get(view((1, 0)))
    one.get(result(sent, bytes(CHUNK), payload_crc=crc32c(bytes(CHUNK))))
    assert not operation.done and one.state.counters()["frames_dropped"] == 1
    assert one.state.error is None


@pytest.mark.parametrize(("epoch", "done"), [(1, 0), (0, 1)])
def test_a_result_of_a_later_epoch_breaks_the_connection(epoch: int, done: int) -> None:
    one = worker(rank=1)
    submit(one, 1)
    (sent,) = (frame.header for frame in contributions(one))
    crc = crc32c(bytes(CHUNK))
    one.get(result(sent, bytes(CHUNK), payload_crc=crc, epoch=epoch, done=done))
    assert one.state.to_drop() == [(0, 0)]


def test_a_rank_that_is_not_in_the_view_ends_and_tells_nobody() -> None:
    one = worker(rank=1)
    operation, _ = submit(one, 1)
    one.sent()
    one.get(view((1, 1)))
    assert one.state.error is not None
    code, text, rank, reason = one.state.error[:4]
    assert (code, rank, reason) == (ErrorCode.PEER_LOST, 1, "excluded") and "go on without" in text
    assert operation.error is not None
    assert said(one.sent(), MessageKind.ERROR) == []


@pytest.mark.parametrize("other", [((2, 2),), ((1, 0), (1, 2)), ()])
def test_a_view_that_does_not_follow_breaks_the_connection(other: tuple[Any, ...]) -> None:
    one = worker(rank=1)
    one.get(view((1, 0)))
    one.get(view(*other, number=9))
    broken = one.state.to_drop() == [(0, 0)]
    assert broken == bool(other), "an older view is no news"
    assert one.state.view == [(1, 0)]


def test_the_lowest_rank_that_is_in_makes_the_routes() -> None:
    one = worker(rank=1, reducers=2)
    one.get(view((1, 0), slots=2))
    one.sent(0), one.sent(1)
    suspect = messages.Suspect(2, 0, 1, "nothing came from it")
    one.get(control(suspect), reducer=1)
    (route,) = decoded(one.sent(1), messages.Route)
    assert (route.route, route.live, route.lost) == (2, (0, 1), pack_losses([(1, 0)]))


def test_a_slot_that_has_lost_the_streams_of_another_rank_begins_again() -> None:
    one = worker()
    suspect = messages.Suspect(2, 0, 0, "it was restarted", restarted=True)
    one.get(control(suspect))
    (route,) = decoded(one.sent(), messages.Route)
    assert (route.route, route.since, route.live) == (1, (1,), (1,))
    one.get(control(suspect))
    assert decoded(one.sent(), messages.Route) == [], "the suspicion is about the old streams"


def test_other_collectives_do_not_go_on() -> None:
    one = worker(rank=1)
    target = np.zeros(4, np.float32)
    operation = one.state.submit(
        Collective.BROADCAST, ReduceOp.COPY, DType.FLOAT32, False, "b", 0, 4, None, target
    )
    one.get(view((1, 2)))
    assert operation.done and operation.error is not None
    assert operation.error[0] == ErrorCode.PEER_LOST and operation.error[2] == 2
    assert said(one.sent(), MessageKind.ABANDON) != []
    with pytest.raises(Exception, match="only all_reduce and barrier go on"):
        one.state.submit(
            Collective.BROADCAST, ReduceOp.COPY, DType.FLOAT32, False, "b", 0, 4, None, target
        )


def test_a_hello_after_a_loss_has_the_view_and_the_rules_of_the_lowest_rank() -> None:
    one = worker(rank=1)
    one.get(view((1, 0)))
    one.sent()
    one.disconnect()
    assert one.connect() == [(0, 0)]
    (hello,) = decoded(one.sent(), messages.Hello)
    assert hello.rejoin and hello.elastic and hello.lost == pack_losses([(1, 0)])
    assert hello.chunk_table == ((0, CHUNK),) and hello.worker_silence_ms == 5_000


def test_a_promise_keeps_out_views_that_the_registry_has_forgotten() -> None:
    one = worker(rank=1)
    one.state.promise(100)
    one.get(view((1, 0)))
    assert one.state.view == [] and one.state.error is None
    one.get(view((100, 0)))
    assert one.state.view == [(100, 0)]


def test_a_view_names_each_lost_rank_once() -> None:
    one = worker()
    one.get(view((1, 2)))
    payload = one.state.view_without([2, 1], 2)
    assert messages.decode(messages.Route, payload).lost == pack_losses([(1, 2), (2, 1)])


def test_a_lane_that_forms_the_run_again_tells_who_has_not_come_back() -> None:
    one = worker(rank=1)
    submit(one, 1)
    one.sent()
    one.disconnect()
    one.connect()
    one.pending(2)
    one.pass_time(2.0, 0)
    assert one.state.lost == []
    one.pass_time(1.5, 0)
    assert [rank for rank, _, _ in one.state.lost] == [2]


def test_a_reducer_of_an_older_release_is_refused() -> None:
    one = Worker(world_size=WORLD, elastic=True)
    one.welcome(minor=2)
    assert one.state.error is not None
    assert "install the same release on all reducers" in one.state.error[1]


def test_the_header_of_a_contribution_has_the_epoch() -> None:
    one = worker(rank=1)
    one.get(view((7, 0)))
    submit(one, 1)
    header: Header = contributions(one)[0].header
    assert (header.epoch, header.route, header.flags) == (7, 1, 0)
