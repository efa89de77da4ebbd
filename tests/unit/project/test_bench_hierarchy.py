"""The figures of `bench.hierarchy` for its workers' lines."""

from __future__ import annotations

from bench.hierarchy import _slowest


def test_a_time_is_that_of_the_slowest_rank_once_all_have_begun() -> None:
    def line(turn: int, began: float, ended: float) -> dict[str, object]:
        return {"turn": turn, "contender": "flat", "began": began, "ended": ended}

    lines = [(0, line(0, 1.0, 4.0)), (0, line(1, 9.0, 9.5)), (1, line(0, 1.5, 3.5))]
    assert list(_slowest(iter(lines), 2)) == [{"turn": 0, "contender": "flat", "seconds": 2.5}]
