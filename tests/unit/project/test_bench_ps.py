"""The turns and the table of `bench.ps kernels`."""

from __future__ import annotations

import pytest

from bench.ps import kernels
from bench.ps.kernels import CASES, HEADER, Case, Turn, format_row, measure
from reducer.optimizers import NoOptimizer


def turns(native: list[float], numpy: list[float]) -> list[Turn]:
    sides = {"native": native, "numpy": numpy}
    return [Turn("a", side, 1e-3, int(rate * 1e6)) for side in sides for rate in sides[side]]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_both_sides_take_each_turn(case: Case) -> None:
    sides = [turn.side for turn in measure(case, count=1_000, warmup=1, repeats=3)]
    assert sides == ["native", "numpy"] * 3


def test_another_step_ends_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    def step_wrongly(side: object, optimizer: object, step: int, arrays: kernels.Arrays) -> None:
        arrays[0][7] += step * (side is kernels.load("native"))

    monkeypatch.setattr(kernels, "_step", step_wrongly)
    with pytest.raises(AssertionError, match="none: 1 of 100 elements differ"):
        list(measure(CASES[0], count=100, warmup=0, repeats=1))


def test_a_row_has_the_medians_and_the_verdict() -> None:
    case = Case("a", NoOptimizer(), least=4.0, gain=2.0)
    row = format_row(case, turns([3, 4, 9], [1, 2, 3]))
    assert " ".join(row.split()) == "a 4.00 3.00 9.00 2.00 2.0 4 GB/s and 2x: met"
    assert HEADER.index("bar") == row.index("4 GB/s and")
    assert format_row(case, turns([3], [1])).endswith("MISSED")
    assert format_row(case, turns([9], [5])).endswith("MISSED")
    assert format_row(Case("a", NoOptimizer()), turns([9], [5])).endswith("1.8")
