"""A short `reducer demo` succeeds, draws its picture and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from reducer_tools.children import Worker
from reducer_tools.cli import main
from reducer_tools.demo import run
from reducer_tools.netlab.trial import find_obstacle
from tests.support.cluster import alive, environment
from tests.support.frameworks import needs_extra
from tests.support.ranks import Tell, start_ranks
from tests.support.wait import wait_until

pytestmark = needs_extra("torch", "matplotlib")
NO_TOOLS = """
from reducer_tools.cli import main
from reducer_tools.netlab import commands
commands._SYSTEM = ""
main()
"""


def _start(out: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "reducer_tools", "demo", "--out", str(out), *options]
    return subprocess.Popen(
        command,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def _work(rank: int, world: int, main: Callable[..., None], settings: Any, tell: Tell) -> None:
    main(tell._connection, *settings[rank])


@contextmanager
def _forked(
    main: Callable[..., None], arguments: Iterable[tuple[Any, ...]], preloaded: bool
) -> Generator[list[Worker]]:
    """`start_workers`, from the server of ranks, which has imported torch."""
    settings = list(arguments)
    with start_ranks(len(settings), _work, main, settings, talk=True) as ranks:
        yield list(ranks._started)  # type: ignore[arg-type]


def _assert_succeeded(status: int, output: str, out: Path, steps: int) -> None:
    assert status == 0, output
    assert "same parameters, bit for bit" in " ".join(output.split())
    assert f"reducers step  {steps}/{steps}" in output
    assert f"gloo     step  {steps}/{steps}" in output
    assert (out / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in out.iterdir()] == ["demo.png"]


def test_the_demo_trains_compares_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers are forked, and the command runs in this process: that saves 20 CPU seconds."""
    monkeypatch.setattr(run, "preload", lambda *modules: None)
    monkeypatch.setattr(run, "start_workers", _forked)
    options = ("--workers", "2", "--reducers", "1", "--steps", "10", "--loopback")
    ended = CliRunner().invoke(main, ("demo", *options, "--out", str(tmp_path)))
    _assert_succeeded(ended.exit_code, ended.output, tmp_path, 10)
    assert "No limited NICs here: --loopback was given." in ended.output


@pytest.mark.long  # 25 CPU seconds
def test_the_program_shows_on_limited_nics_what_a_ring_sends(tmp_path: Path) -> None:
    if obstacle := find_obstacle():
        pytest.skip(f"no network namespaces here: {obstacle}")
    output, _ = (process := _start(tmp_path, "--steps", "10")).communicate(timeout=150)
    _assert_succeeded(process.returncode, output, tmp_path, 10)
    rows = re.findall(r"^(?:reducers|gloo) .* ([0-9.]+) MB a step$", output, re.M)
    ours, theirs = map(float, rows)
    assert theirs / ours == pytest.approx(1.5, rel=0.05)
    assert not [name for name in _namespaces() if f"-{process.pid}-" in name]


@pytest.mark.long
def test_without_ip_and_tc_it_uses_loopback_and_names_the_package(tmp_path: Path) -> None:
    command = [sys.executable, "-c", NO_TOOLS, "demo", "--steps", "10"]
    done = subprocess.run(
        [*command, "--workers", "2", "--out", str(tmp_path)],
        env=environment({"PATH": str(tmp_path)}),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "a lab needs ip and tc (Debian: apt-get install iproute2)" in " ".join(
        done.stdout.split()
    )


@pytest.mark.long  # 15 CPU seconds; `reducer bench` has the same test at each commit
@pytest.mark.parametrize("where", [("--loopback",), ()])
def test_ctrl_c_leaves_no_process_behind(tmp_path: Path, where: tuple[str, ...]) -> None:
    process = _start(tmp_path, "--steps", "500", *where)
    assert process.stdout is not None
    wait_until(lambda: "step   5/" in process.stdout.readline(), 90)  # type: ignore[union-attr]
    members = _session(process.pid)
    assert len(members) >= 9
    interrupted = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(30) == 1
    process.stdout.close()
    assert time.monotonic() - interrupted < 15
    wait_until(lambda: not any(alive(pid) for pid in members), 10)
    assert not list(tmp_path.iterdir())
    assert not [name for name in _namespaces() if f"-{process.pid}-" in name]


@pytest.mark.long
def test_a_killed_worker_is_named(tmp_path: Path) -> None:
    process = _start(tmp_path, "--steps", "500", "--loopback")
    assert process.stdout is not None
    wait_until(lambda: "step   5/" in process.stdout.readline(), 90)  # type: ignore[union-attr]
    victim = next(pid for pid in _session(process.pid) if _is_worker(pid))
    os.kill(victim, signal.SIGKILL)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert re.search(rf"^Error: rank \d: the worker \(pid {victim}\) was killed", output, re.M)
    assert "Traceback" not in output


def _is_worker(pid: int) -> bool:
    """Whether the parent of a process is the server from which workers are forked."""
    parent = Path(f"/proc/{pid}/status").read_text().split("PPid:")[1].split()[0]
    return b"forkserver" in Path(f"/proc/{parent}/cmdline").read_bytes()


def _namespaces() -> list[str]:
    folder = Path("/run/netns")
    return os.listdir(folder) if folder.exists() else []


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
