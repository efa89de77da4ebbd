"""With the plugin, a skip for an unlisted reason fails the run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("import pytest; pytest.skip('needs a CUDA device', allow_module_level=True)", 5),
        ("import pytest; pytest.skip('no spin', allow_module_level=True)", 1),
        ("def test_it(): import pytest; pytest.skip('no spin')", 1),
        ("def test_it(): import pytest; pytest.skip('no CUDA device')", 0),
    ],
)
def test_a_skip_is_listed_or_fails(tmp_path: Path, line: str, status: int) -> None:
    (tmp_path / "test_it.py").write_text(line)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.support.skips",
        "-p",
        "no:cacheprovider",
    ]
    ended = subprocess.run(
        [*command, "-c", "/dev/null", "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == status, ended.stdout + ended.stderr
    assert ("unexpected skips" in ended.stdout) == (status == 1)
