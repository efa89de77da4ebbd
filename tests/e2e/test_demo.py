"""A short `reducer demo` succeeds, draws its picture and leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.cluster import alive, environment
from tests.support.frameworks import needs_extra
from tests.support.wait import wait_until

pytestmark = needs_extra("torch", "sklearn", "matplotlib")


def _start(out: Path, epochs: int) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "reducer_tools",
        "demo",
        "--workers",
        "2",
        "--epochs",
        str(epochs),
    ]
    return subprocess.Popen(
        [*command, "--out", str(out)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_the_demo_trains_compares_and_draws(tmp_path: Path) -> None:
    output, _ = (process := _start(tmp_path, 2)).communicate(timeout=120)
    assert process.returncode == 0, output
    assert "same parameters, bit for bit" in output
    assert "reducers  epoch  2/2" in output
    assert "gloo      epoch  2/2" in output
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long  # 15 CPU seconds; `reducer bench` has the same test at each commit
def test_ctrl_c_leaves_no_process_behind(tmp_path: Path) -> None:
    process = _start(tmp_path, 500)
    assert process.stdout is not None
    first = process.stdout.readline()
    assert "2 reducers" in first, first
    wait_until(lambda: "epoch" in process.stdout.readline(), 90)  # type: ignore[union-attr]
    members = _session(process.pid)
    assert len(members) >= 5
    interrupted = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(30) == 1
    process.stdout.close()
    assert time.monotonic() - interrupted < 15
    wait_until(lambda: not any(alive(pid) for pid in members), 10)


def _session(leader: int) -> list[int]:
    """The processes of a session, from /proc."""
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.getsid(int(entry.name)) == leader:
                    members.append(int(entry.name))
            except OSError:
                continue
    return members
