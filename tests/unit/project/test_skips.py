"""With the plugin, a skip for an unlisted reason fails the run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


MODULE = "import pytest; pytest.skip({!r}, allow_module_level=True)"
TEST = "def test_it(): import pytest; pytest.skip({!r})"


@pytest.mark.parametrize(
    ("listed", "unlisted", "status"),
    [
        ({"module": MODULE.format("needs a CUDA device")}, {}, 5),  # 5: no tests
        (
            {"test": TEST.format("no CUDA device")},
            {"module": MODULE.format("no spin"), "test": TEST.format("no spin")},
            1,
        ),
        ({"test": TEST.format("no CUDA device")}, {}, 0),
    ],
)
def test_a_skip_is_listed_or_fails(
    tmp_path: Path, listed: dict[str, str], unlisted: dict[str, str], status: int
) -> None:
    for kind, text in listed.items():
        (tmp_path / f"test_listed_{kind}.py").write_text(text)
    for kind, text in unlisted.items():
        (tmp_path / f"test_unlisted_{kind}.py").write_text(text)
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
    _, _, section = ended.stdout.partition("unexpected skips")
    named = [line.partition(".py")[0] for line in section.splitlines()[1:-1] if line]
    assert named == [f"test_unlisted_{kind}" for kind in sorted(unlisted)], ended.stdout
