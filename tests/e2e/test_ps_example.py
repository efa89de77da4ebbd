"""The commands for parameter servers in examples/README.md, and a kill in the middle."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.cluster import ROOT, environment
from tests.support.examples import README
from tests.support.frameworks import needs_extra
from tests.support.ports import free_ports

pytestmark = needs_extra("torch", "sklearn")


def commands(ports: list[int], workers: str) -> str:
    """The commands of the README on other ports, with further flags for the workers."""
    (block,) = re.findall(r"```sh\n(tasks=.*?)```", README.read_text(), re.S)
    for number, port in enumerate(ports):
        block = block.replace(f":{2230 + number}", f":{port}")
    assert "223" not in re.sub(r":\d+", "", block)
    chief = "--job_name=chief --task_index=0"
    return (
        str(block)
        .replace(chief, f"{chief} {workers}")
        .replace("--job_name=worker", f"{workers} --job_name=worker")
    )


@contextmanager
def running(script: str) -> Iterator[subprocess.Popen[str]]:
    env = environment({"OMP_NUM_THREADS": "1"})
    del env["PYTHONWARNINGS"]  # of the packages that the example imports
    env["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    process = subprocess.Popen(
        ["bash", "-c", script],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def server_at(port: int) -> int:
    """The process of ``reducer serve`` on a port."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"serve" in words and str(port).encode() in words:
            return int(path.parent.name)
    raise AssertionError(f"no reducer serves port {port}")


def read_until(process: subprocess.Popen[str], pattern: str) -> tuple[re.Match[str], list[str]]:
    lines = []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if match := re.search(pattern, line):
            return match, lines
    raise AssertionError(f"no line {pattern!r}:\n{''.join(lines)}")


@pytest.mark.long  # 49 CPU seconds; test_table_kills.py and test_server_optimizer.py have the same
@pytest.mark.parametrize("flags", ["--steps 1500", "--steps 150 --rate 0.05 --sync_replicas"])
def test_a_killed_parameter_server_does_not_end_the_training(flags: str, tmp_path: Path) -> None:
    ports = free_ports(5)
    with running(commands(ports, f"{flags} --checkpoint_dir {tmp_path}")) as tasks:
        read_until(tasks, r"^step \d+: loss")
        os.kill(server_at(ports[1]), signal.SIGKILL)
        match, lines = read_until(tasks, r"^step (\d+): accuracy (\S+)")
        assert int(match[1]) >= int(flags.split()[1]) and float(match[2]) > 0.9, "".join(lines)
        assert tasks.wait(60) in (0, 1), "kill says 1: one server is gone"
    assert list(tmp_path.glob("step-*"))
