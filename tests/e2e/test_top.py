"""`reducer top` of real reducers: one screen with --once, else until a key is pressed."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.support.cluster import Daemon, environment, run_cli
from tests.support.late import work
from tests.support.ranks import start_ranks

WORLD = 3
LATE = 1
NAP = 0.3  # seconds


def test_one_picture_of_a_slow_rank_and_a_reducer_that_is_gone(job: str) -> None:
    job += "\x1b[31m[red]"  # names must not control the terminal or rich
    with Daemon() as here:
        with Daemon() as gone:
            addresses = [here.address, gone.address]
        with start_ranks(WORLD, work, [here.address], job, LATE, NAP, talk=True) as ranks:
            ranks.receive(0, 60)
            done = run_cli("top", "--once", "--interval", "1.5", "--addresses", ",".join(addresses))
            ranks.send(0)
            for rank in range(1, WORLD):
                ranks.receive(rank)
            assert all(o.error is None and o.reported for o in ranks.collect(60))
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert re.match(rf"{addresses[0]} +[\d.]+ [MG]B +[\d.]+ [MG]B +[\d.]+ .* serves", lines[1])
    assert re.match(rf"{addresses[1]}( +-)+ +down: Connection refused", lines[2])
    assert f"job {job!r}, run " in done.stdout and "\x1b" not in done.stdout
    late = re.search(rf"^ *{LATE} +(\d+)% +█", done.stdout, re.M)
    assert late is not None and int(late[1]) > 30, done.stdout
    assert f"Error: {addresses[1]}: Connection refused" in done.stderr


@contextmanager
def on_a_terminal(*arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """`reducer ...` on its own terminal, with our end of the terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "reducer_tools", *arguments],
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        env=environment({"TERM": "xterm", "COLUMNS": "120", "LINES": "40"}),
    )  # fmt: skip
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


def read_until(terminal: int, text: str, seconds: float = 60.0) -> None:
    seen, deadline = "", time.monotonic() + seconds
    while text not in seen:
        assert select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))[0], seen
        seen += os.read(terminal, 65_536).decode(errors="replace")


def press_q(process: subprocess.Popen[bytes], terminal: int) -> None:
    os.write(terminal, b"q")


def interrupt(process: subprocess.Popen[bytes], terminal: int) -> None:
    process.send_signal(signal.SIGINT)


@pytest.mark.parametrize("end", [press_q, interrupt])
def test_it_runs_until_it_is_told_to_end(
    end: Callable[[subprocess.Popen[bytes], int], None],
) -> None:
    with Daemon() as daemon:
        address = f"127.0.0.1:{daemon.metrics_port}"
        with on_a_terminal("top", "--interval", "0.2", "--addresses", address) as (
            process,
            terminal,
        ):
            before = termios.tcgetattr(terminal)
            for _ in range(3):
                read_until(terminal, "no job is running")
            end(process, terminal)
            read_until(terminal, "\x1b[?1049l")  # leaves the alternate screen
            assert process.wait(30) == 0
            assert termios.tcgetattr(terminal) == before


def test_a_pipe_is_told_what_to_do() -> None:
    done = run_cli("top")
    assert done.returncode == 2
    assert "--once" in done.stderr
