"""What the cases of a suite came to, and what they are expected to."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

# Names of cases, with "passed", "failed" or "skipped".
Cases = dict[str, str]
OUTCOMES = ("passed", "failed", "skipped")
EXPECTED = Path(__file__).with_name("expected.toml")


class UnavailableError(Exception):
    """The suite cannot be had here; the text says why, and how to get it."""


def read_cases(record: Path) -> Cases:
    """From what ``tests.outside.record`` has written.

    A test with subtests counts as its subtests. One that failed in any phase failed.
    """
    found: Cases = {}
    divided = set()
    for line in record.read_text().splitlines():
        test, part, outcome = json.loads(line)
        name = f"{test} {part}" if part else test
        if part:
            divided.add(test)
        if OUTCOMES.index(outcome) >= OUTCOMES.index(found.get(name, "passed")):
            found[name] = "failed" if found.get(name) == "failed" else outcome
    return {name: outcome for name, outcome in found.items() if name not in divided}


def expectation(suite: str) -> dict[str, Any]:
    """The suite's table of ``expected.toml``."""
    found: dict[str, Any] = tomllib.loads(EXPECTED.read_text())[suite]
    return found


def differences(cases: Cases, expected: dict[str, Any]) -> Iterator[str]:
    """What is not as expected, a line each."""
    counts = Counter(cases.values())
    for outcome in OUTCOMES:
        if counts[outcome] != expected[outcome]:
            yield f"{counts[outcome]} {outcome}, expected {expected[outcome]}"
    patterns = expected.get("failing", {})
    for name, outcome in cases.items():
        if outcome == "failed" and not any(fnmatchcase(name, p) for p in patterns):
            yield f"{name} failed, and no reason for that is in expected.toml"
    for pattern in patterns:
        matching = [name for name in cases if fnmatchcase(name, pattern)]
        if not any(cases[name] == "failed" for name in matching):
            yield f"{pattern} is expected to fail, and does not"
