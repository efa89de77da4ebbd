"""tests/progress.py shows what is downloaded and compiled, and passes a failure on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.progress import Progress

PIP = """\
Collecting torch
  Downloading torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl (200.1 MB)
  Downloading click-8.5.1-py3-none-any.whl (126 kB)
Installing collected packages: click, torch
"""


class _Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def _show(lines: str, seconds: float) -> list[str]:
    """What is shown if each line takes that long."""
    shown: list[str] = []
    clock = _Clock()
    progress = Progress("packages", shown.append, clock)
    for line in lines.splitlines():
        clock.now += seconds
        progress.read(line)
    progress.end()
    return [" ".join(line.split()) for line in shown]


def test_large_downloads_are_shown_and_their_time_is_told_apart() -> None:
    assert _show(PIP, 2.0) == [
        "downloading torch 2.13.0, 200.1 MB",
        "packages, downloads 2.0 s 8.0 s",
    ]


def test_compiled_files_are_counted_every_few_seconds() -> None:
    lines = "".join(f"  [{n}/9] Building C object a.o\n" for n in range(1, 10))
    assert _show(lines, 3.0) == [
        "packages: 2 of 9 files 6.0 s",
        "packages: 4 of 9 files 12.0 s",
        "packages: 6 of 9 files 18.0 s",
        "packages: 8 of 9 files 24.0 s",
        "packages 27.0 s",
    ]


def test_a_failure_has_its_whole_output_and_its_status() -> None:
    script = Path(__file__).parents[2] / "progress.py"
    command = [
        sys.executable,
        str(script),
        "packages",
        "sh",
        "-c",
        "echo one; echo two >&2; exit 3",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (3, "one\ntwo\n")
