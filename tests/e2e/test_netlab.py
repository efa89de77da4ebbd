"""Labs of isolated processes leave nothing behind, and need no root if the kernel allows that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from reducer_tools.netlab import trial
from tests.support.cluster import environment

NOBODY = 65534
# As another user, in the same process: that user may not read this checkout, nor Python's library.
BECOME = f"""
import ctypes, encodings.ascii, os
from reducer_tools.netlab import trial
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE, which setuid() clears
"""
BUILD = """
from reducer_tools.netlab import Lab, Nic, isolate
import os, subprocess, sys
isolate()
with Lab({"one": Nic("1gbit"), "two": Nic("1gbit")}) as lab:
    with lab.inside("one"):
        subprocess.run(["ip", "-brief", "address"], check=True)
    print(os.listdir("/run/netns"), flush=True)
    sys.stdin.read()
"""


def _start(script: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", script]
    return subprocess.Popen(command, env=environment(), stdin=pipe, stdout=pipe, text=True)


def _names() -> list[str]:
    folder = Path("/run/netns")
    return os.listdir(folder) if folder.exists() else []


def test_a_killed_process_leaves_no_namespace() -> None:
    if obstacle := trial.find_obstacle():
        pytest.skip(f"no network namespaces here: {obstacle}")
    with _start(BUILD) as process:
        assert process.stdout is not None
        addresses = [process.stdout.readline() for _ in range(2)]
        assert "10.213.0.1/24" in addresses[1], addresses
        assert f"orslab-{process.pid}-two" in process.stdout.readline()
        assert not any(str(process.pid) in name for name in _names())
        process.kill()
    assert not any(str(process.pid) in name for name in _names())


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user: needs root")
def test_a_user_builds_a_lab_in_a_user_namespace() -> None:
    script = f"{BECOME}trial.main(); print(os.getuid())"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode != 0 and "no namespaces for a lab" in done.stderr:
        pytest.skip(f"no user namespaces here: {done.stderr.strip()}")
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


def test_a_missing_program_is_named_with_its_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("reducer_tools.netlab.commands._SYSTEM", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    expected = "a lab needs ip and tc (Debian: apt-get install iproute2)"
    assert trial.find_obstacle() == expected
    (tmp_path / "ip").write_text("#!/bin/sh\n")
    (tmp_path / "ip").chmod(0o755)
    assert trial.find_obstacle() == expected.replace("ip and tc", "tc")
