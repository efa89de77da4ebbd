"""The table of the thirty failures: each row names tests that exist, or promises nothing."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
README = (TESTS / "faults" / "README.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (\d+) \| (.+?) \| (.+?) \| (.*?) ?\|$", README, re.M)
NAMES = {
    "bars": "e2e/test_bars.py",
    "core": "unit/test_core_failover.py",
    "engine": "unit/test_engine_failover.py",
    "proxy": "net/test_proxy.py",
    "sim": "unit/test_storm.py",
}


def test_the_rows_are_thirty() -> None:
    assert [int(number) for number, *_ in ROWS] == list(range(1, 31))


def test_every_row_names_a_test_or_promises_nothing() -> None:
    for number, _, measured, tests in ROWS:
        assert tests or measured.startswith("not promised"), f"row {number}"


def test_every_named_test_exists() -> None:
    """Words in brackets are those of a test's name in that file."""
    for number, *_, tests in ROWS:
        for name, hints in re.findall(r"(`[\w/.]+`|\w+)(?: \(([^)]*)\))?(?:, |$)", tests):
            path = TESTS / NAMES.get(name, name.strip("`"))
            assert path.is_file(), f"row {number}: {name}"
            found = re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.M)
            for hint in filter(None, hints.split("; ")):
                words = re.sub(r"[ -]", "_", hint)
                known = hint.startswith("`") or any(words in test for test in found)
                assert known, f"row {number}: no test of {path.name} has {hint!r} in its name"
