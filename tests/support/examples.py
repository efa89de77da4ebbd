"""Runs the programs of examples/ by the commands in examples/README.md."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.cluster import ROOT, environment
from tests.support.entry_points import declare
from tests.support.ray_folder import ray_folder, ray_variables

README = ROOT / "examples" / "README.md"
_ROW = re.compile(r"^\| \[(\w+)\.py\]\(\1\.py\) \| `([^`]+)` \|", re.M)
_LAST = re.compile(r"accuracy (0\.\d+|1\.0+), ([\d,]+) bytes through the reducers\Z")


def commands() -> dict[str, str]:
    """The command of each example, by name."""
    return dict(_ROW.findall(README.read_text()))


def exports() -> dict[str, str]:
    """The variables that the README sets before the commands."""
    line = re.search(r"^export (.+)$", README.read_text(), re.M)
    assert line is not None
    return dict(word.split("=", 1) for word in shlex.split(line[1]))


def run_example(name: str, address: str, scratch: Path) -> tuple[float, int]:
    """Run an example; returns the accuracy and the bytes in its last line."""
    declare(scratch)
    variables = {**exports(), "REDUCER_ADDRS": address, "TMPDIR": str(scratch)}
    if name != "ray_digits":
        return _run(commands()[name], variables, scratch)
    with ray_folder() as folder:
        return _run(commands()[name], variables | ray_variables(folder), scratch)


def _run(command: str, variables: dict[str, str], scratch: Path) -> tuple[float, int]:
    env = environment(variables)
    del env["PYTHONWARNINGS"]  # frameworks warn of their own
    env["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env["PYTHONPATH"] += f":{scratch}"
    process = subprocess.Popen(
        ["bash", "-c", command],
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=170)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode == 0, output
    last = _LAST.search(output.rstrip())
    assert last is not None, output
    return float(last[1]), int(last[2].replace(",", ""))
