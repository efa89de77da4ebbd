"""Prints the events of rank 0: the table or JSON lines on stdout, a progress bar on stderr."""

from __future__ import annotations

import json
from typing import Any, TextIO

from reducer_tools.bench.events import Event, Facts, Row, Turn
from reducer_tools.bench.progress import Progress
from reducer_tools.bench.ring_comparison import Rates, compare_with_ring
from reducer_tools.bench.table import Table, end_json, facts_json, row_json


class Display:
    """Prints the events of one measurement, in order; ``end`` prints the footer."""

    def __init__(self, out: TextIO, progress: Progress, rates: Rates, as_json: bool) -> None:
        self._out = out
        self._progress = progress
        self._rates = rates
        self._as_json = as_json
        self._table: Table | None = None
        self._rows: list[Row] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, Turn):
            self._progress.show(event)
            return
        self._progress.clear()
        if isinstance(event, Facts):
            self._table = Table(event)
            self._print(self._table.header(), facts_json(event))
        elif self._table is not None:
            self._rows.append(event)
            self._print(self._table.row(event), row_json(event))

    def end(self) -> None:
        """Print the footer if at least one size was measured."""
        self._progress.clear()
        if self._table is None or not self._rows:
            return
        comparison = compare_with_ring(self._table.facts, self._rows[-1], self._rates)
        lines = comparison.lines if comparison else []
        footer = [self._table.footer(self._rows), *(f"# {line}" for line in lines)]
        ring = comparison.as_json() if comparison else {}
        self._print("\n".join(footer), end_json(self._rows, ring))

    def _print(self, text: str, values: dict[str, Any]) -> None:
        print(json.dumps(values) if self._as_json else text, file=self._out, flush=True)
