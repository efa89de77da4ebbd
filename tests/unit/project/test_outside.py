"""How the outcomes of other projects' suites are counted and compared."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from tests.outside.__main__ import SUITES
from tests.outside.cases import EXPECTED, differences, read_cases


def test_a_test_with_subtests_counts_as_these_and_fails_in_any_phase(tmp_path: Path) -> None:
    reports = [
        ("whole", None, "passed"),
        ("torn", None, "passed"),
        ("torn", None, "failed"),  # failed in its teardown
        ("absent", None, "skipped"),
        ("both", "eager", "passed"),
        ("both", "graph", "failed"),
        ("both", None, "passed"),
    ]
    record = tmp_path / "rank0.jsonl"
    record.write_text("\n".join(map(json.dumps, reports)))
    assert read_cases(record) == {
        "whole": "passed",
        "torn": "failed",
        "absent": "skipped",
        "both eager": "passed",
        "both graph": "failed",
    }


def test_every_difference_from_what_is_expected_is_told() -> None:
    expected = {"passed": 1, "failed": 1, "skipped": 0, "failing": {"* graph": "a reason"}}
    assert list(differences({"a": "passed", "b graph": "failed"}, expected)) == []
    assert list(differences({"a": "failed", "b graph": "passed"}, expected)) == [
        "a failed, and no reason for that is in expected.toml",
        "* graph is expected to fail, and does not",
    ]
    assert list(differences({"b graph": "failed"}, expected)) == ["0 passed, expected 1"]


def test_every_suite_has_a_table() -> None:
    assert tomllib.loads(EXPECTED.read_text()).keys() == SUITES.keys()
