"""`reducer bench` on real reducers measures, compares, and names the culprit if it fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from reducer_tools.bench import pattern
from reducer_tools.bench.sweep import COLLECTIVES, Sweep
from reducer_tools.cli import main
from tests.support.cluster import alive, environment, run_cli
from tests.support.wait import wait_until

ENDLESS = ("-b", "64K", "-e", "64K", "-n", "100000", "--json")


@contextmanager
def _started(*arguments: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    """A bench in a session of its own; it and its children are gone afterwards."""
    process = subprocess.Popen(
        [sys.executable, "-m", "reducer_tools", "bench", *arguments],
        env=environment(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=30)


def _wait_started(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The first line of output, which comes when all ranks have joined."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate(timeout=30)[1]
    event: dict[str, Any] = json.loads(line)
    assert event["event"] == "start"
    return event


def _session(process: subprocess.Popen[str]) -> dict[int, str]:
    """The processes of the session, with their command lines."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.getsid(int(entry.name)) == process.pid:
                    found[int(entry.name)] = (entry / "cmdline").read_text()
            except OSError:
                continue
    return found


def _workers(process: subprocess.Popen[str]) -> list[int]:
    """The ranks' processes, in the order of their start."""
    return sorted(pid for pid, line in _session(process).items() if "spawn_main" in line)


def _ignores(pid: int, number: signal.Signals) -> bool:
    """Whether the process ignores the signal: only the first process handles Ctrl-C."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return bool(int(fields["SigIgn"], 16) >> (number - 1) & 1)


def _rows(output: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines() if not line.startswith("#")]


def test_local_reducers_and_workers() -> None:
    ended = run_cli("bench", "--local", "1", "--workers", "2", "-b", "4K", "-e", "64K")
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    rows = _rows(ended.stdout)
    assert [row[0] for row in rows] == ["4K", "8K", "16K", "32K", "64K"]
    assert [row[-1] for row in rows] == ["0"] * 5
    assert "2 workers, 1 reducer x 1 lane: 127.0.0.1:" in ended.stdout
    assert "# total #wrong: 0" in ended.stdout
    assert "a ring is faster only above" in ended.stdout


# Each takes 4 CPU seconds, and tests/e2e/test_collectives.py compares the sums of all.
AT_NIGHT = ("all_gather", "broadcast", "reduce_scatter")


@pytest.mark.parametrize(
    "collective",
    [pytest.param(name, marks=[pytest.mark.long] * (name in AT_NIGHT)) for name in COLLECTIVES],
)
def test_every_collective_over_lanes_and_chunks(collective: str) -> None:
    options = ("--workers", "2", "-b", "5000", "-e", "1M", "-f", "8", "-n", "2", "-w", "1")
    local = ("--local", "1", "--lanes", "2", "--json")
    ended = run_cli("bench", *local, *options, "--collective", collective)
    assert ended.returncode == 0, ended.stderr
    start, *rows, end = (json.loads(line) for line in ended.stdout.splitlines())
    assert (start["collective"], start["lanes"]) == (collective, [2])
    assert end["wrong"] == 0 and len(rows) == 3
    for row in rows:
        assert row["wrong"] == 0
        assert 0 < row["seconds"]["min"] <= row["seconds"]["average"] <= row["seconds"]["max"]


def _bench_alone(addresses: list[str], job: str, *options: str) -> Result:
    """The result of a benchmark of one rank in this process, which saves three starts."""
    where = ("--addresses", ",".join(addresses), "--rank", "0", "--world-size", "1", "--job", job)
    return CliRunner().invoke(main, ["bench", *where, *options])


def test_sixteen_bits_on_the_wire_halve_the_bytes(addresses: list[str]) -> None:
    options = ("-b", "1M", "-e", "1M", "-n", "2", "-w", "3", "--json")
    full, half = (
        json.loads(_bench_alone(addresses, f"bits{bits}", *options, *more).stdout.splitlines()[1])
        for bits, more in ((32, ()), (16, ("--wire-dtype", "bfloat16")))
    )
    for direction in ("sent_bytes", "received_bytes"):
        assert 1 << 20 < full[direction] < 1.02 * (1 << 20)
        assert 1 << 19 < half[direction] < 1.02 * (1 << 19)
    assert half["wrong"] == 0


def test_ranks_of_a_launcher_meet_and_rank_0_prints(addresses: list[str]) -> None:
    options = ("-b", "4K", "-e", "8K", "-n", "2", "--addresses", ",".join(addresses))
    with (
        _started(*options, RANK="0", WORLD_SIZE="2") as first,
        _started(*options, RANK="1", WORLD_SIZE="2") as second,
    ):
        output, errors = first.communicate(timeout=60)
        silence = second.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (0, 0), errors
    assert len(_rows(output)) == 2 and "2 workers, 2 reducers" in output
    assert silence == ("", "")


def test_ranks_with_other_options_are_named(addresses: list[str]) -> None:
    options = ("--addresses", ",".join(addresses), "--world-size", "2", "--job", "other-options")
    with (
        _started(*options, "--rank", "0", "-n", "2") as first,
        _started(*options, "--rank", "1", "-n", "3") as second,
    ):
        outputs = [p.communicate(timeout=60) for p in (first, second)]
    assert (first.returncode, second.returncode) == (1, 1)
    for _, errors in outputs:
        assert "rank(s) 1 were started with other options than rank 0" in errors


def test_a_wrong_sum_is_found_and_ends_with_1(
    addresses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reducers are right; one element in each period of the expected result is wrong."""
    right = pattern.reduced

    def wrong(sweep: Sweep, world_size: int) -> pattern.Array:
        result = right(sweep, world_size)
        result.view(np.uint32)[777] ^= 1
        return result

    monkeypatch.setattr(pattern, "reduced", wrong)
    sizes = ("-b", "256K", "-e", "256K", "-n", "2", "-w", "0")
    ended = _bench_alone(addresses, "wrong", *sizes)
    assert ended.exit_code == 1, ended.output
    # 65,536 elements are four periods and 12 elements: each of two turns finds four.
    assert _rows(ended.output)[0][-1] == "8"
    assert "# total #wrong: 8" in ended.output


def test_a_killed_worker_is_named() -> None:
    with _started("--local", "1", "--workers", "3", *ENDLESS) as process:
        _wait_started(process)
        members = _session(process)
        victim = _workers(process)[1]
        os.kill(victim, signal.SIGKILL)
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 1
        # On a busy machine the others may have said before that they wait for each other.
        assert errors.endswith(f"Error: rank 1: the worker (pid {victim}) was killed by SIGKILL\n")
        wait_until(lambda: not any(alive(pid) for pid in members), 10, "processes left behind")


@pytest.mark.long  # 37 s, of which 30 are a wait; test_bars.py names a stopped worker
def test_a_killed_reducer_and_a_frozen_worker_are_named() -> None:
    """Two benchmarks run at the same time, since workers wait 30 s for a lost reducer."""
    with (
        _started("--local", "1", "--workers", "2", *ENDLESS) as without_reducer,
        _started("--local", "1", "--workers", "3", *ENDLESS) as with_frozen,
    ):
        address = _wait_started(without_reducer)["reducers"][0]
        daemons = [
            pid for pid, line in _session(without_reducer).items() if "--metrics-port" in line
        ]
        os.kill(min(daemons), signal.SIGKILL)
        _wait_started(with_frozen)
        members = _session(with_frozen)
        os.kill(_workers(with_frozen)[2], signal.SIGSTOP)
        _, errors = with_frozen.communicate(timeout=60)
        assert with_frozen.returncode == 1
        assert errors.startswith("Error: rank 0, 1: ") and "rank 2" in errors
        wait_until(lambda: not any(alive(pid) for pid in members), 10, "processes left behind")
        _, errors = without_reducer.communicate(timeout=60)
        assert without_reducer.returncode == 1
        assert address in errors and "Traceback" not in errors


def test_ctrl_c_leaves_no_process_behind() -> None:
    with _started("--local", "2", "--workers", "2", *ENDLESS) as process:
        _wait_started(process)
        members = _session(process)
        assert len(_workers(process)) == 2 and len(members) >= 5
        assert all(_ignores(pid, signal.SIGINT) for pid in _workers(process))
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 1
        assert errors.strip() == "Aborted!"
        wait_until(lambda: not any(alive(pid) for pid in members), 10, "processes left behind")


def test_a_reducer_that_is_not_there_is_named() -> None:
    where = ("--workers", "2", "--addresses", "127.0.0.1:1", "--connect-timeout", "0.5")
    ended = run_cli("bench", *where)
    assert ended.returncode == 1
    assert "rank 0, 1: no reducer answered at 127.0.0.1:1" in ended.stderr
