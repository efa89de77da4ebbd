"""The table and the verdicts of `bench.cpu`, and the turns of its pairs."""

from __future__ import annotations

from dataclasses import replace

from bench.cpu.table import Turn, format_table, verdicts
from bench.pairs import FLOOR, OURS, C, Case, Pair, in_turns

CASE = Case(
    workers=4,
    bytes=64 << 20,
    chunk_bytes=1 << 20,
    window_bytes=2 << 20,
    rounds=1,
    in_place=True,
    congestion="cubic",
)
TURNS = [
    *(Turn(FLOOR, lane, 0.2, 0.1) for lane in (0.1, 0.2, 0.3)),
    *(Turn(C, lane, 0.25, 0.1) for lane in (0.2, 0.25, 0.9)),
    *(Turn(OURS, lane, 0.3, 0.104) for lane in (0.24, 0.25, 0.26)),
]


def test_a_row_has_the_median_and_the_ratios_of_medians() -> None:
    rows = [row.split() for row in format_table(CASE, TURNS).splitlines()]
    ours = ["0.2500", "0.2400", "0.2600", "262.1", "1.250", "1.000", "104.0", "1.040"]
    assert ["lane", OURS, *ours] in rows
    c = ["0.2500", "0.2500", "0.2500", "262.1", "1.250", "1.000", "100.0", "1.000"]
    assert ["worker", C, *c] in rows


def test_each_limit_of_the_case_has_a_verdict() -> None:
    assert verdicts(CASE, TURNS) == [
        "lane: ours at 1.250 x floor, within the limit of 1.25",
        "lane: ours at 1.000 x C, within the limit of 1.15",
        "worker: ours at 1.500 x floor, OVER the limit of 1.35",
    ]
    assert verdicts(replace(CASE, chunk_bytes=64 << 10), TURNS) == [
        "worker: ours at 1.500 x floor, within the limit of 1.6",
    ]
    assert verdicts(replace(CASE, workers=2), TURNS) == []
    assert verdicts(replace(CASE, rate="1gbit"), TURNS) == [
        "time of a round: ours at 1.040 x C, OVER the limit of 1.03",
    ]


def test_the_order_of_the_pairs_changes_from_turn_to_turn() -> None:
    pairs = {name: Pair(lambda: 0.0, []) for name in (FLOOR, C, OURS)}
    order = [(turn, name) for turn, name, _ in in_turns(pairs, 2)]
    assert order == [(0, FLOOR), (0, C), (0, OURS), (1, OURS), (1, C), (1, FLOOR)]
