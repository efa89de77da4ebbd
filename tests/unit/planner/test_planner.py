"""The model of times, and what `reducer plan` prints of it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from reducer_tools.planner import network_time, reducer_count
from reducer_tools.planner.conclusions import conclude
from reducer_tools.planner.plan import Cluster, find_winner, make_plan
from reducer_tools.planner.text import format_seconds
from tests.support.planner import plan, planned

WORKERS = st.integers(1, 2000)
RATES = st.floats(0.01, 1000).map(lambda rate: round(rate, 2))


@pytest.mark.parametrize(
    ("workers", "worker_gbps", "reducer_gbps", "needed"),
    [(5, 100, 32, 16), (8, 100, 32, 25), (4, 1, 1, 4), (1, 1, 100, 1), (1, 2.1, 0.3, 7)],
)
def test_reducers_needed_cover_the_egress_of_the_workers(
    workers: int, worker_gbps: float, reducer_gbps: float, needed: int
) -> None:
    assert reducer_count.reducers_needed(workers, worker_gbps, reducer_gbps) == needed


@pytest.mark.parametrize(("workers", "factor"), [(1, 0), (2, 1), (4, 1.5), (8, 1.75)])
def test_a_ring_moves_the_array_almost_twice(workers: int, factor: float) -> None:
    once = 64 << 20
    seconds = network_time.ring_seconds(once, workers, 1)
    assert seconds == pytest.approx(factor * once * 8 / 1e9 * 1.045)


def test_the_measured_shapes_of_four_workers() -> None:
    """Times of 64 MiB at 1 Gbit/s over N/BW: the bounds for 4, 3 and 2 reducers."""
    size = 64 << 20
    once = size * 8 / 1e9
    bounds = {4: 1.045, 3: 1.393, 2: 2.09, 8: 1.045}
    for reducers, bound in bounds.items():
        seconds = network_time.reducer_seconds(size, 4, 1, reducers, 1)
        assert seconds / once == pytest.approx(bound, rel=1e-3)


def test_at_four_workers_the_reducers_must_have_more_than_2_67_of_a_workers_rate() -> None:
    assert (
        reducer_count.reducers_to_beat_ring(4, 3, 1) == 9
    )  # 8 x 1 is 2.667 x 3: as fast, no faster
    assert reducer_count.reducers_to_beat_ring(4, 3, 1.01) == 8
    assert reducer_count.reducers_to_beat_ring(4, 1, 2.66) == 2
    assert reducer_count.reducers_to_beat_ring(4, 1, 2.67) == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_no_reducers_beat_a_ring_of_one_or_two(workers: int) -> None:
    assert reducer_count.reducers_to_beat_ring(workers, 1, 1000) is None
    assert network_time.reducer_seconds(1, workers, 1, 9, 1000) >= network_time.ring_seconds(
        1, workers, 1
    )


@given(WORKERS, RATES, RATES)
def test_the_counts_are_the_least_that_hold(workers: int, ours: float, theirs: float) -> None:
    size = 1 << 30
    alone = network_time.reducer_seconds(size, workers, ours, 10**9, theirs)
    needed = reducer_count.reducers_needed(workers, ours, theirs)
    assert network_time.reducer_seconds(size, workers, ours, needed, theirs) == pytest.approx(alone)
    if needed > 1:
        assert network_time.reducer_seconds(size, workers, ours, needed - 1, theirs) > alone
    beating = reducer_count.reducers_to_beat_ring(workers, ours, theirs)
    assume(beating is not None)
    assert beating is not None
    ring = network_time.ring_seconds(size, workers, ours)
    assert network_time.reducer_seconds(size, workers, ours, beating, theirs) < ring
    if beating > 1:
        fewer = network_time.reducer_seconds(size, workers, ours, beating - 1, theirs)
        assert find_winner(fewer, ring) in ("ring", "neither")


@given(st.integers(3, 2000), RATES, st.floats(1e-6, 100))
def test_ring_gbps_inverts_ring_seconds(workers: int, gbps: float, scale: float) -> None:
    seconds = network_time.ring_seconds(1 << 26, workers, gbps)
    assert network_time.ring_gbps(1 << 26, workers, seconds * scale) == pytest.approx(gbps / scale)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"workers": 0}, "workers: expected a whole number, 1 or more, got 0"),
        ({"worker_gbps": 0.0}, "worker_gbps: expected a number above 0, got 0"),
        ({"reducer_gbps": -1.0}, "reducer_gbps: expected a number above 0, got -1"),
        ({"reducer_gbps": math.nan}, "reducer_gbps: expected a number above 0, got nan"),
        ({"worker_gbps": math.inf}, "worker_gbps: expected a number above 0, got inf"),
        ({"gradient_bytes": 0}, "bytes: expected a number above 0, got 0"),
    ],
)
def test_bad_values_are_named(options: dict[str, Any], text: str) -> None:
    cluster = {"workers": 4, "worker_gbps": 1.0, "reducer_gbps": 1.0, "gradient_bytes": 1}
    with pytest.raises(ValueError, match=text):
        make_plan(Cluster(**{**cluster, **options}))


def test_the_command_names_a_bad_value_and_exits_2() -> None:
    for options, text in (
        (("--workers", "0"), "workers: expected a whole number, 1 or more, got 0"),
        (
            ("--workers", "4", "--reducers", "-1"),
            "reducers: expected a whole number, 0 or more, got -1",
        ),
        (("--workers", "4", "--gradient-bytes", "4X"), "--gradient-bytes"),
    ):
        result = plan(*options, "--worker-gbps", "1", "--reducer-gbps", "1")
        assert result.exit_code == 2
        assert text in result.output


def test_json_of_the_documented_cluster() -> None:
    found = planned("--workers", "8", "--worker-gbps", "100", "--reducer-gbps", "32")
    assert found["reducers"] == found["reducers_needed"] == 25
    assert found["reducers_to_beat_ring"] == 15
    assert found["speedup"] == pytest.approx(1.75)
    assert found["ring_seconds"] == pytest.approx(found["allreduce_seconds"] * 1.75)
    assert [choice["reducers"] for choice in found["choices"]] == list(range(26))
    assert [choice["winner"] for choice in found["choices"]] == ["neither"] + ["reducers"] * 25
    alone = [choice["alone_seconds"] for choice in found["choices"]]
    assert alone[0] is None and alone[14] > found["ring_seconds"] > alone[15]


def test_too_few_reducers_are_planned_as_asked() -> None:
    rates = ("--worker-gbps", "1", "--reducer-gbps", "1")
    found = planned("--workers", "4", *rates, "--reducers", "2", "--gradient-bytes", "64M")
    assert (found["reducers"], found["winner"]) == (2, "reducers")
    assert found["gradient_bytes"] == 64 << 20
    assert found["speedup"] == pytest.approx(1.25)
    assert found["ring_seconds"] / found["alone_seconds"] == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("workers", "reducers", "text"),
    [
        (1, 1, "A single worker needs no reducers."),
        (2, 0, "Hosted reducers alone reduce as fast as a ring of two, and no number of dedicated"),
        (2, 1, "1 dedicated reducer and 2 hosted ones reduce as fast as a ring of two, and no num"),
        (2, 1, "without them this one would take 2.00 times as long."),
        (2, 2, "2 dedicated reducers reduce as fast as a ring of two, and so do hosted reducers a"),
        (4, 0, "Hosted reducers alone reduce as fast as a ring. The first dedicated reducer saves"),
        (4, 2, "2 dedicated reducers and 4 hosted ones reduce 1.25x as fast as a ring. With hoste"),
        (4, 2, "without them this one would take 1.67 times as long. One more dedicated reducer s"),
        (4, 2, "saves 3.83 ms of an all-reduce; more than 4 gain nothing."),
        (
            4,
            4,
            "4 dedicated reducers reduce 1.50x as fast as a ring: hosted reducers have no share",
        ),
        (
            4,
            4,
            "Without hosted ones, 2 or fewer would not beat a ring, and 1 would take 3.00 times",
        ),
        (
            3,
            3,
            "Without hosted ones, 2 or fewer would not beat a ring, and 1 would take 2.50 times",
        ),
        (8, 8, "8 dedicated reducers reduce 1.75x as fast as a ring"),
    ],
)
def test_the_verdict_says_what_hosted_reducers_gain(workers: int, reducers: int, text: str) -> None:
    rates = ("--worker-gbps", "100", "--reducer-gbps", "100")
    options = ("--workers", str(workers), *rates, "--reducers", str(reducers))
    assert text in " ".join(planned(*options)["verdict"])
    assert text in " ".join(plan(*options).output.split())


@pytest.mark.parametrize(
    ("reducer_gbps", "subject"),
    [
        (1.0, "Without hosted ones, 2 or fewer would not beat a ring, and 1 would take 3.00 times"),
        (2.0, "Without hosted ones, 1 would not beat a ring, and would take 1.67 times as long as"),
        (3.0, "Without hosted ones, 1 would take 1.22 times as long as with them."),
    ],
)
def test_the_verdict_counts_the_reducers_that_are_too_few(
    reducer_gbps: float, subject: str
) -> None:
    verdict = conclude(make_plan(Cluster(4, 1.0, reducer_gbps, 1 << 30)))
    assert subject in " ".join(verdict)


def test_one_reducer_that_is_enough_has_no_fewer() -> None:
    first, second, *_ = conclude(make_plan(Cluster(4, 1.0, 4.0, 1 << 30)))
    assert first.startswith("1 dedicated reducer reduces 1.50x as fast as a ring")
    assert second.startswith("1 dedicated reducer pays off if")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--reducer-gbps", "32", "--reducers", "2"), True),
        (("--reducer-gbps", "32", "--reducers", "0"), False),
        (("--reducer-gbps", "32"), False),
        (("--reducer-gbps", "100", "--reducers", "2"), False),
    ],
)
def test_workers_are_told_the_rate_that_they_would_not_assume(
    options: tuple[str, ...], told: bool
) -> None:
    verdict = planned("--workers", "4", "--worker-gbps", "100", *options)["verdict"]
    sentences = [
        "Set REDUCER_DEDICATED_GBPS=32 on rank 0's machine for the right shares.",
        "Set REDUCER_GBPS=100 on all workers, too, if /sys does not show it.",
    ]
    assert [text for text in verdict if "REDUCER_" in text] == (sentences if told else [])


def test_a_thousand_reducers_fit_on_a_page_with_those_that_matter() -> None:
    found = make_plan(Cluster(1000, 100, 10, 1 << 30))
    shown = [choice.reducers for choice in found.choices]
    assert found.needed == 10_000 and found.to_beat_ring is not None
    assert {0, 1, found.to_beat_ring - 1, found.to_beat_ring, 10_000} <= set(shown)
    assert len(shown) < 70


def test_the_table_is_aligned_and_marks_the_choice() -> None:
    rates = ("--worker-gbps", "1", "--reducer-gbps", "1")
    result = plan("--workers", "4", *rates, "--reducers", "6")
    summary, verdict, table = (part.splitlines() for part in result.output.split("\n\n"))
    assert all(len(line) <= 80 for line in summary + verdict + table)
    above, head, ring, *rows, legend = table
    assert above.split() == ["one", "more", "without"]
    assert head.split() == ["reducers", "all-reduce", "speedup", "saves", "hosted"]
    assert above.endswith("without") and head.endswith(" hosted")
    assert ring.split()[0] == "ring" and legend.startswith("reducers: ")
    assert [row.split()[0] for row in rows] == ["0", "1", "2", "3", "4", "6"]
    assert [row for row in rows if row.endswith("  *")] == [rows[-1]]
    without = [row[head.index("hosted") : len(head)].split()[-1] for row in (ring, *rows)]
    assert without[:2] == ["-", "-"] and without[2:] == ["s"] * 5


def test_the_table_fits_with_all_columns() -> None:
    options = ("--worker-gbps", "100", "--reducer-gbps", "32", "--step", "250ms", "--reducers", "3")
    prices = ("--worker-price", "30", "--reducer-price", "0.6")
    *_, table = plan("--workers", "8", *options, *prices).output.split("\n\n")
    assert all(len(line) <= 80 for line in table.splitlines())
    assert table.splitlines()[1].split()[-3:] == ["step", "speedup", "steps"]


def test_seconds_in_words() -> None:
    texts = [format_seconds(s) for s in (0.0, 3e-5, 0.0366, 0.5, 2.5, 250.0)]
    assert texts == ["0.00 us", "30.0 us", "36.6 ms", "500 ms", "2.50 s", "250 s"]
