"""A short `reducer demo` succeeds, draws its picture and leaves no process behind."""

from __future__ import annotations

import os
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
from tests.support.cluster import alive, environment
from tests.support.frameworks import needs_extra
from tests.support.ranks import Tell, start_ranks
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


def _work(rank: int, world: int, main: Callable[..., None], settings: Any, tell: Tell) -> None:
    main(tell._connection, *settings[rank])


@contextmanager
def _forked(
    main: Callable[..., None], arguments: Iterable[tuple[Any, ...]]
) -> Generator[list[Worker]]:
    """`start_workers`, from the server of ranks, which has imported torch."""
    settings = list(arguments)
    with start_ranks(len(settings), _work, main, settings, talk=True) as ranks:
        yield list(ranks._started)  # type: ignore[arg-type]


def _assert_succeeded(status: int, output: str, out: Path) -> None:
    assert status == 0, output
    assert "same parameters, bit for bit" in output
    assert "reducers  epoch  2/2" in output
    assert "gloo      epoch  2/2" in output
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_the_demo_trains_compares_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers are forked, and the command runs in this process: that saves 20 CPU seconds."""
    monkeypatch.setattr(run, "start_workers", _forked)
    command = ("demo", "--workers", "2", "--epochs", "2", "--out", str(tmp_path))
    ended = CliRunner().invoke(main, command)
    _assert_succeeded(ended.exit_code, ended.output, tmp_path)


@pytest.mark.long
def test_the_program_does_the_same(tmp_path: Path) -> None:
    output, _ = (process := _start(tmp_path, 2)).communicate(timeout=120)
    _assert_succeeded(process.returncode, output, tmp_path)


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
