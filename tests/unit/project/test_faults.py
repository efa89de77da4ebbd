"""The tables of faults: each row names tests that exist, or promises nothing."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
TESTS = ROOT / "tests"
README = (TESTS / "faults" / "README.md").read_text(encoding="utf-8")
# The faults, the same under the NCCL plugin, and the thirty failures; without the row of titles.
TABLES = [
    [line.strip("|").split(" | ") for line in re.findall(r"^(\| .*\|)$", part, re.M)[1:]]
    for part in README.split("\n## ")[:3]
]
ROWS = [(f"{cells[0].strip()}: {cells[1]}", *cells[-2:]) for table in TABLES for cells in table]
FOLDERS = (TESTS, ROOT, TESTS / "nccl", ROOT / "client/engine/tests", ROOT / "nccl_plugin/tests")
ENGINE = ("reconnect", "routes", "suspicion", "absence", "views")
NAMES = {
    "bars": ["e2e/test_bars.py"],
    "core": ["unit/core/runs/test_failover.py"],
    "engine": [f"unit/engine/test_engine_{part}.py" for part in ENGINE],
    "proxy": ["net/test_proxy.py"],
    "sim": [f"unit/sim/test_{part}.py" for part in ("storm", "engine_storm")]
    + [f"support/{part}.py" for part in ("storm", "worker_storm")],
    "soak": ["soak/__main__.py"],
}
NAMED = re.compile(r"(`[\w/.]+`|\w+)(?: \(([^)]*)\))?(?:, |$)")


def text_of(name: str) -> str:
    """The text of the files of a name."""
    paths = []
    for path in NAMES.get(name, [name.strip("`")]):
        there = [folder / path for folder in FOLDERS if (folder / path).is_file()]
        assert there, f"no file {path}"
        paths.append(there[0])
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def test_the_rows_are_thirty() -> None:
    faults, nccl, thirty = TABLES
    assert faults and nccl
    assert [int(number) for number, *_ in thirty] == list(range(1, 31))


def assert_named(row: str, name: str, hints: str) -> None:
    text = text_of(name)
    found = re.findall(r"^(?:def|void) (test_\w+)", text, re.M)
    for hint in filter(None, re.split("[;,] ", hints)):
        words = re.sub(r"[ -]", "_", hint)
        if hint.startswith("`"):
            known = re.search(rf"\b{re.escape(hint.strip('`'))}\b", text) is not None
        else:
            known = any(words in test for test in found)
        assert known, f"{row}: no test of {name} has {hint!r} in its name"


def test_every_row_names_tests_that_exist_or_promises_nothing() -> None:
    """Words in brackets are part of the name of a test in that file, or a word of it in quotes."""
    for row, promise, tests in ROWS:
        if not tests.strip():
            assert promise.startswith(("not promised", "not in this version")), row
        rest = NAMED.sub("", tests.strip())
        assert not rest, f"{row}: what is {rest!r}?"
        for name, hints in NAMED.findall(tests.strip()):
            assert_named(row, name, hints)
