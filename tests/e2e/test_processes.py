"""Real programs: many threads, callbacks, several jobs, settings from the environment."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reducer_client
from reducer_client import ClosedError, Group, Work
from tests.support.arrays import DTYPES, expected, ops_of, sample
from tests.support.cluster import WITHOUT_NATIVE, Daemon, environment
from tests.support.ranks import Tell, join, run_ranks, start_ranks
from tests.support.wait import wait_until


def _many_threads(rank: int, world: int, addresses: list[str], job: str) -> int:
    wrong: list[Any] = []

    def submit(group: Group, thread: int) -> None:
        # The order of threads differs between ranks; the keys keep rounds apart.
        works = []
        for turn in range(20):
            array = np.full(100 + 997 * thread, rank + turn + thread, np.int32)
            works.append((turn, group.all_reduce(array, key=f"thread{thread}")))
        for turn, work in reversed(works):
            total = sum(r + turn + thread for r in range(world))
            if not np.all(work.wait(60) == total):
                wrong.append((thread, turn, work))

    with join(rank, world, addresses, job) as group:
        threads = [threading.Thread(target=submit, args=(group, n)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
    return threading.active_count()


def test_many_threads_keep_many_works_in_flight(addresses: list[str], job: str) -> None:
    assert run_ranks(3, _many_threads, addresses, job) == [1, 1, 1]


def _sum_of_job(rank: int, world: int, addresses: list[str], job: str) -> None:
    value = sum(job.encode())
    with join(rank, world, addresses, job) as group:
        for turn in range(30):
            result = group.all_reduce(np.full(5000, value + turn), key="same").wait(60)
            assert np.all(result == world * (value + turn))


def test_three_jobs_on_the_same_reducers_get_only_their_own_sums(
    addresses: list[str], job: str
) -> None:
    with (
        start_ranks(2, _sum_of_job, addresses, f"{job}-a") as a,
        start_ranks(2, _sum_of_job, addresses, f"{job}-b") as b,
        start_ranks(1, _sum_of_job, addresses, f"{job}-c") as c,
    ):
        outcomes = [*a.collect(60), *b.collect(60), *c.collect(60)]
    assert [(o.reported, o.error) for o in outcomes] == [(True, None)] * 5, outcomes


def test_callbacks_run_on_a_thread_that_ends_with_the_group(addresses: list[str], job: str) -> None:
    before = set(threading.enumerate())
    seen: list[tuple[Any, str]] = []

    def note(work: Work[Any]) -> None:
        nested = group.all_reduce(work.wait(0), key="nested").wait(10)
        seen.append((nested.sum(), threading.current_thread().name))

    with join(0, 1, addresses, job) as group:
        assert set(threading.enumerate()) == before
        for n in range(50):
            group.all_reduce(np.full(10, n), on_done=note)
        wait_until(lambda: len(seen) == 50, 20)
    assert sorted(total for total, _ in seen) == [10 * n for n in range(50)]
    assert {name for _, name in seen} == {"reducer-completer"}
    assert set(threading.enumerate()) == before


def test_an_idle_group_burns_no_time(solo: Group) -> None:
    solo.barrier()
    started, used = time.monotonic(), time.process_time()
    wait_until(lambda: time.monotonic() - started > 1, 5, interval=0.25)
    assert time.process_time() - used < 0.05


def test_the_threads_of_an_engine_leave_signals_to_the_program(
    addresses: list[str], job: str
) -> None:
    blocked = []
    with reducer_client.connect(addresses, job=job, rank=0, world_size=1, io_threads=2):
        for task in Path("/proc/self/task").iterdir():
            if (task / "comm").read_text(encoding="ascii") == "ors-engine\n":
                status = (task / "status").read_text(encoding="ascii")
                blocked.append(int(status.partition("SigBlk:")[2].split()[0], 16))
    assert len(blocked) == 2
    for number in (signal.SIGINT, signal.SIGTERM):
        assert all(mask & 1 << (number - 1) for mask in blocked), number.name


def _close_early(rank: int, world: int, addresses: list[str], job: str, tell: Tell) -> Any:
    """Rank 0 closes its group while its call waits for rank 1, which never makes the call."""
    seen: list[Any] = []
    group = join(rank, world, addresses, job)
    if rank == 1:
        tell.hear()
        group.close()
        return None
    work = group.all_reduce(np.ones(2), key="late", on_done=lambda work: seen.append(work))
    assert not work.done
    group.close(0.1)
    assert work.done
    wait_until(lambda: bool(seen), 10, "the callback of the call")
    assert seen == [work]
    with pytest.raises(ClosedError):
        work.wait(0)
    return type(work.exception()).__name__


def test_a_group_that_closes_fails_what_is_not_done_and_calls_back(
    addresses: list[str], job: str
) -> None:
    with start_ranks(2, _close_early, addresses, job, talk=True) as ranks:
        assert ranks.collect_one(0).value == "ClosedError"
        ranks.send(1)
        assert ranks.collect_one(1).reported


def test_a_closed_group_refuses_calls_without_a_callback(addresses: list[str], job: str) -> None:
    failed: list[Any] = []
    group = join(0, 1, addresses, job)
    group.all_reduce(np.ones(2), on_done=lambda work: failed.append(work.exception()))
    wait_until(lambda: len(failed) == 1, 10)
    group.close()
    assert failed == [None]
    with pytest.raises(ClosedError):
        group.all_reduce(np.ones(2), on_done=lambda work: failed.append(work))
    assert failed == [None]


_SCRIPT = """
import numpy, reducer_client
with reducer_client.connect() as group:
    total = group.all_reduce(numpy.ones(3, "f4"), op="sum").wait()
    print(group.job, group.run_id, group.rank, group.world_size, total.tolist())
"""


def test_a_group_can_be_described_by_the_environment_alone(addresses: list[str], job: str) -> None:
    variables = {
        "REDUCER_ADDRS": ",".join(addresses),
        "REDUCER_JOB": job,
        "WORLD_SIZE": "2",
        "TORCHELASTIC_RUN_ID": "r7",
        "TORCHELASTIC_RESTART_COUNT": "1",
    }
    started = [
        subprocess.Popen(
            [sys.executable, "-c", _SCRIPT],
            env=environment({**variables, "RANK": str(rank)}),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=60)[0] for process in started]
    for rank, output in enumerate(outputs):
        assert output.rstrip() == f"{job} r7.1 {rank} 2 [2.0, 2.0, 2.0]"


def test_ranks_without_a_run_id_take_that_of_rank_0(addresses: list[str], job: str) -> None:
    ids = run_ranks(3, _run_id, addresses, job)
    assert len(set(ids)) == 1
    assert len(ids[0]) >= 8


def _sums(rank: int, world: int, addresses: list[str], job: str) -> None:
    with join(rank, world, addresses, job) as group:
        for dtype in DTYPES:
            parts = [sample(dtype, 10_007, (dtype.name, r)) for r in range(world)]
            for op in ops_of(dtype):
                result = group.all_reduce(parts[rank], op=op).wait(60)  # type: ignore[arg-type]
                assert result.tobytes() == expected(op, parts).tobytes(), (dtype, op)


def test_a_daemon_without_native_kernels_gives_the_same_bits(tmp_path: Path, job: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_NATIVE, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])
    with Daemon(env={"PYTHONPATH": path}) as daemon:
        run_ranks(2, _sums, [daemon.address], job)
        metrics = daemon.get("/metrics")[1]
        assert re.search(r'^reducer_kernel_info{compiled="\w+",impl="numpy"} 1\.0$', metrics, re.M)


def _run_id(rank: int, world: int, addresses: list[str], job: str) -> str:
    with join(rank, world, addresses, job) as group:
        return group.run_id


def test_local_reducers_are_gone_after_the_block_and_after_kill_9() -> None:
    script = (
        "import reducer_client, sys, time\n"
        "with reducer_client.local_reducers(1, lanes=2) as addresses:\n"
        "    print(addresses[0], flush=True)\n"
        "    time.sleep(600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], env=environment(), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    assert _answers(address)
    process.kill()
    process.wait()
    process.stdout.close()
    wait_until(lambda: not _answers(address), 10)

    with reducer_client.local_reducers(1) as addresses:
        assert _answers(addresses[0])
    assert not _answers(addresses[0])


def _answers(address: str) -> bool:
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=2).close()
    except OSError:
        return False
    return True
