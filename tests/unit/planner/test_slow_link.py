"""Training over slow links: the model of the waits, and which method is chosen.

The figures are computed by hand. A model of 1.1 billion parameters has 4.4 GB of gradients in
float32, which pass 200 Mbit/s with headers in 4.4e9 x 8 x 1.045 / 2e8 = 183.92 s.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reducer.server.serve_options import Config
from reducer_tools.planner import network_time
from reducer_tools.planner.link_conclusions import CREDIT, conclude_link
from reducer_tools.planner.link_plan import LinkPlan, choose, make_link_plan
from reducer_tools.planner.slow_link import Link, Method, Outcome, Training, evaluate
from reducer_tools.planner.wires import (
    BFLOAT16,
    E3M0,
    E3M0_TO_BFLOAT16,
    FLOAT32,
    INT8,
    INT8_TO_BFLOAT16,
    Wire,
)

WHOLE = 4_400_000_000
SECONDS = 183.92
SLOW = Link(0.2, 0.03)
TRAINING = Training(WHOLE, 1.2, 2 / 3)
COUNTS = st.integers(0, 20)
RATES = st.floats(0.01, 100).map(lambda rate: round(rate, 2))


def plan_for(compute: float = 1.2, gbps: float = 0.2, wanted: float = 0.95) -> LinkPlan:
    return make_link_plan(Training(WHOLE, compute, 2 / 3), Link(gbps, 0.03), wanted)


def settings(outcome: Outcome) -> tuple[str, Wire, int, int, int]:
    method = outcome.method
    return method.kind, method.wire, method.every, method.fragments, method.delay


@pytest.mark.parametrize(
    ("wire", "part"),
    [
        (FLOAT32, 1),
        (BFLOAT16, 1 / 2),
        (INT8_TO_BFLOAT16, 1 / 2),  # what is received takes longer than what is sent
        (INT8, 260 / 1024),
        (E3M0_TO_BFLOAT16, 1 / 2),
        (E3M0, 132 / 1024),
    ],
    ids=lambda each: getattr(each, "name", ""),
)
def test_an_array_passes_the_link_in_the_time_of_its_format(wire: Wire, part: float) -> None:
    assert SLOW.transfer_seconds(WHOLE, wire) == pytest.approx(SECONDS * part)


@pytest.mark.parametrize(
    ("wire", "part"), [(FLOAT32, 1), (INT8_TO_BFLOAT16, (260 / 1024 + 1 / 2) / 2)]
)
def test_results_leave_hosted_reducers_on_the_link_of_their_worker(wire: Wire, part: float) -> None:
    hosted = Link(0.2, 0.03, workers=4, reducers=0)
    assert hosted.transfer_seconds(WHOLE, wire) == pytest.approx(1.5 * SECONDS * part)


@pytest.mark.parametrize(
    ("reducers", "gbps", "wire", "part"),
    [
        (2, 0.2, FLOAT32, 3 / (2 / 4 + 2)),  # the formula of reducer.shares
        # The dedicated ones have 0.6 of the array: 4 workers receive 0.6 x 1/2 from 2 reducers.
        (2, 0.2, INT8_TO_BFLOAT16, 4 * 0.6 * (1 / 2) / 2),
        (4, 2, INT8_TO_BFLOAT16, 1 / 2),
        (2, 0.3, FLOAT32, 3 / (2 * 1.5 / 4 + 2)),
    ],
)
def test_dedicated_reducers_and_hosted_ones_share_the_sum(
    reducers: int, gbps: float, wire: Wire, part: float
) -> None:
    link = Link(0.2, 0.03, workers=4, reducers=reducers, reducer_gbps=gbps)
    assert link.transfer_seconds(WHOLE, wire) == pytest.approx(part * SECONDS)


@given(st.integers(2, 20), RATES, COUNTS, RATES)
def test_equal_sizes_take_the_time_of_an_all_reduce(
    workers: int, gbps: float, reducers: int, reducer_gbps: float
) -> None:
    hosts = (workers, gbps, reducers, reducer_gbps)
    both = network_time.exchange_seconds(1 << 30, 1 << 30, *hosts)
    assert both == pytest.approx(network_time.mixed_seconds(1 << 30, *hosts))
    more_down = network_time.exchange_seconds(1 << 29, 1 << 30, *hosts)
    assert network_time.exchange_seconds(1 << 30, 1 << 29, *hosts) == pytest.approx(more_down)


@pytest.mark.parametrize(
    ("method", "wait"),
    [
        (Method("data parallel", FLOAT32), 0.03 + 183.92 - 0.8),
        (Method("data parallel", BFLOAT16), 0.03 + 91.96 - 0.8),
        (Method("DiLoCo", FLOAT32, 500), 183.95 / 500),
        (Method("DiLoCo", E3M0, 500), (183.92 * 132 / 1024 + 0.03) / 500),
        # A fragment takes 183.92 / 16 + 0.03 = 11.525 s, and 4 steps take 4.8 s.
        (Method("Streaming DiLoCo", FLOAT32, 2000, 16, 4), 16 * 6.725 / 2000),
        # 91.96 / 16 + 0.03 = 5.7775 s, within the 6 s of 5 steps.
        (Method("Streaming DiLoCo", E3M0_TO_BFLOAT16, 100, 16, 5), 0),
    ],
)
def test_how_long_a_step_waits(method: Method, wait: float) -> None:
    found = evaluate(method, TRAINING, SLOW)
    assert found.wait_seconds == pytest.approx(wait)
    assert found.busy == pytest.approx(1.2 / (1.2 + wait))


def test_backward_hides_bytes_but_no_latency() -> None:
    found = evaluate(Method("data parallel", FLOAT32), TRAINING, Link(100, 0.03))
    assert found.transfer_seconds == pytest.approx(SECONDS / 500)
    assert found.wait_seconds == pytest.approx(0.03)


def test_bytes_and_the_use_of_the_link_are_means_over_steps() -> None:
    found = evaluate(Method("Streaming DiLoCo", E3M0_TO_BFLOAT16, 100, 16, 5), TRAINING, SLOW)
    assert found.sent_bytes == pytest.approx(WHOLE * 132 / 1024 / 100)
    assert found.received_bytes == pytest.approx(WHOLE / 2 / 100)
    assert found.link_busy == pytest.approx(91.96 / 120)


def test_the_methods_of_the_documented_link() -> None:
    """H = 19 x (exchange) / 1.2 keeps the machines 95 % busy: 2,913 for DiLoCo in float32."""
    found = plan_for()
    assert [settings(each) for each in found.outcomes] == [
        ("data parallel", FLOAT32, 1, 1, 0),
        ("data parallel", BFLOAT16, 1, 1, 0),
        ("data parallel", INT8_TO_BFLOAT16, 1, 1, 0),
        ("data parallel", INT8, 1, 1, 0),
        ("DiLoCo", FLOAT32, 500, 1, 0),
        ("DiLoCo", E3M0_TO_BFLOAT16, 2000, 1, 0),  # 1,457
        ("DiLoCo", E3M0, 500, 1, 0),  # 376
        ("Streaming DiLoCo", FLOAT32, 2000, 16, 4),
        ("Streaming DiLoCo", E3M0_TO_BFLOAT16, 100, 16, 5),
        ("Streaming DiLoCo", E3M0, 20, 4, 5),
    ]
    assert [found.is_enough(each) for each in found.outcomes] == [False] * 5 + [True] * 5
    assert found.chosen == found.outcomes[8]


@pytest.mark.parametrize(
    ("gbps", "chosen"),
    [
        # An all-reduce may take 0.8 s, and the RTT of 30 ms may be added to the step of 1.2 s.
        (46, ("data parallel", FLOAT32)),  # 0.7997 s
        (44, ("data parallel", BFLOAT16)),
        (13, ("data parallel", INT8)),  # 0.718 s
        # DiLoCo stops for 183.92 / 50 / gbps x 0.2 = 6.1 s in 120 s; 6.3 s are allowed.
        (6, ("DiLoCo", FLOAT32)),
        (3, ("DiLoCo", E3M0_TO_BFLOAT16)),
        (1, ("DiLoCo", E3M0)),  # 4.74 s
        (0.5, ("Streaming DiLoCo", FLOAT32)),  # a fragment takes 4.6 s
        (0.2, ("Streaming DiLoCo", E3M0_TO_BFLOAT16)),
        (0.1, ("Streaming DiLoCo", E3M0)),
    ],
)
def test_a_slower_link_needs_more(gbps: float, chosen: tuple[str, Wire]) -> None:
    found = plan_for(gbps=gbps)
    assert (found.chosen.method.kind, found.chosen.method.wire) == chosen
    assert found.is_enough(found.chosen)


@given(st.floats(0.01, 100), st.floats(0.05, 30), st.floats(0.5, 0.99))
def test_the_chosen_settings_obey_their_limits(gbps: float, compute: float, wanted: float) -> None:
    found = plan_for(compute, gbps, wanted)
    for each in found.outcomes:
        method = each.method
        assert method.fragments * method.delay <= method.every
        assert each.link_busy <= 1 + 1e-9
        assert 0 < each.busy <= 1
    enough = [each for each in found.outcomes if found.is_enough(each)]
    assert found.is_enough(found.chosen) == bool(enough)
    if not enough:
        assert found.chosen.busy == max(each.busy for each in found.outcomes)


def test_the_smallest_of_large_h_is_chosen_and_the_busiest_of_what_is_not_enough() -> None:
    def outcome(every: int, busy: float) -> Outcome:
        return Outcome(Method("DiLoCo", FLOAT32, every), 1, 1, busy, 1, 1, 1)

    usual, large, larger = outcome(100, 0.96), outcome(200, 0.97), outcome(500, 0.98)
    assert choose((larger, large, usual), 0.95) == usual
    assert choose((larger, large), 0.95) == large
    assert choose((usual, larger, large), 0.99) == larger


@pytest.mark.parametrize(
    ("compute", "gbps", "texts"),
    [
        (1.2, 0.2, ["the exchange of a fragment takes 5.78 s, and the 5 steps of the delay take"]),
        (1.2, 0.2, ["A worker sends 776 times fewer bytes than float32 gradients, and receives"]),
        (
            1.2,
            0.2,
            ["0.65 % busy with float32, and 2.55 % with int8", "With the fewest local steps"],
        ),
        (1.2, 0.2, ["H = 20, Streaming DiLoCo (e3m0) is enough", "15.02, and 15.30 with data"]),
        (
            1.2,
            6,
            ["DiLoCo (float32) with H = 100 keeps", "100 steps take 120 s, and an exchange 6"],
        ),
        (1.2, 13, ["a step of 1.20 s waits 30.0 ms for it", "int8 needs error feedback"]),
        (1.2, 13, ["keep 48.8 MB in flight. Let --credit x lanes x reducers"]),
        (1.2, 0.1, ["The results are sent in e3m0, too"]),
        (0.1, 0.2, ["Streaming DiLoCo was published with H = 30 and 100"]),
        (0.1, 0.1, ["No method keeps the machines 95 % busy over this link"]),
    ],
)
def test_the_verdict_says_why_and_warns(compute: float, gbps: float, texts: list[str]) -> None:
    verdict = " ".join(conclude_link(plan_for(compute, gbps)))
    for text in texts:
        assert text in verdict


def test_the_credit_that_the_verdict_names_is_the_default_of_a_reducer() -> None:
    assert Config().credit == CREDIT


def test_h_beyond_the_published_500_is_warned_of() -> None:
    found = plan_for()
    for every, warned in ((500, False), (1000, True)):
        chosen = evaluate(Method("DiLoCo", E3M0, every), TRAINING, SLOW)
        plan = LinkPlan(TRAINING, SLOW, 0.95, chosen, found.outcomes)
        assert ("beyond the proven 500" in " ".join(conclude_link(plan))) == warned
