"""The report of a lane as it is sent to the main process: lines of JSON, one for each part."""

from __future__ import annotations

import json
from collections.abc import Iterable
from operator import add
from typing import Any

from reducer.core.surface.numbers import (
    CoreNumbers,
    EndedPart,
    EndedReport,
    FormingPart,
    FormingReport,
    Part,
    RunNumbers,
    RunPart,
    RunReport,
    WaitingRound,
)
from reducer.core.surface.table_numbers import StepReport, TableNumbers, TablePart, TableReport
from reducer.server.pipe.snapshot import JobNumbers, LaneNumbers, LaneReport, fields_of

_encode = json.JSONEncoder(default=fields_of).encode


def line_of(**message: Any) -> bytes:
    """Encodes one answer of a lane; a dataclass becomes an object with its fields."""
    return _encode(message).encode() + b"\n"


def part_of(found: dict[str, Any]) -> Part:
    """Reads one part of a report, as `line_of` has encoded it."""
    if "forming" in found:
        return FormingPart(FormingReport(**found["forming"]))
    if "ended" in found:
        return EndedPart(EndedReport(**found["ended"]))
    if "table" in found:
        return _table_part(found["table"], found["numbers"])
    run = found["run"]
    run["waiting"] = [WaitingRound(**each) for each in run["waiting"]]
    return RunPart(RunReport(**run), RunNumbers(**found["numbers"]))


def _table_part(table: dict[str, Any], numbers: dict[str, Any]) -> TablePart:
    if table["open"] is not None:
        table["open"] = StepReport(**table["open"])
    return TablePart(TableReport(**table), TableNumbers(**numbers))


def numbers_of(found: dict[str, Any]) -> LaneNumbers:
    """Reads the numbers of a lane, as `line_of` has encoded them."""
    found["core"] = CoreNumbers(**found["core"])
    return LaneNumbers(**found)


def put_together(numbers: LaneNumbers, parts: Iterable[Part]) -> LaneReport:
    """Makes the report of a lane from its parts, and adds up the numbers of runs with one title."""
    jobs: dict[str, JobNumbers] = {}
    runs: list[RunReport] = []
    forming: list[FormingReport] = []
    ended: list[EndedReport] = []
    tables: list[TablePart] = []
    for part in parts:
        if isinstance(part, EndedPart):
            ended.append(part.ended)
            continue
        if isinstance(part, FormingPart):
            forming.append(part.forming)
            continue
        if isinstance(part, TablePart):
            tables.append(part)
            continue
        runs.append(part.run)
        known = jobs.get(part.run.title)
        total = part.numbers if known is None else _sum(known.numbers, part.numbers)
        jobs[part.run.title] = JobNumbers(total, part.run.world_size)
    return LaneReport(numbers, jobs, runs, forming, ended, tables)


def _sum(first: RunNumbers, second: RunNumbers) -> RunNumbers:
    return RunNumbers(*map(add, fields_of(first).values(), fields_of(second).values()))
