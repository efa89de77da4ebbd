"""Horovod programs whose ranks die, leave, stall or run alone; and the timeline."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reducer_client.horovod as hvd
from reducer_client.horovod import arrays
from reducer_client.horovod.controller import Controller
from tests.support.cluster import environment
from tests.support.horovod_ranks import initialized, launched
from tests.support.ranks import Tell, run_ranks, start_ranks, values
from tests.support.reducers import Reducers
from tests.support.wait import wait_until

Event = dict[str, Any]


def _until_the_end(rank: int, world: int, addresses: list[str], job: str, tell: Tell) -> Any:
    """Step until a rank is lost; returns the error and its time, after some further calls."""
    launched(rank, world, addresses, job)
    hvd.init()
    pair = hvd.add_process_set([0, 1])
    handles = [arrays.allreduce_async(np.ones(9, np.float32), name="alone")] if rank == 1 else []
    with pytest.raises(hvd.HorovodInternalError) as raised:
        for step in range(1_000_000):
            arrays.allreduce(np.ones(1000, np.float32), name="grad")
            if step == 20:
                tell("stepping")
    failed = time.monotonic()
    with pytest.raises(hvd.HorovodInternalError, match="rank 2"):
        arrays.allreduce(np.ones(3, np.float32))
    for handle in handles:
        assert handle.done
        with pytest.raises(hvd.HorovodInternalError, match="rank 2"):
            hvd.synchronize(handle)
    if rank < 2:  # a set without the dead rank still works
        assert arrays.allreduce(np.ones(3), hvd.Sum, process_set=pair).tolist() == [2] * 3
        hvd.barrier(pair)
    hvd.shutdown()
    assert not [t for t in threading.enumerate() if t.name.startswith("horovod")]
    return raised.value.rank, raised.value.reason, str(raised.value), failed


def test_a_lost_rank_is_named_by_all_others(addresses: list[str], job: str) -> None:
    with start_ranks(3, _until_the_end, addresses, job, talk=True) as ranks:
        for rank in range(3):
            ranks.receive(rank, 60)
        killed = time.monotonic()
        ranks.kill(2)
        outcomes = ranks.collect(60)
    for rank, reason, text, failed in values(outcomes[:2]):
        assert (rank, reason) == (2, "lost")
        assert "rank 2" in text
        assert failed - killed < 10


def _interrupted(rank: int, world: int, addresses: list[str], job: str) -> list[float]:
    """Ctrl-C interrupts rank 0 as it waits in its second call, and the program goes on."""

    def interrupt(controller: Controller) -> None:
        patch.undo()
        raise KeyboardInterrupt

    launched(rank, world, addresses, job)
    hvd.init()
    found = [float(arrays.allreduce(np.full(3, 10.0 + rank), hvd.Sum)[0])]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(hvd.HorovodInternalError):
        if rank == 0:
            patch.setattr(Controller, "hurry", interrupt)
            with pytest.raises(KeyboardInterrupt):
                arrays.allreduce(np.full(3, 100.0), hvd.Sum)
        for number in (100.0, 1_000.0, 10_000.0):
            found.append(float(arrays.allreduce(np.full(3, number + rank), hvd.Sum)[0]))
    hvd.shutdown()
    return found


def test_an_interrupt_in_a_synchronous_call_ends_horovod(addresses: list[str], job: str) -> None:
    """Regression: the repeated call met the next call of the other ranks: wrong sums."""
    zero, one = run_ranks(2, _interrupted, addresses, job)
    assert zero == [21]
    assert one in ([21], [21, 201])


def _keep_stepping(rank: int, world: int, addresses: list[str], job: str, tell: Tell) -> int:
    with initialized(rank, world, addresses, job):
        steps = 0
        while not arrays.allreduce(np.array([tell.heard()], np.int32), hvd.Max)[0]:
            handles = [
                arrays.allreduce_async(np.full(500 * n, rank, np.float32), hvd.Sum, name=f"g{n}")
                for n in range(20)
            ]
            assert all((handle.wait() == sum(range(world))).all() for handle in handles)
            steps += 1
            if steps in (20, 40):
                tell(steps)
            if steps == 20:
                tell.hear()
        return steps


def test_a_lost_reducer_costs_nothing(job: str) -> None:
    with Reducers(2) as reducers:
        with start_ranks(2, _keep_stepping, reducers.addresses, job, talk=True) as ranks:
            for rank in range(2):
                ranks.receive(rank, 60)
                ranks.send(rank)
            reducers.kill(1)
            for rank in range(2):
                ranks.receive(rank, 60)
            ranks.send(0)
            steps = values(ranks.collect(60))
        assert steps[0] == steps[1] >= 40


def _leave_early(rank: int, world: int, addresses: list[str], job: str) -> Any:
    with initialized(rank, world, addresses, job):
        arrays.barrier()
        if rank == 1:
            return None
        with pytest.raises(hvd.HorovodInternalError) as raised:
            arrays.allreduce(np.ones(3))
        return raised.value.rank, raised.value.reason


def test_a_rank_that_leaves_is_named(addresses: list[str], job: str) -> None:
    assert run_ranks(2, _leave_early, addresses, job) == [(1, "left"), None]


def _stall(rank: int, world: int, addresses: list[str], job: str) -> Any:
    lines: list[str] = []
    handler = _Lines(lines)
    times = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "0.5"}
    if rank == 0:
        times["HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"] = "3"
    with initialized(rank, world, addresses, job, **times):
        logging.getLogger("reducer_client.horovod").addHandler(handler)
        handle = None
        if rank != 2:
            handle = arrays.allreduce_async(np.ones(3), name="everyone but 2")
        if rank == 0:
            arrays.allreduce_async(np.ones(3), name="0 alone")
        else:
            arrays.allreduce_async(np.ones(3), name="1 and 2")
        with pytest.raises(hvd.HorovodInternalError) as raised:
            (handle or arrays.allreduce_async(np.ones(3), name="2 waits")).wait()
        return lines, raised.value.reason, str(raised.value)


class _Lines(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())


def test_a_stall_names_the_missing_ranks_by_tensor(addresses: list[str], job: str) -> None:
    found = run_ranks(3, _stall, addresses, job)
    lines, reason, text = found[0]
    (line,) = lines
    assert "missing ranks 2: allreduce.everyone but 2" in line
    assert "missing ranks 1, 2: allreduce.0 alone" in line
    assert reason == "stalled"
    assert "STALL_SHUTDOWN" in text
    # On a slow machine either one may end first.
    assert "allreduce.0 alone" in text or "allreduce.everyone but 2" in text
    assert any("missing ranks 0: allreduce.1 and 2" in line for line in found[1][0])
    assert {reason for _, reason, _ in found[1:]} <= {"lost", "failed", "left"}


def _idle(rank: int, world: int, addresses: list[str], job: str, tell: Tell) -> Any:
    """Rank 1 is idle; rank 0 waits for it, and warns once."""
    lines: list[str] = []
    logging.getLogger("reducer_client.horovod").addHandler(_Lines(lines))
    with initialized(rank, world, addresses, job, HOROVOD_STALL_CHECK_TIME_SECONDS="0.3"):
        if rank == 0:
            handle = arrays.allreduce_async(np.ones(3), name="early")
            wait_until(lambda: lines, 30)
            tell("warned")
            handle.wait()
        else:
            tell.hear()
            arrays.allreduce(np.ones(3), name="early")
        return lines


def test_a_rank_that_is_idle_is_named_while_it_is_missing(addresses: list[str], job: str) -> None:
    with start_ranks(2, _idle, addresses, job, talk=True) as ranks:
        ranks.receive(0, 60)
        ranks.send(1)
        lines, none = values(ranks.collect(60))
    assert none == []
    (line,) = lines
    assert "missing ranks 1: allreduce.early" in line


def _write_timeline(rank: int, world: int, addresses: list[str], job: str, folder: str) -> None:
    first, second = f"{folder}/first.json", f"{folder}/second.json"
    with initialized(rank, world, addresses, job, HOROVOD_TIMELINE=first):
        for _ in range(2):
            if rank == 1:
                time.sleep(0.3)
            arrays.grouped_allreduce_async([np.ones(10, np.float32)] * 2, name='a"').wait()
        arrays.allgather(np.ones(3))
        hvd.stop_timeline()
        arrays.allreduce(np.ones(2), name="unseen")
    with initialized(rank, world, addresses, job, HOROVOD_TIMELINE="", HOROVOD_CYCLE_TIME="0"):
        hvd.start_timeline(second, mark_cycles=True)
        arrays.allreduce(np.ones(2), name="seen")
        crossed = arrays.allreduce_async(np.ones(2), name=f"of {rank}")
        time.sleep(0.5)  # the ranks wait for each other
        arrays.allreduce(np.ones(2), name=f"of {1 - rank}")
        crossed.wait()
        arrays.join()
        hvd.stop_timeline()


def test_a_timeline_shows_phases_and_who_was_late(
    addresses: list[str], job: str, tmp_path: Path
) -> None:
    run_ranks(2, _write_timeline, addresses, job, str(tmp_path))
    events: list[Event] = json.loads((tmp_path / "first.json").read_text())
    names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    assert {'allreduce.a"_1of2', 'allreduce.a"_2of2', "allgather.noname.0.1"} <= set(names.values())
    for pid, name in names.items():
        rows = [e for e in events if e["pid"] == pid and e["ph"] in "BE"]
        assert [e["ph"] for e in rows] == ["B", "E"] * (len(rows) // 2)  # phases do not nest
        times = [e["ts"] for e in rows]
        assert times == sorted(times)
        begun = [e["name"] for e in rows if e["ph"] == "B"]
        kind = name.split(".")[0].upper()
        if kind == "ALLREDUCE":
            phases = ["NEGOTIATE", "QUEUE", "MEMCPY_IN_FUSION_BUFFER", "REDUCER"]
            assert begun[:4] == [f"{p}_{kind}" if p in phases[::3] else p for p in phases]
            assert begun[4] == "MEMCPY_OUT_FUSION_BUFFER"
            assert len(begun) == 10
    announced = [e for e in events if e["ph"] == "i" and names[e["pid"]] == 'allreduce.a"_2of2']
    assert [e["name"] for e in announced] == ["0", "1"] * 2
    assert all(
        late["ts"] - early["ts"] > 0.15e6
        for early, late in zip(announced[::2], announced[1::2], strict=True)
    )
    text = (tmp_path / "second.json").read_text()
    assert "allreduce.seen" in text and "CYCLE_START" in text and "unseen" not in text
    events = json.loads(text)
    cycles = [e["ts"] for e in events if e["name"] == "CYCLE_START"]
    assert len(cycles) < 20 + (cycles[-1] - cycles[0]) / 0.04e6  # the pauses grow to 0.05 s
    joins = [e["ph"] for e in events if e["name"] == "NEGOTIATE_JOIN"]
    assert joins == ["B", "E"]


ALONE = """
import numpy as np
import reducer_client.horovod as hvd
from reducer_client.horovod import arrays
import sys
hvd.init()
assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.cross_size()) == (0, 1, 0, 1)
x = np.arange(6.0).reshape(3, 2)
handles = [arrays.allreduce_async(x + n, postscale_factor=2.0) for n in range(9)]
assert all((hvd.synchronize(h) == 2 * (x + n)).all() for n, h in enumerate(handles))
assert (arrays.allgather(x) == x).all() and (arrays.broadcast(x, 0) == x).all()
assert (arrays.reducescatter(x) == x).all() and (arrays.alltoall(x)[0] == x).all()
assert hvd.ProcessSet([0]).size() is None
hvd.barrier()
assert arrays.join() == 0 and hvd.stats()["bytes_sent"] == 0
try:
    arrays.allreduce(np.ones(3, np.int16))
except TypeError as error:
    assert "int16" in str(error)
assert "torch" not in sys.modules
print("fine")
"""


def test_a_program_that_is_run_by_itself(tmp_path: Path) -> None:
    kept = {k: v for k, v in environment().items() if not k.startswith(("HOROVOD_", "RANK"))}
    done = subprocess.run(
        [sys.executable, "-c", ALONE], env=kept, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr
    bad = {**kept, "HOROVOD_CYCLE_TIME": "fast"}
    done = subprocess.run(
        [sys.executable, "-c", ALONE], env=bad, capture_output=True, text=True, timeout=60
    )
    assert "HOROVOD_CYCLE_TIME='fast': expected a number" in done.stderr


def _made_again(rank: int, world: int, addresses: list[str], job: str) -> list[float]:
    """Rank 0 lacks memory for its first call, which has no name, and repeats the call."""
    found = []
    with initialized(rank, world, addresses, job):
        if rank == 0:
            with pytest.MonkeyPatch.context() as patch, pytest.raises(MemoryError):
                patch.setattr(arrays, "Submission", _no_memory)
                arrays.allreduce_async(np.full(4, 10.0), hvd.Sum)
        for number in (10, 100):
            handle = arrays.allreduce_async(np.full(4, number + rank, np.float64), hvd.Sum)
            wait_until(lambda handle=handle: handle.done, 20)
            found.append(float(handle.wait()[0]))
    return found


def _no_memory(*_: object) -> None:
    raise MemoryError("injected")


def test_a_call_without_a_name_that_was_refused_has_no_number(
    addresses: list[str], job: str
) -> None:
    """Regression: the repeated call had the next number: one rank got a wrong sum, one hung."""
    assert run_ranks(2, _made_again, addresses, job) == [[21, 201]] * 2
