"""Prints what rank 0 tells: the table or JSON lines on stdout, a bar on stderr."""

from __future__ import annotations

import json
from typing import Any, TextIO

from reducer_tools.bench.events import Event, Facts, Row, Turn
from reducer_tools.bench.progress import Progress
from reducer_tools.bench.table import Table, end_json, facts_json, row_json
from reducer_tools.bench.verdict import Rates, Verdict, judge


class Show:
    """Takes the events of one run in their order; ``end`` prints what is known at last."""

    def __init__(self, out: TextIO, progress: Progress, rates: Rates, as_json: bool) -> None:
        self._out = out
        self._progress = progress
        self._rates = rates
        self._as_json = as_json
        self._facts: Facts | None = None
        self._table: Table | None = None
        self._rows: list[Row] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, Turn):
            self._progress.show(event)
            return
        self._progress.clear()
        if isinstance(event, Facts):
            self._facts = event
            self._table = Table(event)
            self._print(self._table.header(), facts_json(event))
        elif self._table is not None:
            self._rows.append(event)
            self._print(self._table.row(event), row_json(event))

    def end(self) -> None:
        """The footer, if there was a row."""
        self._progress.clear()
        if self._facts is None or self._table is None or not self._rows:
            return
        verdict = judge(self._facts, self._rows[-1], self._rates)
        footer = [self._table.footer(self._rows), *(f"# {line}" for line in _lines(verdict))]
        self._print("\n".join(footer), end_json(self._rows, verdict.as_json() if verdict else {}))

    def _print(self, text: str, values: dict[str, Any]) -> None:
        print(json.dumps(values) if self._as_json else text, file=self._out, flush=True)


def _lines(verdict: Verdict | None) -> list[str]:
    return [] if verdict is None else verdict.lines
