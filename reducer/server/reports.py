"""The report of a lane, put together from the parts that it tells."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Together = tuple[dict[str, dict[str, Any]], dict[str, list[dict[str, Any]]]]


def put_together(parts: Iterable[dict[str, Any]]) -> Together:
    """The numbers of each job or group, and the report, from the parts that a lane has told.

    Runs of one title are added up. What the parts hold is taken, not copied.
    """
    jobs: dict[str, dict[str, Any]] = {}
    report: dict[str, list[dict[str, Any]]] = {"runs": [], "forming": []}
    for part in parts:
        if "forming" in part:
            report["forming"].append(part["forming"])
        else:
            report["runs"].append(part["run"])
            _add(jobs, part["run"], part["numbers"])
    return jobs, report


def _add(jobs: dict[str, dict[str, Any]], run: dict[str, Any], numbers: dict[str, Any]) -> None:
    job = jobs.setdefault(run["title"], numbers)
    if job is not numbers:
        for field, number in numbers.items():
            job[field] += number
    job["world_size"] = run["world_size"]
