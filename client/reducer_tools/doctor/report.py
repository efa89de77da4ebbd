"""A diagnosis as text for a terminal, and as JSON."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator
from typing import Any

from reducer.columns import aligned
from reducer_tools.doctor.diagnosis import Diagnosis, gigabits
from reducer_tools.doctor.reach import Reach

_WIDTH = 100
_HEAD = ("REDUCER", "STATE", "NETWORK", "ROUND", "LANES", "RATE", "RELEASE")


def as_text(diagnosis: Diagnosis) -> str:
    """The facts about the host, the table of reducers, then the findings, faults first."""
    lines = list(_host(diagnosis))
    lines += ["", *_reducers(diagnosis)] if diagnosis.reducers else []
    lines.append("")
    lines += _findings(diagnosis)
    return "\n".join(lines)


def as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    found = dataclasses.asdict(diagnosis)
    return {
        "healthy": diagnosis.healthy,
        "verdict": verdict(diagnosis),
        "host": {"name": found["host"]["name"], "facts": found["host"]["facts"]},
        "nics": found["host"]["nics"],
        "reducers": found["reducers"],
        "rate": found["rate"],
        "findings": found["findings"],
    }


def verdict(diagnosis: Diagnosis) -> str:
    """The conclusion in a sentence or two."""
    down, total = diagnosis.down, len(diagnosis.reducers)
    if down:
        names = ", ".join(f"{one.address} ({one.fault.code})" for one in down if one.fault)
        running = "continues with the others" if len(down) < total else "waits for them and fails"
        return (
            f"{len(down)} of {total} reducers cannot be used from this host: {names}. A job with "
            f"these reducers cannot start here; a running job {running}"
        )
    if not diagnosis.healthy:
        return "a job cannot start on this host"
    if not total:
        return (
            "no reducers are configured (REDUCER_ADDRS): the workers of a job host them, and one "
            "can run on this host. `reducer status` shows those that run here now"
        )
    return f"{'the reducer' if total == 1 else f'all {total} reducers'} can be used from this host"


def _host(diagnosis: Diagnosis) -> Iterator[str]:
    host = diagnosis.host
    yield f"HOST {host.name}"
    yield from (f"  {line}" for line in aligned(list(host.facts.items()), left=(0, 1)))


def _reducers(diagnosis: Diagnosis) -> list[str]:
    rows = [_row(one) for one in diagnosis.reducers]
    if diagnosis.rate is not None:
        lanes = sum(one.lanes or 0 for one in diagnosis.reducers)
        rows.append(("all usable reducers", "", "", "", str(lanes), gigabits(diagnosis.rate), ""))
    return aligned([_HEAD, *rows], left=(0, 1))


def _row(one: Reach) -> tuple[str, ...]:
    return (
        one.address,
        "ok" if one.fault is None else one.fault.code,
        _milliseconds(one.round_trip),
        _milliseconds(one.round_seconds),
        "-" if one.lanes is None else str(one.lanes),
        "-" if one.rate is None else gigabits(one.rate),
        one.version or "-",
    )


def _findings(diagnosis: Diagnosis) -> Iterator[str]:
    for level in ("fault", "warning"):
        for finding in diagnosis.findings:
            if finding.level == level:
                text = f"{level.upper()} {finding.code}: {finding.subject}: {finding.text}"
                text, *commands = text.split("\n")
                yield textwrap.fill(
                    text, _WIDTH, subsequent_indent="  ", break_on_hyphens=False,
                    break_long_words=False,
                )  # fmt: skip
                yield from (f"    {command}" for command in commands)  # whole, to be copied
    yield textwrap.fill(verdict(diagnosis), _WIDTH, break_on_hyphens=False, break_long_words=False)


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.3f} ms"
