"""The report of a check, as a table or as JSON."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Literal

# A row with "unknown" or "FAILED" makes the verdict bad; a note does not.
State = Literal["ok", "note", "unknown", "FAILED"]
_BAD = ("unknown", "FAILED")
_HEAD = ("CHECK", "RESULT", "WHAT TO DO")
_RESULT_WIDTH = 62
_ADVICE_WIDTH = 46


@dataclass(frozen=True)
class Row:
    check: str
    state: State
    result: str
    advice: str = ""


@dataclass
class Report:
    """The report of a check.

    Attributes:
        rows: the results of the steps, in order.
        lines: the plugin's log lines, as (level, text).
        moved: whether the reducers have counted the bytes of the check.
    """

    rows: list[Row] = field(default_factory=list)
    lines: list[tuple[str, str]] = field(default_factory=list)
    moved: bool = False

    def add(self, check: str, state: State, result: str, advice: str = "") -> None:
        self.rows.append(Row(check, state, result, advice))

    @property
    def good(self) -> bool:
        """Whether bytes went through the reducers and nothing was found that would stop a job's."""
        return self.moved and not any(row.state in _BAD for row in self.rows)

    @property
    def verdict(self) -> str:
        bad = ", ".join(dict.fromkeys(row.check for row in self.rows if row.state in _BAD))
        if self.good:
            return "Bytes went through the reducers."
        if self.moved:
            return f"Bytes of this check went through the reducers; a job's bytes may not: {bad}."
        return f"NOT PROVEN that bytes go through the reducers: {bad}."


def as_text(report: Report) -> str:
    lines = list(_table(report.rows))
    if report.lines:
        lines += ["", "the plugin's own lines:"]
        lines += [f"  {level:<4}  {text}" for level, text in report.lines]
    return "\n".join([*lines, "", report.verdict])


def as_json(report: Report) -> dict[str, Any]:
    return {
        "good": report.good,
        "verdict": report.verdict,
        "checks": [dataclasses.asdict(row) for row in report.rows],
        "lines": [{"level": level, "text": text} for level, text in report.lines],
    }


def _table(rows: Sequence[Row]) -> Iterator[str]:
    name = max(len(text) for text in [_HEAD[0], *(row.check for row in rows)])
    state = max(len(row.state) for row in rows)
    result = state + 2 + _RESULT_WIDTH
    yield f"{_HEAD[0]:<{name}}  {_HEAD[1]:<{result}}  {_HEAD[2]}"
    for row in rows:
        cells = zip_longest(
            [row.check],
            [row.state],
            _wrapped(row.result, _RESULT_WIDTH),
            _wrapped(row.advice, _ADVICE_WIDTH),
            fillvalue="",
        )
        for first, second, third, last in cells:
            line = f"{first:<{name}}  {second:<{state}}  {third:<{_RESULT_WIDTH}}  {last}"
            yield line.rstrip()


def _wrapped(text: str, width: int) -> list[str]:
    """Wrap text without breaking words, so that paths can be copied."""
    return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)
