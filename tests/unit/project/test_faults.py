"""The table of the thirty failures: each row names tests that exist, or promises nothing."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[2]
README = (TESTS / "faults" / "README.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (\d+) \| (.+?) \| (.+?) \| (.*?) ?\|$", README, re.M)
ENGINE = ("reconnect", "routes", "suspicion", "absence")
NAMES = {
    "bars": ["e2e/test_bars.py"],
    "core": ["unit/core/runs/test_failover.py"],
    "engine": [f"unit/engine/test_engine_{part}.py" for part in ENGINE],
    "proxy": ["net/test_proxy.py"],
    "sim": ["unit/sim/test_storm.py"],
}


def test_the_rows_are_thirty() -> None:
    assert [int(number) for number, *_ in ROWS] == list(range(1, 31))


def test_every_row_names_a_test_or_promises_nothing() -> None:
    for number, _, measured, tests in ROWS:
        assert tests or measured.startswith("not promised"), f"row {number}"


def test_every_named_test_exists() -> None:
    """Words in brackets must be part of the name of a test in that file."""
    for number, *_, tests in ROWS:
        for name, hints in re.findall(r"(`[\w/.]+`|\w+)(?: \(([^)]*)\))?(?:, |$)", tests):
            paths = [TESTS / path for path in NAMES.get(name, [name.strip("`")])]
            assert all(path.is_file() for path in paths), f"row {number}: {name}"
            text = "\n".join(path.read_text(encoding="utf-8") for path in paths)
            found = re.findall(r"^def (test_\w+)", text, re.M)
            for hint in filter(None, hints.split("; ")):
                words = re.sub(r"[ -]", "_", hint)
                known = hint.startswith("`") or any(words in test for test in found)
                assert known, f"row {number}: no test of {name} has {hint!r} in its name"
