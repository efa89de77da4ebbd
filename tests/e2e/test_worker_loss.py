"""A worker is killed during a DDP training: survivors get an error in time, nothing is left."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("torch")

from reducer_client import PeerLostError
from tests.support.cluster import Daemon, environment
from tests.support.ranks import Tell, join, run_ranks, start_ranks
from tests.support.wait import AT_ONCE, LOST_SECONDS, wait_until

WORLD = 3
VICTIM = 1
# The promise is 5 s until the handlers of the exit have run. The rest of the exit is torch's, and
# took 4 s in each of three processes on two busy cores: a process that hangs is killed.
LEFT_SECONDS = 5.0 + AT_ONCE
HANGS_SECONDS = 60


class Ended(NamedTuple):
    """How a survivor ended; times in seconds since the kill."""

    told: dict[str, Any]
    raised_after: float
    left_after: float
    ended_after: float
    status: int
    stderr: str


@contextmanager
def _training(daemon: Daemon, job: str, store: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """WORLD processes that train; they are killed at the end."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.ddp_worker", str(rank), str(WORLD),
             daemon.address, job, str(store)],
            env={**environment(), "PYTHONWARNINGS": "default"},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(WORLD)
    ]  # fmt: skip
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _wait_for_step(process: subprocess.Popen[str], step: int) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line).get("step") == step:
            return
    raise AssertionError(f"it ended before step {step}")


def _end_of(process: subprocess.Popen[str], killed: float) -> Ended:
    stdout, stderr = process.communicate(timeout=HANGS_SECONDS)
    ended = time.monotonic()
    told, left = (json.loads(line) for line in stdout.splitlines()[-2:])
    assert "raised" in told, stderr
    times = (told["raised"] - killed, left["left"] - killed, ended - killed)
    return Ended(told, *times, process.returncode, stderr)


# 21 CPU seconds: each process imports torch. test_ddp.py has the error of the hook, the next test
# the names on the survivors, test_process_group_failures.py the error of a backward pass.
@pytest.mark.long
def test_a_killed_ddp_worker_ends_all_others_by_name(job: str, tmp_path: Path) -> None:
    with Daemon(lanes=2) as daemon:
        with _training(daemon, job, tmp_path / "store") as processes:
            for process in processes:
                _wait_for_step(process, 5)
            killed = time.monotonic()
            processes[VICTIM].kill()
            survivors = [p for rank, p in enumerate(processes) if rank != VICTIM]
            ends = [_end_of(process, killed) for process in survivors]
        for end in ends:
            rank, round_, key, reason = end.told["kept"]
            assert (rank, reason) == (VICTIM, "lost")
            assert round_ >= 5 and key.startswith("ddp0/bucket")
            for text in (end.told["text"], end.stderr):
                assert f"rank {VICTIM} of job {job!r} is lost" in text
            assert end.raised_after < LOST_SECONDS, end
            assert end.left_after < LEFT_SECONDS, end
            assert end.status == 1
        print(
            "".join(f"raised, left, ended after {e[1]:.2f} {e[2]:.2f} {e[3]:.2f} s\n" for e in ends)
        )
        _nothing_is_left(daemon)


def _nothing_is_left(daemon: Daemon) -> None:
    """Wait until the daemon has no job, no memory of a job and no connection."""

    def empty() -> bool:
        lanes = daemon.stats()["lanes"]
        jobs = [name for lane in lanes for name in lane["core"]["jobs"]]
        held = [lane["core"]["reserved_bytes"] + lane["buffers_out"] for lane in lanes]
        return not jobs and not any(held) and not any(lane["connections"] for lane in lanes)

    wait_until(empty, 10, "the reducer has forgotten the job")


def _reduce_until_lost(
    rank: int, world: int, addresses: list[str], job: str, tell: Tell
) -> tuple[int, int, str, str]:
    with pytest.raises(PeerLostError) as caught, join(rank, world, addresses, job) as group:
        for step in range(1_000_000):
            if step == 5:
                tell("working")
            group.all_reduce(np.ones(1_000, np.float32), key="grad").wait()
    error = caught.value
    assert error.rank is not None and error.round is not None and error.key is not None
    return error.rank, error.round, error.key, error.reason


def _reduce_once(rank: int, world: int, addresses: list[str], job: str) -> float:
    with join(rank, world, addresses, job) as group:
        return float(group.all_reduce(np.full(10, rank, np.float32), key="grad").wait()[0])


def test_after_a_kill_the_same_job_starts_anew_at_once(job: str) -> None:
    """The new run may start while the lanes still hold the memory of the old run."""
    with Daemon(lanes=2) as daemon:
        arguments = ([daemon.address], job)
        with start_ranks(WORLD, _reduce_until_lost, *arguments, talk=True) as ranks:
            for rank in range(WORLD):
                assert ranks.receive(rank, 90) == "working"
            ranks.kill(VICTIM)
            outcomes = ranks.collect(60)
        for rank in {0, 1, 2} - {VICTIM}:
            assert outcomes[rank].error is None, outcomes[rank]
            lost, round_, key, reason = outcomes[rank].value
            assert (lost, key, reason) == (VICTIM, "grad", "lost")
            assert round_ >= 5
        assert run_ranks(WORLD, _reduce_once, *arguments) == [3.0] * WORLD
        _nothing_is_left(daemon)
