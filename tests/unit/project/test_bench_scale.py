"""bench.scale: the simulation has the properties that it is meant to show."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.scale.cluster import Case, Cluster
from bench.scale.network import wire_bytes

MEBIBYTE = 1 << 20
SMALL = Case(4, 4, real_lanes=4, round_bytes=2 * MEBIBYTE, table=((0, 32 << 10),))


@pytest.mark.parametrize("late", [0.0, 0.1])
def test_32_connections_stay_within_the_budget_of_a_lane_and_a_tenth(late: float) -> None:
    """One lane for 32 workers whose round is 16 times its memory, with and without late workers."""
    memory = 16 * MEBIBYTE
    case = Case(
        32, 1, round_bytes=8 * MEBIBYTE, table=((0, 128 << 10),), memory=memory, jitter=late
    )
    outcome = Cluster(case).run()
    assert outcome.sessions == 32
    assert outcome.reserved <= outcome.budget == memory
    assert 0 < outcome.peak <= 1.1 * memory
    if late:
        assert outcome.peak > 0.4 * outcome.reserved, "never full, so the test proves nothing"


@pytest.mark.parametrize("credit", [4 * MEBIBYTE, 32 << 10])
def test_the_model_of_the_client_sends_what_the_engine_sends(credit: int) -> None:
    """With much credit, and with so little that grants and separate reports are needed."""
    case = replace(SMALL, credit=credit)
    model, engine = (Cluster(replace(case, engine=engine)).run() for engine in (False, True))
    assert model.frames_in == engine.frames_in
    assert model.frames_out == engine.frames_out
    assert model.peak == engine.peak
    assert model.timing.seconds == pytest.approx(engine.timing.seconds, rel=1e-3)


def test_one_lane_stands_for_all() -> None:
    """With more reducers than needed, so that the workers' NICs set the time."""
    case = replace(SMALL, reducers=8)
    every, one = (Cluster(replace(case, real_lanes=lanes)).run() for lanes in (8, 1))
    assert one.timing.seconds == pytest.approx(every.timing.seconds, rel=0.05)


def test_headers_bound_the_time_from_below() -> None:
    case = replace(SMALL, real_lanes=1, round_bytes=16 * MEBIBYTE)
    least = wire_bytes(case.round_bytes) / case.rate
    assert least < Cluster(case).run().timing.seconds < 1.1 * least


def test_a_lane_without_room_says_so() -> None:
    outcome = Cluster(replace(SMALL, workers=64, memory=4 * MEBIBYTE)).run()
    assert "raise --memory" in outcome.refused
