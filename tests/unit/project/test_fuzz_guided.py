"""A few seconds of fuzzing by coverage; `make soak` fuzzes for longer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.guided import NO_ATHERIS, TARGETS
from tests.support.cluster import ROOT, environment
from tests.support.counts import draws

SECONDS = draws(1, 6)


@pytest.mark.parametrize("target", TARGETS)
def test_no_input_breaks_the_rule(target: str, tmp_path: Path) -> None:
    # More than the soak's limit of a second, since a stopped machine is no hang.
    command = [
        sys.executable, "-m", "tests.fuzz.guided", target, "--seconds", str(SECONDS),
        "--hang", "30", "--corpus", str(tmp_path),
    ]  # fmt: skip
    ended = subprocess.run(
        command, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=150,
        check=False,
    )  # fmt: skip
    if ended.returncode == NO_ATHERIS:
        pytest.skip(ended.stdout.strip())
    assert ended.returncode == 0, ended.stderr[-3_000:]
    assert "DONE" in ended.stderr, ended.stderr[-3_000:]
    kept = len(list((tmp_path / target).iterdir()))
    assert kept > 1, "nothing but the first input reached new code"
