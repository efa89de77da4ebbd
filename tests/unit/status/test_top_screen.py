"""`reducer top` on narrow and wide terminals."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from reducer.status.summary import summarize
from reducer_tools.top.display import picture
from reducer_tools.top.rates import change
from tests.unit.status.test_status import answer, run

POD = "reducer-0.reducer.training.svc.cluster.local:2222"
DEAD = "reducer-1.reducer.training.svc.cluster.local:2222"


def screen(width: int, address: str) -> list[str]:
    now = summarize({address: answer(run(lateness=[[3, 90.0]], disconnected=[3]))})
    errors = {DEAD: f"{DEAD}: Connection refused; does `reducer serve` run there?"}
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False)
    console.print(picture([address, DEAD], now, errors, change(now, now), width))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("address", ["10.0.0.117:2222", POD])
def test_eighty_columns_cut_nothing(address: str) -> None:
    lines = screen(80, address)
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "…" not in text
    first_column = "".join(line[:30].strip().split(" ")[0] for line in lines[1:6])
    assert address in first_column
    assert "refused" in text
    assert "not connected to" in text


def test_a_wide_terminal_shows_everything() -> None:
    head = screen(140, "10.0.0.117:2222")[0].split()
    assert head == [
        "REDUCER", "IN/s", "OUT/s", "ROUNDS/s", "OPEN", "JOBS", "WORKERS", "MEMORY", "STATE",
    ]  # fmt: skip
